"""Conversations that are between two turns while others wait: their places in the queue, and their prefixes.

When the conversations that go on at the same time do not all fit the pool, each turn evicts what another one needs
next, and every turn computes its whole history. So while requests wait, a reply that has ended leaves a lock on its
prefix, and the turn that goes on from it takes its place in the queue: a conversation is served like one long request,
and those for which there is no room wait until others are done (Denning 1968 ran programs by their working sets so).

What is kept must be worth it. Nothing is while most replies are the last of their conversation. A lock lasts for some
times the usual pause between two turns, and never longer than computing the whole pool takes: keeping a part of the
pool idle for that time costs as much as computing that part again (ski rental: Karlin et al. 1988). Locks give way to
what runs already, that of the conversation which came last first. So many are known at most; when there are too many,
the one that ended first is forgotten of the tenant that has most, so nobody with many pushes out another's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from mainstem.owned import Owned
from mainstem.pages import SlotArray
from mainstem.scheduler.request import Request
from mainstem.tree import Namespace, PrefixCache, PrefixHandle, TokenArray

# Replies are kept while at least this share of them is followed by another turn.
LEAST_RETURN_RATE = 0.5
# A lock lasts for so many times the mean pause between a reply and the next turn.
PAUSES_KEPT = 4.0
# Who is let in leaves room for so many turns of each conversation that is kept.
TURNS_OF_ROOM = 4
# Over about how many values means are taken, and how many conversations between two turns are known.
REMEMBERED, MOST_KNOWN = 16, 512


@dataclass(slots=True, eq=False)
class Conversation:
    """One that may go on.

    Attributes:
        order: its place in the queue.
        namespace: of its requests.
        tokens: int32[n], what is computed of it.
        slots: int32[n], where that lies.
        handle: of these tokens, locked; None without a lock.
        since: when its last reply ended.
    """

    order: int
    namespace: Namespace
    tokens: TokenArray
    slots: SlotArray
    handle: PrefixHandle | None
    since: float


class Conversations:
    """Those that are between two turns, or whose next turn waits.

    Args:
        cache: that holds their prefixes.
        tenant_of: whose a namespace is.

    Attributes:
        return_rate: of the last replies, the share that was followed by another turn.
    """

    def __init__(self, cache: PrefixCache, tenant_of: Callable[[Namespace], Hashable]) -> None:
        self._cache = cache
        self._tenant_of = tenant_of
        self._idle: dict[Conversation, None] = {}  # by the ends of their replies
        self._owned: Owned[Conversation] = Owned()  # the same, by tenant
        self._returned: dict[Request, Conversation] = {}
        self.return_rate = 0.0
        self._token_seconds = math.inf
        self._pause = math.inf
        self._turn = math.inf

    def __len__(self) -> int:
        """How many prefixes are kept."""
        return sum(conversation.handle is not None for conversation in self._all())

    # -- time -----------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When the next lock ends, if nothing happens before."""
        return min((c.since + self._keep_seconds for c in self._idle if c.handle is not None), default=math.inf)

    @property
    def _rental(self) -> float:
        """Seconds in which the whole pool could be computed; after these nobody is expected back."""
        return self._token_seconds * self._cache.capacity

    @property
    def _keep_seconds(self) -> float:
        return min(self._rental, PAUSES_KEPT * self._pause)

    def measure(self, seconds: float, tokens: int) -> None:
        """A step of many tokens took so long."""
        self._token_seconds = _mean(self._token_seconds, seconds / tokens)

    def expire(self, now: float) -> None:
        """End the locks that have lasted long enough."""
        while self._idle and now > (first := next(iter(self._idle))).since + self._rental:
            self._unlock(first)
            self._forget(first)
            self.return_rate = _mean(self.return_rate, 0.0)
        if now > self.deadline:
            for conversation in self._idle:
                if now > conversation.since + self._keep_seconds:
                    self._unlock(conversation)

    # -- turns ----------------------------------------------------------------------------------------------------

    def ended(self, request: Request, now: float) -> None:
        """A reply has ended; its request still has its lock on all that was computed."""
        assert request.handle is not None
        handle = None
        if self.return_rate >= LEAST_RETURN_RATE:
            self._cache.lock(request.handle)
            handle = request.handle
        length = request.num_owned
        tokens, slots = request.tokens.array[:length].copy(), request.table.slots[:length].copy()
        conversation = Conversation(request.order, request.namespace, tokens, slots, handle, now)
        self._idle[conversation] = None
        self._owned.add(conversation, self._tenant_of(request.namespace), 1)
        self._turn = _mean(self._turn, length - request.num_computed_before)
        if len(self._idle) > MOST_KNOWN:
            one_too_many = self._owned.first(by_size=False)
            self._unlock(one_too_many)
            self._forget(one_too_many)

    def place_of(self, request: Request, now: float) -> int | None:
        """The place of the conversation that a new request continues, from now on the request's own."""
        tokens = request.tokens.array
        for conversation in self._idle:
            length = len(conversation.tokens)
            if (
                length < len(tokens)
                and conversation.tokens[-1] == tokens[length - 1]
                and conversation.namespace == request.namespace
                and np.array_equal(conversation.tokens, tokens[:length])
            ):
                self._forget(conversation)
                self._returned[request] = conversation
                self.return_rate = _mean(self.return_rate, 1.0)
                self._pause = _mean(self._pause, now - conversation.since)
                return conversation.order
        return None

    def continues(self, request: Request) -> bool:
        """Whether a waiting request continues a conversation whose prefix is kept."""
        return request in self._returned and self._returned[request].handle is not None

    def waiting(self) -> list[Request]:
        """The requests that continue one whose prefix is kept."""
        return [request for request, conversation in self._returned.items() if conversation.handle is not None]

    def left(self, request: Request) -> None:
        """A request waits no longer: it runs, with a lock of its own, or was taken back."""
        conversation = self._returned.pop(request, None)
        if conversation is not None:
            self._unlock(conversation)

    # -- memory ---------------------------------------------------------------------------------------------------

    def room_to_grow(self) -> int:
        """Tokens that a new conversation should leave for the next turns of those that are kept."""
        kept = len(self)
        return int(TURNS_OF_ROOM * kept * self._turn) if kept else 0

    def give_way(self, request: Request | None = None, of: Callable[[Namespace], bool] = lambda _: True) -> bool:
        """Give up a prefix, but not that of this request, and only where `of` allows it; false if there is none.

        Whose next turn has not come goes first, and of those the conversation that came last.
        """
        mine = self._returned.get(request) if request is not None else None
        for group in (list(self._idle), [c for c in self._returned.values() if c is not mine]):
            kept = [c for c in group if c.handle is not None and of(c.namespace)]
            if kept:
                self._unlock(max(kept, key=lambda conversation: conversation.order))
                return True
        return False

    def give_up(self) -> None:
        """Nobody waits: keep nothing."""
        for conversation in self._all():
            self._unlock(conversation)
        self._idle.clear()
        self._owned = Owned()
        self._returned.clear()

    def slots(self) -> Iterator[int]:
        """All that is kept, shared ones as often as they are."""
        for conversation in self._all():
            if conversation.handle is not None:
                yield from conversation.slots.tolist()

    def _all(self) -> Iterator[Conversation]:
        yield from self._idle
        yield from self._returned.values()

    def _forget(self, conversation: Conversation) -> None:
        """It is no longer between two turns."""
        del self._idle[conversation]
        self._owned.remove(conversation)

    def _unlock(self, conversation: Conversation) -> None:
        if conversation.handle is not None:
            self._cache.unlock(conversation.handle)
            conversation.handle = None


def _mean(mean: float, value: float) -> float:
    """A moving mean with one more value; infinite before the first."""
    return value if math.isinf(mean) else mean + (value - mean) / REMEMBERED
