"""Who may be let in, what that takes, and which running requests are computing what others need too.

It knows requests, the queue and the step's schedule; who then runs is decided in `mainstem.scheduler.scheduler`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from mainstem.scheduler.output import SchedulerOutput
from mainstem.scheduler.request import Request
from mainstem.scheduler.tenants import TenantQueues
from mainstem.tree import PrefixCache, common_length

# A reply is expected to be as long as the last ones were, of which about so many are remembered; the first is guessed.
REPLIES_REMEMBERED, FIRST_GUESS = 32, 64.0
# What a token of a reply keeps others waiting for, in tokens of a prompt, which are computed many at once.
REPLY_WEIGHT = 2.5


class Donor(NamedTuple):
    """A running request that computes what another one needs, and up to where they agree."""

    request: Request
    common: int


class Donors:
    """Running requests that compute tokens which others may need too, and how far they come in this step.

    Attributes:
        requests: who they are.
        entries: where in the step's schedule those are that are in it.
    """

    def __init__(self, output: SchedulerOutput, running: Collection[Request]) -> None:
        self.requests: list[Request] = []
        self.entries: dict[Request, int] = {}
        self._stops: dict[Request, int] = {}
        entries = {scheduled.request: entry for entry, scheduled in enumerate(output.scheduled)}
        for request in running:
            if request.num_remaining > 1 or request.num_computed < request.num_prompt:
                self.add(request, entries.get(request), output)

    def add(self, request: Request, entry: int | None, output: SchedulerOutput) -> None:
        """One more; `entry` is its place in the schedule, if it has one."""
        self.requests.append(request)
        if entry is not None:
            self.entries[request] = entry
            self._stops[request] = output.scheduled[entry].stop

    def stop_of(self, request: Request) -> int:
        """How many of its tokens are computed after this step."""
        return self._stops.get(request, request.num_computed)


class Room(NamedTuple):
    """Slots that a waiting request needs, and how many it could have."""

    needed: int
    available: int


class Candidate(NamedTuple):
    """A waiting request that could be let in, and what that would take.

    Attributes:
        work: what it would keep others waiting for, in tokens of prompts.
    """

    request: Request
    donor: Donor | None
    room: Room
    work: float

    @property
    def follows(self) -> bool:
        """Whether another request computes all of its tokens in this step."""
        return self.donor is not None and self.donor.common == len(self.request.tokens)


class Candidates:
    """Chooses among those that wait.

    Args:
        cache: that they will use.
        waiting: the queue.
        running: who runs; the scheduler's own list.
        cache_reserve: share of the pool that they may not take from the cache while others run.
    """

    def __init__(
        self, cache: PrefixCache, waiting: TenantQueues, running: Collection[Request], cache_reserve: float
    ) -> None:
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._reserve = int(cache_reserve * cache.capacity)
        self._mean_reply = FIRST_GUESS

    def learn(self, reply_tokens: int) -> None:
        """A reply had so many tokens."""
        self._mean_reply += (reply_tokens - self._mean_reply) / REPLIES_REMEMBERED

    def next(self, donors: Donors) -> Candidate | None:
        """Whom the queue would let in next."""
        considered: dict[Request, Candidate] = {}

        def work_of(request: Request) -> float:
            considered[request] = self.consider(request, donors)
            return considered[request].work

        request = self._waiting.next(work_of)
        return None if request is None else considered.get(request) or self.consider(request, donors)

    def first_of(self, requests: Collection[Request], donors: Donors) -> Candidate | None:
        """The first of these waiting requests that is not passed over."""
        seen = [request for request in requests if not self._waiting.is_hidden(request)]
        return self.consider(min(seen, key=lambda request: request.order), donors) if seen else None

    def consider(self, request: Request, donors: Donors) -> Candidate:
        """What it would take to let a request in."""
        donor = self._donor_of(request, donors)
        follows = donor is not None and donor.common == len(request.tokens)
        room = Room(0, 0) if follows else self.room_for(request, donor)
        # Its reply is expected to be as long as those of others.
        left = request.num_prompt + request.max_tokens - len(request.tokens)
        reply = min(left, self._mean_reply) if request.score_from is None else 0
        return Candidate(request, donor, room, room.needed + REPLY_WEIGHT * reply)

    def room_for(self, request: Request, donor: Donor | None) -> Room:
        """The slots that a request needs; those of which `donor` computes the tokens, it does not."""
        # At least the last token is computed, for its logits.
        found = request.view.peek(request.tokens.array[: request.num_reusable])
        known = max(found.length, donor.common if donor else 0)
        missing = len(request.tokens) - known
        stats = self._cache.stats()
        reserve = self._reserve if self._running else 0
        takeable = max(stats.evictable - found.evictable - reserve, 0)
        return Room(missing + -missing % self._cache.page_size, stats.free + takeable)

    def pass_over(self, other: Request, donors: Donors) -> None:
        """Hide from this step's admission those who need tokens that a running request will compute in a later one."""
        stop = donors.stop_of(other)
        size = self._cache.page_size
        next_page = stop - stop % size + size
        if next_page <= len(other.tokens):
            self._waiting.hide(other, next_page)

    def _donor_of(self, request: Request, donors: Donors) -> Donor | None:
        """The request of this step, if any, that is about to compute the most of what this one lacks."""
        best: Donor | None = None
        for other in donors.requests:
            if other.namespace == request.namespace:
                common = _known_common_length(request, other)
                if request.score_from is not None:
                    common = min(common, request.num_reusable)
                common -= common % self._cache.page_size
                if common > other.num_computed and (best is None or common > best.common):
                    best = Donor(other, common)
        if best is None or best.common == len(request.tokens):
            return best  # even if all of it is cached, the last token's logits are not
        cached = request.view.peek(request.tokens.array).length
        return best if best.common > cached else None


def _known_common_length(request: Request, other: Request) -> int:
    """How many leading tokens a waiting request has in common with a running one; worked out once for each pair."""
    known = request.common_lengths.get(other.order)
    if known is None:
        known = common_length(request.tokens.array, other.tokens.array)
        request.common_lengths[other.order] = known
    return known
