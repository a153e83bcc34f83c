"""The waiting requests, and who of them is next: one class for each order.

Every order keeps the same index of prompts and differs in what it takes for known there: the first of those of whose
prompt most is known is next, as long as that is fair to those who have waited longer. It knows requests and what they
cost, and nothing of steps and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from mainstem.scheduler.fairness import Fairness
from mainstem.scheduler.prompts import NOBODY, WaitingPrompts
from mainstem.scheduler.request import Request
from mainstem.scheduler.wanted import WantedEdges, tokens_to
from mainstem.tree import NamespaceKey, PrefixCache, TokenArray, common_length, namespace_key
from mainstem.tree.node import Node
from mainstem.tree.tenancy import is_public, public_part


class WaitingQueue:
    """Requests in order of arrival (FCFS); the base of the other orders.

    Args:
        cache: that the requests will use.
        lenience: see `Fairness`.

    Attributes:
        follows_tree: whether it is to be told what leaves the tree, and so needs one.
        keeps_wanted: whether what somebody who waits begins with leaves the tree after what nobody does.
    """

    follows_tree: ClassVar[bool] = False
    keeps_wanted: ClassVar[bool] = False

    def __init__(self, cache: PrefixCache, lenience: float = 1.0) -> None:  # noqa: ARG002 - of use to other orders
        self._requests: dict[int, Request] = {}
        self._prompts = WaitingPrompts()
        self._wanted = WantedEdges(self._prompts)
        self._fairness = Fairness(lenience)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """All of them, by their places."""
        return iter([self._requests[order] for order in sorted(self._requests)])

    @property
    def any_visible(self) -> bool:
        """Whether anybody waits who is not hidden."""
        return self._prompts.first != NOBODY

    def add(self, request: Request) -> None:
        """A request waits, at the place that its `order` says."""
        self._requests[request.order] = request
        self._fairness.add(request.order)
        tokens = request.tokens.array
        self._prompts.add(request.order, namespace_key(request.namespace), tokens, self._known_of(request))

    def remove(self, request: Request) -> None:
        """It leaves, let in or not."""
        del self._requests[request.order]
        self._prompts.remove(request.order)
        self._fairness.remove(request.order)
        if not self._requests:
            self._wanted.forget()

    # -- who is next ----------------------------------------------------------------------------------------------

    def next(self, work_of: Callable[[Request], float]) -> Request | None:
        """Who is to be let in next, of those who are not hidden.

        The best by this order, unless that were unfair to someone; then it is the one who has waited longest.

        Args:
            work_of: tokens that a request would put through the model.
        """
        if self._prompts.best == NOBODY:
            return None
        best = self._requests[self._prompts.best]
        if best.order == self._prompts.first or self._fairness.allows(best.order, work_of(best)):
            return best
        return self._requests[self._prompts.first]

    def hide(self, request: Request, length: int) -> None:
        """Pass over those that begin with so many tokens of this request, until `show_all`."""
        self._prompts.hide(namespace_key(request.namespace), request.tokens.array[:length], length)

    def hide_one(self, request: Request) -> None:
        """Pass over this request and those that go on from it, until `show_all`."""
        self._prompts.hide_one(request.order)

    def is_hidden(self, request: Request) -> bool:
        """Whether this request is passed over."""
        return self._prompts.is_hidden(request.order)

    def show_all(self) -> None:
        """Nobody is hidden any more."""
        self._prompts.show_all()

    def within(self, request: Request, stop: int) -> Sequence[Request]:
        """Those whose prompts are among the first `stop` tokens of this request, by their places."""
        tokens = request.tokens.array[:stop]
        orders = self._prompts.within(namespace_key(request.namespace), tokens, request.num_computed + 1)
        return [self._requests[order] for order in sorted(orders)]

    # -- what happens to others -----------------------------------------------------------------------------------

    def charge(self, request: Request, work: float, before: int | None = None) -> None:
        """A request is let in and will do so much work before those who wait; see `Fairness.note`."""
        self._fairness.note(request.order, work, before)

    def admitted(self, request: Request) -> None:
        """A request was taken out because it runs now."""

    def computed(self, request: Request, length: int) -> None:
        """The first `length` tokens of a request are in the cache, or will be after this step."""

    def withdrawn(self, request: Request) -> None:
        """Not all of a request's tokens came into the cache that were said to."""

    def wanted(self, leaf: Node) -> int:
        """How many tokens of a leaf's edge somebody who waits begins with, after all above it."""
        namespace = leaf.space.namespace
        if not is_public(namespace):
            return self._wanted.of(leaf)
        namespaces = [private for private in self._prompts.namespaces() if public_part(private) == namespace]
        tokens = tokens_to(leaf)
        most = max(self._prompts.matched(one, tokens) for one in (namespace, *namespaces))
        return max(most - len(tokens) + len(leaf.key), 0)

    def evicted(self, namespace: NamespaceKey, tokens: TokenArray, length: int) -> None:
        """Of these tokens only the first `length` are still in the tree; told to those who follow it."""

    def _known_of(self, request: Request) -> int:  # noqa: ARG002 - of use to other orders
        """How many tokens of a request that comes now are known."""
        return 0

    def check_integrity(self) -> None:
        """Between two steps: what the index knows is what there is to know.

        Raises:
            AssertionError: naming the broken invariant.
        """
        self._prompts.check_integrity()
        assert len(self._prompts) == len(self._requests), "the index has other requests than the queue"
        for request in self._requests.values():
            known = self._prompts.known(request.order)
            assert known == self._known_of(request), f"{request} is thought to have {known} known tokens"


