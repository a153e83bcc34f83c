"""Lets waiting requests in: as many as find a seat, memory, and tokens of the step.

It knows who waits, what each would take, and the step that is under way. What others give up so that somebody can be
let in is for `mainstem.scheduler.scheduler`.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence

from mainstem.scheduler.candidates import Candidate, Candidates, Donors, Room
from mainstem.scheduler.conversations import Conversations
from mainstem.scheduler.request import Request, RequestState
from mainstem.scheduler.shares import Shares
from mainstem.scheduler.slots import Slots
from mainstem.scheduler.step import Step
from mainstem.scheduler.tenants import Tenant, TenantQueues
from mainstem.tree import MatchResult, PrefixCache, Reuse

# Share of the pool that a new request must leave for those that already run, so that they are not preempted at once.
ADMISSION_HEADROOM = 0.01
# So many tenants are asked in a step, in vain, whether their next prompts are to come before those that are computed,
# which takes looking for them in the prefix cache. Of so many it is remembered that they were, until all have been.
MOST_PUT_OFF, PUT_OFF_REMEMBERED = 8, 64


class Admission:
    """Chooses who is let in, and lets them in.

    Args:
        cache: where slots come from and computed tokens go.
        waiting: the queue.
        running: who runs, by their places; the scheduler's own list, to which those are added that are let in.
        shares: of those who wait or run.
        conversations: whose prefixes may give way.
        candidates: what it takes to let somebody in.
        slots: of the requests.
        begin: is told of each request that is let in, with what is cached of it, just before it runs.

    Attributes:
        lacks_memory: the first request, in the step that is under way or was last, for which there was no memory.
        claim: the request that the next step makes way for.
    """

    def __init__(
        self,
        cache: PrefixCache,
        waiting: TenantQueues,
        running: list[Request],
        shares: Shares,
        conversations: Conversations,
        candidates: Candidates,
        slots: Slots,
        begin: Callable[[Request, MatchResult], None],
    ) -> None:
        self.lacks_memory: Request | None = None
        self.claim: Request | None = None
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._shares = shares
        self._conversations = conversations
        self._candidates = candidates
        self._slots = slots
        self._begin = begin
        self._put_off: dict[Tenant, None] = {}  # whose next prompts have been looked at

    def room_for(self, request: Request) -> Room:
        """What a request needs, and could have beside what it must leave for others."""
        room = self._candidates.room_for(request, None)
        return Room(room.needed, room.available - self._headroom(request))

    def admit(self, step: Step, budget: int) -> None:
        """Let waiting requests in, in the order of the queue.

        Those that wait for tokens that another is computing are passed over; one that lacks memory holds up the rest,
        but for those that continue conversations whose prefixes are kept. One whose prompt will not be done in this
        step lets those of other tenants go before that would be done before it.
        """
        if self._waiting and (self._shares.free_seats or self._shares.claims_on_seats):
            self._admit(step, budget)

    def admit_before(self, prefills: Sequence[Request], step: Step, budget: int) -> int:
        """Let in those of other tenants that would be done before prompts that are being computed.

        Tenants are asked in their turns, some of them in every step if they are many.

        Args:
            prefills: these prompts, in the order of their finish tags.
            step: that is under way.
            budget: most tokens for those that are let in.

        Returns:
            What is left of the budget.
        """
        if not budget or not self._waiting or not self._shares.free_seats:
            return budget
        for tenant in (*map(self._waiting.tenant_of, prefills), *self._put_off):
            self._waiting.hold_back(tenant)
        return self._admit(step, budget, prefills[0].finish_tag)

    def _admit(self, step: Step, budget: int, limit: float = math.inf) -> int:
        """Let in those whose finish tags are less than `limit`; returns what is left of the budget."""
        donors = Donors(step.output, self._running if self._cache.reuse is Reuse.COMPUTED else ())
        for donor in donors.requests:
            self._candidates.pass_over(donor, donors)
        last: Request | None = None
        left_to_ask = MOST_PUT_OFF
        # A seat can be claimed without any token.
        while left_to_ask and (budget or not self._shares.free_seats):
            candidate = self._next(donors)
            if candidate is None:
                self._put_off.clear()  # all have been asked
                break
            request, tenant = candidate.request, self._waiting.tenant_of(candidate.request)
            tag = self._waiting.finish_tag(request, candidate.room.needed)
            if tag >= limit:
                self._waiting.hold_back(tenant)
                self._put_off[tenant] = None
                left_to_ask -= 1
            elif not self._shares.free_seats:
                self._note_claim(candidate)
                break
            elif candidate.follows:
                self._follow(candidate, donors, step)
            elif last is None and candidate.room.needed > budget and self._waiting.may_be_passed(tenant):
                self._waiting.hold_back(tenant)
                last, limit = request, tag
            else:
                budget -= self._admit_one(candidate, donors, step, budget)
        if len(self._put_off) >= PUT_OFF_REMEMBERED:
            self._put_off.clear()
        if last is not None and budget and self._shares.free_seats and self.lacks_memory is None:
            budget -= self._admit_one(self._candidates.consider(last, donors), donors, step, budget)
        if budget == 0:
            self._admit_followers(donors, step)
        self._waiting.show_all()
        return budget

    def _admit_one(self, candidate: Candidate, donors: Donors, step: Step, budget: int) -> int:
        """Let this one in if there is memory for it; returns how many tokens it takes."""
        request = candidate.request
        if not self._try_start(candidate, step):
            self.lacks_memory = self.lacks_memory or request
            self._note_claim(candidate)
            self._waiting.hide_one(request)
            return 0
        num_tokens = min(budget, step.most_tokens(request))
        step.schedule(request, num_tokens)
        if self._cache.reuse is Reuse.COMPUTED:
            donors.add(request, len(step.output.scheduled) - 1, step.output)
            self._candidates.pass_over(request, donors)
        return num_tokens

    def _next(self, donors: Donors) -> Candidate | None:
        """Who is next of those that are not passed over."""
        if not self._shares.free_seats and not self._shares.claims_on_seats:
            return None
        if self.lacks_memory is None:
            return self._candidates.next(donors)
        # It waits until conversations end; turns of these may be next.
        return self._candidates.first_of(self._conversations.waiting(), donors)

    def _note_claim(self, candidate: Candidate) -> None:
        """The next step makes way for a request that cannot be let in, if that is its due."""
        if self.claim is None and self._shares.may_claim(candidate.request, candidate.room.needed):
            self.claim = candidate.request

    def _admit_followers(self, donors: Donors, step: Step) -> None:
        """Let in those that need no token of the budget, since others compute all of theirs in this step."""
        followers = {
            request.order: request
            for other in donors.requests
            for request in self._waiting.within(other, donors.stop_of(other))
            if request.namespace == other.namespace
        }
        for _, request in sorted(followers.items()):
            if self._shares.free_seats and (candidate := self._candidates.consider(request, donors)).follows:
                self._follow(candidate, donors, step)

    def _follow(self, candidate: Candidate, donors: Donors, step: Step) -> None:
        """Admit a request whose every token another one computes in this step: it only samples."""
        assert candidate.donor is not None
        self._start(candidate, step)
        step.follow(candidate.request, donors.entries[candidate.donor.request])

    def _try_start(self, candidate: Candidate, step: Step) -> bool:
        """Admit a request if memory allows; false if it must wait."""
        request, room = candidate.request, candidate.room
        if request.score_from is not None and not step.rows_left:
            return False
        headroom = self._headroom(request)
        while room.available < room.needed + headroom:
            # What runs, or continues what is kept, is worth more than what others may come back for.
            if self._running and not self._conversations.continues(request):
                return False
            if not self._conversations.give_way(request):
                return False
            room = self._candidates.room_for(request, candidate.donor)
        self._start(candidate, step)
        self._slots.reserve(request, room.needed)
        self._shares.changed()
        return True

    def _headroom(self, request: Request) -> int:
        """Slots that a new request must leave for others beside what it needs."""
        if not self._running:
            return 0
        next_pages = len(self._running) * self._cache.page_size
        headroom = max(next_pages, int(ADMISSION_HEADROOM * self._cache.capacity))
        return headroom if self._conversations.continues(request) else headroom + self._conversations.room_to_grow()

    def _start(self, candidate: Candidate, step: Step) -> None:
        """Move a request to the running ones, its page table covering all that is or is being computed."""
        request = candidate.request
        self._waiting.remove(request)
        request.charged = candidate.work
        self._waiting.charge(request, request.charged)
        self._waiting.admitted(request)
        match = request.view.match_prefix(request.tokens.array[: request.num_reusable])
        self._cache.lock(match.handle)
        step.join(request, match, candidate.donor)
        self._waiting.begun(request)
        self._begin(request, match)
        request.common_lengths.clear()
        request.state = RequestState.RUNNING
        self._conversations.left(request)
        insort(self._running, request, key=lambda r: r.order)
