"""Conversations that are between two turns while others wait: their places in the queue, and their prefixes.

When the conversations that go on at the same time do not all fit the pool, each turn would evict what another one needs
next, and every turn would compute its whole history. So while requests wait, a reply that has ended leaves a lock on its
prefix, and the turn that goes on from it takes its place in the queue: a conversation is served like one long request,
and those for which there is no room wait until others are done. Denning's working sets (1968) are run the same way.

A lock lasts for as long as computing the whole pool would take: keeping a part of the pool idle for that time costs as
much as computing that part again (ski rental: Karlin et al. 1988). It gives way earlier to what runs already, the
conversation that came last first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mainstem.pages import SlotArray
from mainstem.scheduler.request import Request
from mainstem.tree import Namespace, PrefixCache, PrefixHandle, TokenArray

# Full steps over which the time that a token takes is averaged.
STEPS_REMEMBERED = 16


@dataclass(slots=True, eq=False)
class Conversation:
    """One that may go on.

    Attributes:
        order: its place in the queue.
        namespace: of its requests.
        tokens: int32[n], what is computed of it.
        slots: int32[n], where that lies.
        handle: of these tokens, locked; None once the lock has given way.
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
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._idle: list[Conversation] = []  # by the ends of their replies
        self._returned: dict[Request, Conversation] = {}
        self._token_seconds = math.inf

    @property
    def lifetime(self) -> float:
        """For how many seconds one is expected to go on."""
        return self._token_seconds * self._cache.capacity

    @property
    def deadline(self) -> float:
        """When the next one is given up, if nothing happens before."""
        return self._idle[0].since + self.lifetime if self._idle else math.inf

    def measure(self, seconds: float, tokens: int) -> None:
        """A full step took so long for so many tokens."""
        last = self._token_seconds
        now = seconds / tokens
        self._token_seconds = now if math.isinf(last) else last + (now - last) / STEPS_REMEMBERED

    def expire(self, now: float) -> None:
        """Give up those that have not gone on for too long."""
        while self._idle and now > self.deadline:
            self._unlock(self._idle.pop(0))

    # -- turns ----------------------------------------------------------------------------------------------------

    def ended(self, request: Request, now: float) -> None:
        """A reply has ended, and its request still has its lock on all that was computed."""
        assert request.handle is not None
        self._cache.lock(request.handle)
        tokens, slots = request.tokens.array[: request.num_owned].copy(), request.table.slots[: request.num_owned].copy()
        self._idle.append(
            Conversation(request.order, request.namespace, tokens, slots, request.handle, now)
        )

    def place_of(self, request: Request) -> int | None:
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
                self._idle.remove(conversation)
                self._returned[request] = conversation
                return conversation.order
        return None

    def continues(self, request: Request) -> bool:
        """Whether a waiting request continues a conversation whose prefix is still kept."""
        return request in self._returned and self._returned[request].handle is not None

    def left(self, request: Request) -> None:
        """A request waits no longer: it runs, with a lock of its own, or was taken back."""
        conversation = self._returned.pop(request, None)
        if conversation is not None:
            self._unlock(conversation)

    # -- memory ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many prefixes are kept."""
        return sum(conversation.handle is not None for conversation in self._all())

    def give_way(self, request: Request | None = None) -> bool:
        """Give up a prefix, but not that of this request; false if there is none.

        Whose next turn has not come goes first, and of those the conversation that came last.
        """
        mine = self._returned.get(request) if request is not None else None
        for group in (self._idle, [c for c in self._returned.values() if c is not mine]):
            kept = [conversation for conversation in group if conversation.handle is not None]
            if kept:
                self._unlock(max(kept, key=lambda conversation: conversation.order))
                return True
        return False

    def give_up(self) -> None:
        """Nobody waits: keep nothing."""
        for conversation in self._all():
            self._unlock(conversation)
        self._idle.clear()
        self._returned.clear()

    def slots(self) -> Iterator[int]:
        """All that is kept, shared ones as often as they are."""
        for conversation in self._all():
            if conversation.handle is not None:
                yield from conversation.slots.tolist()

    def _all(self) -> Iterator[Conversation]:
        yield from self._idle
        yield from self._returned.values()

    def _unlock(self, conversation: Conversation) -> None:
        if conversation.handle is not None:
            self._cache.unlock(conversation.handle)
            conversation.handle = None
