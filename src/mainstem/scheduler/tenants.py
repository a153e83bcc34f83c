"""Tenants wait in queues of their own, and whoever was served least is next.

What a tenant is served is counted in tokens: those of prompts that are computed for it, and several for each of a
reply, as the queues count work. The next request is one of the tenant with the least count, and within a tenant the
order of its queue holds (VTC: Sheng et al. 2024, Fairness in Serving Large Language Models). Who has not waited before
begins with what the last one had that was let in, so that nobody saves up turns (start-time fair queuing: Goyal et al.
1996). So of two tenants that both wait all the time, neither is served more than the other by more than the largest
request of each, what those that run were thought to cost too little, and short prompts that go before long ones
(`VirtualTime`).

It knows tenants, their queues and how many of their requests run. What these hold is for `mainstem.scheduler.shares`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from mainstem.errors import ConfigError
from mainstem.scheduler.request import Request
from mainstem.scheduler.virtual_time import VirtualTime
from mainstem.scheduler.waiting import WaitingQueue
from mainstem.scheduler.wanted import tokens_to
from mainstem.tree import (
    EvictionReason,
    Namespace,
    NamespaceKey,
    PrefixCache,
    RadixCache,
    namespace_key,
)
from mainstem.tree.node import Node
from mainstem.tree.tenancy import is_public, tenant_key

# So many tenants are remembered before it is looked who of them can be forgotten.
FEW_TENANTS = 64


class Tenant:
    """One of those who share a scheduler.

    Attributes:
        key: the beginning of its namespaces that names it.
        queue: its requests that wait.
        queued_tokens: how many these have.
        served: work done for it, beginning with what others had when it came.
        seats: how many of its requests run.
    """

    __slots__ = ("key", "queue", "queued_tokens", "seats", "served")

    def __init__(self, key: NamespaceKey, queue: WaitingQueue, served: float) -> None:
        self.key = key
        self.queue = queue
        self.queued_tokens = 0
        self.served = served
        self.seats = 0


class TenantLoad(NamedTuple):
    """How many requests of a tenant wait and run."""

    waiting: int
    running: int


class TenantQueues:
    """All that wait, over the tenants; with one tenant it is its queue.

    Args:
        order: of the queues.
        cache: that the requests will use.
        lenience: see `Fairness`.
        by_tenant: whether the first two parts of a namespace name a tenant; otherwise all are one.

    Attributes:
        defers: whether a tenant is to wait until those have been let in for whom this is not so.
        latest: the request that was added last.
    """

    latest: Request

    def __init__(
        self, order: type[WaitingQueue], cache: PrefixCache, lenience: float = 1.0, *, by_tenant: bool = False
    ) -> None:
        if order.follows_tree:
            if not isinstance(cache, RadixCache):
                raise ConfigError(
                    "longest prefix first follows the radix tree; with another prefix cache, use fcfs or dfs"
                )
            cache.on_evict.append(self._evicted)
        if order.keeps_wanted and isinstance(cache, RadixCache):
            cache.wanted = self._wanted
        self.defers: Callable[[Tenant], bool] = lambda _: False
        self._make = partial(order, cache, lenience)
        self._by_tenant = by_tenant
        self._tenants: dict[NamespaceKey, Tenant] = {}
        self._waiting: dict[NamespaceKey, Tenant] = {}
        self._live: dict[NamespaceKey, Tenant] = {}
        self._time = VirtualTime()
        self._served = 0.0  # by the tenant that was let in last, before that
        # Heaps of who waits by what they were served; entries that no longer hold are dropped on top. In `_deferred`
        # are those for whom it is not time, in `_aside` those of whom nobody can be seen, both until `show_all`.
        self._turns: list[tuple[float, int, Tenant]] = []
        self._deferred: list[tuple[float, int, Tenant]] = []
        self._aside: list[Tenant] = []
        self._favoured: Tenant | None = None
        self._held_back: set[Tenant] = set()
        self._changed: set[WaitingQueue] = set()
        self._serials = count()
        self._remembered = FEW_TENANTS
        self._asked_of: Node | None = None  # the leaf that `_wanted` looked at last, and what it found
        self._asked_for = 0

    def __len__(self) -> int:
        return sum(len(tenant.queue) for tenant in self._waiting.values())

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """All of them, by their places."""
        return iter(sorted((r for tenant in self._waiting.values() for r in tenant.queue), key=lambda r: r.order))

    # -- tenants --------------------------------------------------------------------------------------------------

    @property
    def live(self) -> dict[NamespaceKey, Tenant]:
        """The tenants of whom requests wait or run."""
        return self._live

    @property
    def num_waiting_tenants(self) -> int:
        """Of how many tenants requests wait."""
        return len(self._waiting)

    def load(self) -> dict[Namespace, TenantLoad]:
        """What every live tenant has in the queue and running, by the parts of its namespaces that name it."""
        return {
            tuple(part for _, part in key): TenantLoad(len(tenant.queue), tenant.seats)  # type: ignore[misc]
            for key, tenant in list(self._live.items())  # other threads may ask
        }

    def tenant_of(self, request: Request) -> Tenant:
        """Whose a request is, that waits or runs."""
        return self._tenants[self.key_of(request.namespace)]

    def key_of(self, namespace: Namespace) -> NamespaceKey:
        """The key of the tenant whose a namespace is."""
        return tenant_key(namespace_key(namespace)) if self._by_tenant else ()

    def _enter(self, key: NamespaceKey) -> Tenant:
        tenant = self._tenants.get(key)
        if tenant is None:
            if len(self._tenants) >= self._remembered:
                self._forget()
            tenant = self._tenants[key] = Tenant(key, self._make(), 0.0)
        return tenant

    def _forget(self) -> None:
        """Forget tenants who would begin with no less if they came anew."""
        for tenant in list(self._tenants.values()):
            if tenant.key not in self._live and tenant.served <= self._served:
                del self._tenants[tenant.key]
        self._remembered = max(FEW_TENANTS, 2 * len(self._tenants))

    def _least_served(self) -> float:
        """With what a tenant begins: as much as the one had that was let in last, or who waits now if that is less."""
        turn = self._first_of(self._turns)
        return self._served if turn is None else min(self._served, turn.served)

    def _settle(self, tenant: Tenant) -> None:
        """Note whether anything of a tenant waits, and whether any of it is left."""
        if not tenant.queue:
            self._waiting.pop(tenant.key, None)
            if not tenant.seats:
                self._live.pop(tenant.key, None)

    def _file(self, tenant: Tenant) -> None:
        """Put a tenant who waits where it belongs among the turns."""
        if len(self._turns) > 2 * len(self._waiting) + 16:
            self._turns = [(t.served, next(self._serials), t) for t in self._waiting.values()]
            heapify(self._turns)
        else:
            heappush(self._turns, (tenant.served, next(self._serials), tenant))

    # -- who waits ------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """A request waits, at the place that its `order` says."""
        tenant = self._enter(self.key_of(request.namespace))
        if tenant.key not in self._live:
            tenant.served = max(tenant.served, self._least_served())
        self._live[tenant.key] = tenant
        tenant.queue.add(request)
        tenant.queued_tokens += len(request.tokens)
        self.latest = request
        if tenant.key not in self._waiting:
            self._waiting[tenant.key] = tenant
            self._file(tenant)

    def remove(self, request: Request) -> None:
        """It leaves, let in or not."""
        tenant = self.tenant_of(request)
        tenant.queue.remove(request)
        tenant.queued_tokens -= len(request.tokens)
        self._settle(tenant)

    def next(self, work_of: Callable[[Request], float]) -> Request | None:
        """Who is to be let in next, of those who are not hidden: the tenant whose turn it is chooses.

        Args:
            work_of: tokens that a request would put through the model.
        """
        tenant = self._turn()
        return None if tenant is None else tenant.queue.next(work_of)

    def favour(self, tenant: Tenant | None) -> None:
        """It is this tenant's turn for one request."""
        self._favoured = tenant

    def may_be_passed(self, tenant: Tenant) -> bool:
        """Whether others may go before this tenant in its turn."""
        return len(self._waiting) > 1 and tenant is not self._favoured

    def hold_back(self, tenant: Tenant) -> None:
        """Let in nobody of this tenant, and nobody who is to come after it, until `show_all`."""
        self._held_back.add(tenant)

    def _turn(self) -> Tenant | None:
        if len(self._waiting) == 1:
            (tenant,) = self._waiting.values()
            return None if tenant in self._held_back else tenant
        favoured = self._favoured
        if favoured is not None and self._can_be_next(favoured):
            return favoured
        while (next_one := self._first_of(self._turns)) is not None:
            if not self.defers(next_one):
                return next_one
            heappush(self._deferred, heappop(self._turns))
        if any(tenant.queue.any_visible and not self.defers(tenant) for tenant in self._held_back):
            return None
        return self._first_of(self._deferred)

    def _can_be_next(self, tenant: Tenant) -> bool:
        return tenant.queue.any_visible and tenant not in self._held_back

    def _first_of(self, turns: list[tuple[float, int, Tenant]]) -> Tenant | None:
        while turns:
            served, _, tenant = turns[0]
            if tenant.served == served and tenant.key in self._waiting:
                if self._can_be_next(tenant):
                    return tenant
                self._aside.append(tenant)
            heappop(turns)
        return None

    def hide(self, request: Request, length: int) -> None:
        """Pass over those that begin with so many tokens of this request, until `show_all`."""
        queue = self.tenant_of(request).queue
        self._changed.add(queue)
        queue.hide(request, length)

    def hide_one(self, request: Request) -> None:
        """Pass over this request and those that go on from it, until `show_all`."""
        queue = self.tenant_of(request).queue
        self._changed.add(queue)
        queue.hide_one(request)

    def is_hidden(self, request: Request) -> bool:
        """Whether this request is passed over, or its tenant held back."""
        tenant = self.tenant_of(request)
        return tenant in self._held_back or tenant.queue.is_hidden(request)

    def show_all(self) -> None:
        """Nobody is hidden any more, and nobody held back or deferred."""
        for queue in self._changed:
            queue.show_all()
        self._changed.clear()
        again = [*self._aside, *(tenant for _, _, tenant in self._deferred)]
        self._aside.clear()
        self._deferred.clear()
        self._held_back.clear()
        for tenant in again:
            self._file(tenant)

    def within(self, request: Request, stop: int) -> Sequence[Request]:
        """Those whose prompts are among the first `stop` tokens of this request, by their places."""
        return self.tenant_of(request).queue.within(request, stop)

    # -- when prompts would be done -------------------------------------------------------------------------------

    def finish_tag(self, request: Request, num_tokens: int) -> float:
        """The finish tag that a waiting request would have if so many of its tokens were to be computed."""
        return self._time.finish_tag(self.tenant_of(request), num_tokens)

    def begun(self, request: Request) -> None:
        """A request was let in, and holds what is cached of it: give it its finish tag."""
        request.finish_tag = self._time.begin(self.tenant_of(request), request.num_remaining)

    def broken_off(self, request: Request, num_tokens: int) -> None:
        """So many tokens of a request's prompt will not be computed."""
        self._time.give_back(self.tenant_of(request), num_tokens)

    def advance(self, num_tokens: int) -> None:
        """A step computes so many tokens of prompts."""
        self._time.advance(num_tokens, {tenant: tenant.queued_tokens for tenant in self._waiting.values()})

    # -- what happens to others -----------------------------------------------------------------------------------

    def charge(self, request: Request, work: float, before: int | None = None) -> None:
        """A request is let in and will do so much work before those who wait; see `Fairness.note`.

        Its tenant was served so much more, or less if that takes back what was too much.
        """
        tenant = self.tenant_of(request)
        tenant.queue.charge(request, work, before)
        tenant.served += work
        if work and tenant.key in self._waiting:
            self._file(tenant)

    def admitted(self, request: Request) -> None:
        """A request was taken out because it runs now."""
        tenant = self.tenant_of(request)
        self._served = max(self._served, tenant.served - request.charged)
        tenant.seats += 1
        self._live[tenant.key] = tenant
        tenant.queue.admitted(request)
        if tenant is self._favoured:
            self._favoured = None

    def released(self, request: Request) -> None:
        """A request runs no longer."""
        tenant = self.tenant_of(request)
        tenant.seats -= 1
        self._settle(tenant)

    def computed(self, request: Request, length: int) -> None:
        """The first `length` tokens of a request are in the cache, or will be after this step."""
        self.tenant_of(request).queue.computed(request, length)

    def withdrawn(self, request: Request) -> None:
        """Not all of a request's tokens came into the cache that were said to."""
        self.tenant_of(request).queue.withdrawn(request)

    def _evicted(self, leaf: Node, kept: int, _: EvictionReason) -> None:
        if leaf is self._asked_of and kept >= self._asked_for:
            return  # nobody who waits begins with what goes
        namespace = leaf.space.namespace
        told = self._who_waits_in(namespace)
        if told:
            tokens = tokens_to(leaf)
            for tenant in told:
                tenant.queue.evicted(namespace, tokens, len(tokens) - len(leaf.key) + kept)

    def _wanted(self, leaf: Node) -> int:
        """How many tokens of a leaf's edge requests that wait begin with; asked just before it goes, or is spared."""
        self._asked_of, self._asked_for = leaf, 0
        for tenant in self._who_waits_in(leaf.space.namespace):
            self._asked_for = max(self._asked_for, tenant.queue.wanted(leaf))
        return self._asked_for

    def _who_waits_in(self, namespace: NamespaceKey) -> list[Tenant]:
        """Whose waiting requests may use what is in a namespace of the tree."""
        if is_public(namespace):
            return list(self._waiting.values())
        tenant = self._waiting.get(tenant_key(namespace) if self._by_tenant else ())
        return [] if tenant is None else [tenant]

    def check_integrity(self) -> None:
        """Between two steps: every queue is in order, and every tenant who waits has a turn.

        Raises:
            AssertionError: naming the broken invariant.
        """
        turns = {(tenant.key, served) for served, _, tenant in self._turns}
        for key, tenant in self._tenants.items():
            tenant.queue.check_integrity()
            assert (key in self._waiting) == bool(tenant.queue), f"{key} is thought to wait or not, and does otherwise"
            assert (key in self._live) == bool(tenant.queue or tenant.seats), f"it is wrong whether {key} is done"
            assert not tenant.queue or (key, tenant.served) in turns, f"{key} waits and has no turn"
        assert not self._aside, "somebody is left aside"
        assert not self._deferred, "somebody is left deferred"
        assert not self._held_back, "somebody is left held back"