class DepthFirst(WaitingQueue):
    """The tree of waiting prompts depth first: next is who has most in common with the one that was let in last."""

    keeps_wanted = True

    def __init__(self, cache: PrefixCache, lenience: float = 1.0) -> None:
        super().__init__(cache, lenience)
        self._last_namespace: NamespaceKey = ()
        self._last: TokenArray = np.empty(0, np.int32)

    def admitted(self, request: Request) -> None:
        namespace, tokens = namespace_key(request.namespace), request.tokens.array
        common = common_length(tokens, self._last) if namespace == self._last_namespace else 0
        self._prompts.forget(self._last_namespace, self._last, common)
        self._prompts.learn(namespace, tokens)
        self._last_namespace, self._last = namespace, tokens

    def _known_of(self, request: Request) -> int:
        if namespace_key(request.namespace) != self._last_namespace:
            return 0
        return common_length(request.tokens.array, self._last)


class LongestPrefix(WaitingQueue):
    """Next is who has most of its prompt in the radix tree.

    What changes in the tree is told here and noted in the index; the queue is never matched anew.
    """

    follows_tree = True
    keeps_wanted = True

    def __init__(self, cache: PrefixCache, lenience: float = 1.0) -> None:
        super().__init__(cache, lenience)
        self._cache = cache

    def computed(self, request: Request, length: int) -> None:
        if self._requests:
            self._prompts.learn(namespace_key(request.namespace), request.tokens.array[:length])

    def withdrawn(self, request: Request) -> None:
        tokens = request.tokens.array
        kept = self._cache.peek(tokens, request.namespace).length
        self._prompts.forget(namespace_key(request.namespace), tokens, kept)

    def evicted(self, namespace: NamespaceKey, tokens: TokenArray, length: int) -> None:
        self._prompts.forget(namespace, tokens, length)
        if is_public(namespace):
            for private in self._prompts.namespaces():
                if public_part(private) == namespace:
                    self._prompts.forget(private, tokens, length)

    def _known_of(self, request: Request) -> int:
        return request.view.peek(request.tokens.array).length

    def check_integrity(self) -> None:
        self._prompts.check_integrity()
        if self._cache.page_size > 1:
            return  # of a page that is cached in part, tokens count here and not there
        for request in self._requests.values():
            known, cached = self._prompts.known(request.order), self._known_of(request)
            if public_part(namespace_key(request.namespace)) is not None:
                # What other tenants make public is found when the request is let in, and not noted before.
                assert known <= cached, f"{request} is thought to have {known} cached tokens, but has {cached}"
            else:
                assert known == cached, f"{request} is thought to have {known} cached tokens, but has {cached}"


ORDERS: dict[str, type[WaitingQueue]] = {"fcfs": WaitingQueue, "lpm": LongestPrefix, "dfs": DepthFirst}
"""By the names that `--schedule` takes."""
