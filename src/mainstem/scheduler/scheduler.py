"""Decides which requests run in the next step, how many tokens of each, and who gives way when memory runs out.

The token budget goes to running requests that decode first, then to running prefills in order of arrival, then to new
requests in the order of the waiting queue (chunked prefill: Agrawal et al. 2024, Sarathi-Serve). How requests share
tokens that are still to be computed depends on when the prefix cache takes them (see `Reuse`): where it takes computed
ones, a request whose next tokens a running one is computing waits, and borrows them in the step that computes the last
of them; where it takes scheduled ones, requests find them there. It knows nothing of tensors, text and HTTP.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from mainstem.errors import OutOfSlots, PromptTooLong
from mainstem.scheduler.candidates import REPLY_WEIGHT, Candidate, Candidates, Donors
from mainstem.scheduler.conversations import Conversations
from mainstem.scheduler.observer import SchedulerObserver
from mainstem.scheduler.output import Hold, LogitSource, ScheduledTokens, SchedulerOutput, ScoredTokens
from mainstem.scheduler.recomputed import Recomputed
from mainstem.scheduler.request import Request, RequestState
from mainstem.scheduler.shares import Shares
from mainstem.scheduler.tenants import TenantQueues
from mainstem.scheduler.waiting import ORDERS
from mainstem.tree import PrefixCache, PrefixHandle, Reuse

# A decoding request reserves this many slots at a time, so that its tokens lie in long runs.
DECODE_RESERVATION = 64
# Share of the pool that a new request must leave for those that already run, so that they are not preempted at once.
ADMISSION_HEADROOM = 0.01
# Most tokens whose logits are wanted for scoring in one step; a row of logits is as wide as the vocabulary.
MAX_SCORED_TOKENS = 256


@dataclass(slots=True)
class SchedulerCounts:
    """Totals since the start; prompt and cached tokens are counted once a request, at its first admission."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    preemptions: int = 0


class Scheduler:
    """Requests waiting and running, over one prefix cache.

    Args:
        cache: where slots come from and computed tokens go.
        max_num_batched_tokens: most tokens a step.
        max_num_seqs: most requests running at once.
        max_model_len: longest prompt plus reply.
        schedule: in which order waiting requests are let in; a key of `ORDERS`.
        lenience: how much work of later requests may go before a waiting one; see `Fairness`.
        anti_thrash: run fewer conversations rather than evict what they need next; see `Conversations`.
        cache_reserve: share of the pool that a new request may not take from the cache while others run.
        by_tenant: whether the first two parts of a namespace name a tenant, and tenants are served alike; otherwise
            all are one.
        tenant_quota: most of the pool, as a share, that requests of one tenant may hold while those of others wait.
        clock: seconds; by it, a request is admitted, and a conversation is given up.

    Attributes:
        observer: is told who is admitted and who leaves.
    """

    def __init__(
        self,
        cache: PrefixCache,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        schedule: str = "fcfs",
        lenience: float = 1.0,
        anti_thrash: bool = False,
        cache_reserve: float = 0.0,
        by_tenant: bool = False,
        tenant_quota: float = 1.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.cache = cache
        self.max_num_batched_tokens = max_num_batched_tokens
        # Every running request must fit a step with its one token, or decoding would starve some of them.
        self.max_num_seqs = min(max_num_seqs, max_num_batched_tokens)
        # The last sampled token needs no slot, hence one more token than slots.
        self.max_model_len = min(max_model_len, cache.stats().capacity + 1)
        self.waiting = TenantQueues(ORDERS[schedule], cache, lenience, by_tenant=by_tenant)
        self.conversations = Conversations(cache)
        self._anti_thrash = anti_thrash and cache.reuse is Reuse.COMPUTED
        self.running: list[Request] = []
        self.shares = Shares(cache, self.waiting, self.running, self.max_num_seqs, tenant_quota)
        self.holds: set[Hold] = set()
        self.num_held = 0  # tokens of all holds, each counted in full
        self.counts = SchedulerCounts()
        self.cache_reserve = cache_reserve
        self.recomputed = Recomputed()
        self.observer = SchedulerObserver()
        self.clock = clock
        self._next_order = 0
        self._step_began = 0.0
        self._candidates = Candidates(cache, self.waiting)
        self._lacks_memory: Request | None = None
        self._claim: Request | None = None  # that the next step makes way for
        self._precedence: list[Request] = []
        # Of the step that is under way: requests that joined it relying on tokens that others compute in it, and the
        # first slots of the pages that the prefix cache was given before they are computed.
        self._borrowers: list[Request] = []
        self._uncomputed_pages: set[int] = set()

    # -- arrival and departure ------------------------------------------------------------------------------------

    def check_length(self, num_prompt: int) -> None:
        """Refuse a prompt that could not run even alone. Safe to call from any thread.

        Raises:
            PromptTooLong: when it leaves no room for one token of reply.
        """
        if num_prompt >= self.max_model_len:
            raise PromptTooLong(num_prompt, self.max_model_len)

    def add(self, request: Request) -> None:
        """Queue a request; nothing is reserved for it.

        Raises:
            PromptTooLong: see `check_length`.
        """
        self.check_length(request.num_prompt)
        request.max_tokens = min(request.max_tokens, self.max_model_len - request.num_prompt)
        place = self.conversations.place_of(request, self.clock())
        request.order = self._next_order if place is None else place
        self._next_order += 1
        request.view = self.cache.view(request.namespace)
        self.waiting.add(request)

    def finish(self, request: Request) -> None:
        """Take a request out, at any moment between two steps; what it computed stays in the prefix cache."""
        if request.state is RequestState.FINISHED:
            return
        self.observer.finished(request)
        computed, left = request.num_computed, None
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
            self.conversations.left(request)
        else:
            self.running.remove(request)
            if request.score_from is None:
                self._candidates.learn(request.num_generated)
            goes_on = request.score_from is None and not request.hints.ends_session
            left = self._release(request, keep=self._anti_thrash and goes_on and bool(self.waiting))
            self.waiting.released(request)
        if not self.waiting:
            self.conversations.give_up()
        if request.admitted_at is not None:
            if self.cache.reuse is not Reuse.NEVER:
                self.recomputed.remember(request.tokens.array[:computed], request.namespace)
            self.cache.end(request.tokens.array[:computed], request.namespace, left, request.hints)
        request.state = RequestState.FINISHED

    def has_work(self) -> bool:
        """Whether any request is left."""
        return bool(self.running or self.waiting)

    def hold(self, request: Request, length: int) -> Hold:
        """Keep the first `length` tokens of a running request, all computed, locked until `release`.

        To be called between two steps; the request may finish then.
        """
        if self.cache.reuse is Reuse.COMPUTED and request.num_computed > request.num_owned:
            self._store(request, request.num_computed)
        stored = request.view.insert(request.tokens.array[:length], slots=request.table.slots[:length])
        self.cache.lock(stored.handle)
        hold = Hold(stored.handle, stored.slots)
        self.holds.add(hold)
        self.num_held += len(hold.slots)
        return hold

    def release(self, hold: Hold) -> None:
        """End a hold: its tokens become evictable, but for what others lock.

        Raises:
            KeyError: when it was released before; nothing has changed then.
        """
        self.holds.remove(hold)
        self.num_held -= len(hold.slots)
        self.cache.unlock(hold.handle)

    @property
    def stuck(self) -> Request:
        """The waiting request for which the last step had no memory, where it scheduled nothing though some wait."""
        assert self._lacks_memory is not None
        return self._lacks_memory

    def shortage(self) -> OutOfSlots:
        """Why nothing can run though requests wait: what the stuck one lacks, and what holds keep from it."""
        self._candidates.reserve = 0
        room = self._candidates.room_for(self.stuck, None)
        return OutOfSlots(room.needed, room.available, held=len(self._held_slots()))

    # -- one step -------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Choose the next step's tokens and reserve their slots."""
        self._step_began = self.clock()
        self.conversations.expire(self._step_began)
        output = SchedulerOutput([], [], [])
        self.shares.changed()
        self._make_way()
        budget = self._schedule_decodes(output, self.max_num_batched_tokens)
        budget = self._schedule_prefills(output, budget)
        self._admit(output, budget)
        return output

    def commit(self, output: SchedulerOutput, failed: Collection[Request] = ()) -> set[Request]:
        """The step has run: its tokens are computed, and prefilled ones enter the prefix cache.

        What the step computed for a failed request does not; it is to be finished next. But one that relied on tokens
        of another in this step may have failed for the other's sake, and one may rely on slots that a failed one gives
        up: these go back to the queue, to compute the tokens themselves.

        Returns:
            The requests that went back to the queue, failed or not.
        """
        num_tokens = sum(stop - start for _, start, stop in output.scheduled)
        if 2 * num_tokens >= self.max_num_batched_tokens:
            self.conversations.measure(self.clock() - self._step_began, num_tokens)
        requeued: set[Request] = set()
        for request in self._borrowers:
            if request in failed or request.lender in failed or request.lender in requeued:
                requeued.add(request)
        for request in {*failed, *requeued}:
            self._undo(request)
        for request in requeued:
            self._preempt(request)
        # What a borrower will store, its lender stores before: whoever computed a slot's token owns it.
        lenders = {borrower.lender for borrower in self._borrowers}
        for request, start, stop in output.scheduled:
            if request in failed or request in requeued:
                continue
            request.num_computed = stop
            if request.score_from is not None:
                request.score_from = max(request.score_from, stop)
            prefilled = max(0, min(stop, request.num_prompt) - start)
            request.num_prefilled += prefilled
            self.counts.prefilled_tokens += prefilled
            if self.cache.reuse is Reuse.COMPUTED and (
                stop - start > 1 or start < request.num_prompt or request.num_borrowed or request in lenders
            ):
                self._store(request, stop)
        for request, _, _ in output.sources:
            # It followed another request and computed nothing itself.
            if request.num_owned < request.num_borrowed and request not in failed:
                self._store(request, request.num_computed)
        self._end_step()
        return requeued

    def reserve_ahead(self, request: Request, num_slots: int) -> int:
        """Slots that a scheduled request has beyond this step's token, `num_slots` or more if they can be had.

        They are slots of later tokens of its reply, and other requests get them back when they need them.
        """
        left = request.num_prompt + request.max_tokens - len(request.table)
        have = len(request.table) - request.num_computed - 1
        if have < num_slots and left > 0 and self._reserve(request, min(DECODE_RESERVATION, left)):
            have = len(request.table) - request.num_computed - 1
        return max(have, 0)

    def accept(self, request: Request, nodes: Sequence[int]) -> None:
        """After `commit`: of the tokens whose KV the step wrote to the slots after its own, these are the request's.

        Args:
            request: its tokens include them.
            nodes: for each of the next tokens, its place among those slots, rising.
        """
        if nodes and nodes[-1] >= len(nodes):
            others = sorted(set(range(nodes[-1] + 1)).difference(nodes))
            request.table.reorder(request.num_computed, [*nodes, *others])
        request.num_computed += len(nodes)
        request.num_accepted += len(nodes)

    def rollback(self) -> None:
        """The step has failed: nothing of it was computed.

        Requests that took part hold what they had before it; those that shared its tokens are back in the queue.
        """
        for request in list(self.running):
            if self._undo(request):
                self._preempt(request)
        self._end_step()

    # -- many steps at once, for who runs without a model ---------------------------------------------------------

    def num_repeatable(self) -> int:
        """How many steps could follow in which every running request computes one token of its reply and nothing else
        changes: no slot is taken and no page filled that the prefix cache then takes.

        They do follow if no request arrives or ends, and nobody waits who could be admitted: it is enough that the last
        step was such a one and admitted nobody.
        """
        steps: int | None = None
        for request in self.running:
            if request.num_remaining != 1 or request.num_computed < request.num_prompt:
                return 0
            room = len(request.table) - request.num_computed
            if self.cache.reuse is Reuse.SCHEDULED:
                room = min(room, self.cache.page_size - 1 - (request.num_computed - request.num_owned))
            steps = room if steps is None else min(steps, room)
        return max(steps or 0, 0)

    def repeat(self, steps: int) -> None:
        """Do so many of these steps at once; the caller adds as many tokens to every running request."""
        for request in self.running:
            request.num_computed += steps

    def _undo(self, request: Request) -> bool:
        """Take back what the failed step was to compute for a request; whether it shared any of that with others."""
        self.waiting.withdrawn(request)
        if request.num_owned > request.num_computed:
            assert request.handle is not None
            self.cache.withdraw(request.handle, request.num_computed)
            return True
        if request.lender is not None:
            self._free_after(request, request.num_borrowed)
            request.table.truncate(request.num_owned)
            request.num_computed = request.num_owned
        return request.num_borrowed > 0

    def _end_step(self) -> None:
        for request in self._borrowers:
            request.num_borrowed = 0
            request.lender = None
        self._borrowers.clear()
        self._uncomputed_pages.clear()

    def _schedule_decodes(self, output: SchedulerOutput, budget: int) -> int:
        self._precedence = self.shares.by_precedence()
        for request in self._precedence.copy():
            if request.state is not RequestState.RUNNING or request.num_remaining != 1:
                continue
            if len(request.table) > request.num_computed or self._find_slot(request):
                self._schedule_tokens(output, request, 1)
                budget -= 1
        return budget

    def _schedule_prefills(self, output: SchedulerOutput, budget: int) -> int:
        for request in self.running:
            if budget == 0:
                break
            if request.num_remaining > 1:
                num_tokens = min(budget, _most_tokens(request, output))
                if num_tokens:
                    self._schedule_tokens(output, request, num_tokens)
                budget -= num_tokens
        return budget

    def _schedule_tokens(self, output: SchedulerOutput, request: Request, num_tokens: int) -> None:
        start = request.num_computed
        stop = start + num_tokens
        if self.cache.reuse is Reuse.SCHEDULED and stop - request.num_owned >= self.cache.page_size:
            before = request.num_owned
            self._store(request, stop)
            pages = request.table.slots[before : request.num_owned : self.cache.page_size]
            self._uncomputed_pages.update(pages.tolist())
        if num_tokens > 1:
            self.waiting.computed(request, stop)
        output.scheduled.append(ScheduledTokens(request, start, stop))
        entry = len(output.scheduled) - 1
        if request.score_from is not None:
            output.scored.append(ScoredTokens(request, entry, min(max(request.score_from, start), stop), stop))
        elif stop == len(request.tokens):
            output.sources.append(LogitSource(request, entry, stop - 1))

    # -- admission ------------------------------------------------------------------------------------------------

    def _admit(self, output: SchedulerOutput, budget: int) -> None:
        """Let waiting requests in, in the order of the queue.

        Those that wait for tokens that another is computing are passed over; one that lacks memory holds up the rest,
        but for those that continue conversations whose prefixes are kept.
        """
        self._lacks_memory = None
        if budget:
            self._claim = None
        if not self.waiting or (self._full and not self.shares.claims_on_seats):
            return
        donors = Donors(output, self.running if self.cache.reuse is Reuse.COMPUTED else ())
        for donor in donors.requests:
            self._candidates.pass_over(donor, donors)
        while budget:
            # While others run, some of what is cached is not for the taking.
            self._candidates.reserve = int(self.cache_reserve * self.cache.capacity) if self.running else 0
            if self._full and not self.shares.claims_on_seats:
                break
            if self._lacks_memory is None:
                candidate = self._candidates.next(donors)
            else:  # it waits until conversations end; turns of these may be next
                candidate = self._candidates.first_of(self.conversations.waiting(), donors)
            if candidate is None:
                break
            if self._full:
                self._note_claim(candidate)
                break
            if candidate.follows:
                self._follow(candidate, donors, output)
                continue
            scheduled = self._try_admit(candidate, budget, output)
            if scheduled == 0:
                self._lacks_memory = self._lacks_memory or candidate.request
                self._note_claim(candidate)
                self.waiting.hide_one(candidate.request)
                continue
            budget -= scheduled
            if self.cache.reuse is Reuse.COMPUTED:
                donors.add(candidate.request, len(output.scheduled) - 1, output)
                self._candidates.pass_over(candidate.request, donors)
        if budget == 0:
            self._admit_followers(donors, output)
        self.waiting.show_all()

    @property
    def _full(self) -> bool:
        """Whether every seat is taken."""
        return len(self.running) >= self.max_num_seqs

    def _note_claim(self, candidate: Candidate) -> None:
        """The next step makes way for a request that cannot be let in, if that is its due."""
        if self._claim is None and self.shares.may_claim(candidate.request, candidate.room.needed):
            self._claim = candidate.request

    def _make_way(self) -> None:
        """Let those who have more than their share give way to the request with a claim; it is next then."""
        self.waiting.favour(None)
        claim = self._claim
        if claim is None or claim.state is not RequestState.WAITING:
            return
        tenant = self.waiting.tenant_of(claim)
        while True:
            self._candidates.reserve = int(self.cache_reserve * self.cache.capacity) if self.running else 0
            room = self._candidates.room_for(claim, None)
            if not self._full and room.available >= room.needed + self._headroom(claim):
                self.waiting.favour(tenant)
                return
            if not self.shares.may_claim(claim, room.needed):
                return
            if not self._full and self.conversations.give_way(claim, self.shares.has_more):
                continue
            victim = self.shares.who_gives_way(tenant, seat=self._full)
            if victim is None:
                return
            self._preempt(victim)
            self.shares.changed()

    def _admit_followers(self, donors: Donors, output: SchedulerOutput) -> None:
        """Let in those that need no token of the budget, since others compute all of theirs in this step."""
        followers = {
            request.order: request
            for other in donors.requests
            for request in self.waiting.within(other, donors.stop_of(other))
            if request.namespace == other.namespace
        }
        for _, request in sorted(followers.items()):
            if (
                len(self.running) < self.max_num_seqs
                and (candidate := self._candidates.consider(request, donors)).follows
            ):
                self._follow(candidate, donors, output)

    def _follow(self, candidate: Candidate, donors: Donors, output: SchedulerOutput) -> None:
        """Admit a request whose every token another one computes in this step: it only samples."""
        self._start(candidate)
        request, donor = candidate.request, candidate.donor
        assert donor is not None
        output.sources.append(LogitSource(request, donors.entries[donor.request], len(request.tokens) - 1))

    def _try_admit(self, candidate: Candidate, budget: int, output: SchedulerOutput) -> int:
        """Admit a request if memory allows; returns how many tokens were scheduled, 0 if it must wait."""
        request, room = candidate.request, candidate.room
        if not _rows_left(request, output):
            return 0
        headroom = self._headroom(request)
        while room.available < room.needed + headroom:
            # What runs, or continues what is kept, is worth more than what others may come back for.
            if self.running and not self.conversations.continues(request):
                return 0
            if not self.conversations.give_way(request):
                return 0
            room = self._candidates.room_for(request, candidate.donor)
        self._start(candidate)
        self.observer.needs_room(request)
        request.table.append(self.cache.allocate(room.needed, after=request.table.last, namespace=request.namespace))
        self.shares.changed()
        num_tokens = min(budget, _most_tokens(request, output))
        self._schedule_tokens(output, request, num_tokens)
        return num_tokens

    def _headroom(self, request: Request) -> int:
        """Slots that a new request must leave for others beside what it needs."""
        if not self.running:
            return 0
        next_pages = len(self.running) * self.cache.page_size
        headroom = max(next_pages, int(ADMISSION_HEADROOM * self.cache.capacity))
        return headroom if self.conversations.continues(request) else headroom + self.conversations.room_to_grow()

    def _start(self, candidate: Candidate) -> None:
        """Move a request to the running ones, its page table covering all that is or is being computed."""
        request, donor = candidate.request, candidate.donor
        self.waiting.remove(request)
        request.charged, request.charged_before = candidate.work, self._next_order
        self.waiting.charge(request, request.charged)
        self.waiting.admitted(request)
        match = request.view.match_prefix(request.tokens.array[: request.num_reusable])
        self.cache.lock(match.handle)
        request.handle = match.handle
        request.table.append(match.slots)
        request.num_owned = request.num_computed = match.length
        if donor is not None and donor.common > match.length:
            request.table.append(donor.request.table.slots[match.length : donor.common])
            request.num_computed = request.num_borrowed = donor.common
            request.lender = donor.request
        elif self._uncomputed_pages:
            pages = match.slots[:: self.cache.page_size].tolist()
            if not self._uncomputed_pages.isdisjoint(pages):
                request.num_borrowed = match.length
        if request.num_borrowed:
            self._borrowers.append(request)
        if request.admitted_at is None:
            self.cache.begin(request.tokens.array[: request.num_reusable], request.namespace, match, request.hints)
            request.admitted_at = self.clock()
            request.num_cached = request.num_computed
            self.recomputed.look(request.tokens.array[: request.num_reusable], request.namespace, request.num_cached)
            self.counts.prompt_tokens += request.num_prompt
            self.counts.cached_tokens += request.num_cached
            self.observer.admitted(request, self.running)
        request.num_computed_before, request.num_replied_before = request.num_computed, request.num_generated
        request.common_lengths.clear()
        request.state = RequestState.RUNNING
        self.conversations.left(request)
        insort(self.running, request, key=lambda r: r.order)

    # -- memory ---------------------------------------------------------------------------------------------------

    def _find_slot(self, request: Request) -> bool:
        """Find a slot for the request's next token; false if the request itself had to give way."""
        for slots_wanted in (DECODE_RESERVATION, 1):
            wanted = min(slots_wanted, request.num_prompt + request.max_tokens - len(request.table))
            if self._reserve(request, max(wanted, 1)):
                return True
        self._reclaim_reserved()
        while not self._reserve(request, 1):
            if self.conversations.give_way():
                continue
            while (victim := self._precedence.pop()).state is not RequestState.RUNNING:
                pass
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _reserve(self, request: Request, num_slots: int) -> bool:
        self.observer.needs_room(request)
        try:
            request.table.append(
                self.cache.allocate(self._whole_pages(num_slots), after=request.table.last, namespace=request.namespace)
            )
        except OutOfSlots:
            return False
        return True

    def _reclaim_reserved(self) -> None:
        """Take back the slots that running requests hold for later tokens of their replies."""
        for request in self.running:
            self._free_after(request, len(request.tokens))

    def _preempt(self, request: Request) -> None:
        """Send a running request back to its place in the queue; its computed tokens stay, evictable."""
        self.observer.preempted(request)
        self.running.remove(request)
        self._release(request)
        request.state = RequestState.WAITING
        request.num_preemptions += 1
        self.counts.preemptions += 1
        self.waiting.add(request)
        self.waiting.released(request)

    def _store(self, request: Request, length: int) -> None:
        """Give tokens to the prefix cache, as many as whole pages hold, and keep them there by a lock."""
        stored = request.view.insert(request.tokens.array[:length], slots=request.table.slots[:length])
        self.cache.lock(stored.handle)
        if request.handle is not None:
            self.cache.unlock(request.handle)
        request.handle = stored.handle
        # Where another request's copy was kept, point at that before giving up our own.
        mine = slice(max(request.num_owned, request.num_borrowed), stored.num_cached)
        own, kept = request.table.slots[mine], stored.slots[mine]
        duplicates = own[own != kept]
        request.table.remap(stored.slots[: stored.length])
        if len(duplicates):
            self.cache.free(duplicates)
        request.num_owned = max(request.num_owned, stored.length)
        self.waiting.computed(request, stored.length)

    def _release(self, request: Request, *, keep: bool = False) -> PrefixHandle | None:
        """Keep what is computed in the prefix cache, give everything else back; the handle is of what was kept.

        With `keep`, what is computed is locked for the conversation's next turn.
        """
        replied = request.num_generated - request.num_replied_before
        done = request.num_computed - request.num_computed_before + (REPLY_WEIGHT - 1) * replied
        self.waiting.charge(request, done - request.charged, request.charged_before)
        if self.cache.reuse is Reuse.COMPUTED and request.num_computed > request.num_owned:
            self._store(request, request.num_computed)
        self._free_after(request, request.num_owned)
        if request.handle is not None:
            if keep and request.num_owned:
                self.conversations.ended(request, self.clock())
            self.cache.unlock(request.handle)
        handle = request.handle
        request.forget_slots()
        return handle

    def _free_after(self, request: Request, length: int) -> None:
        """Give back the pages after the one that holds the last of `length` tokens."""
        kept = self._whole_pages(length)
        extra = request.table.slots[kept:]
        if len(extra):
            self.cache.free(extra)
            request.table.truncate(kept)

    def _whole_pages(self, num_tokens: int) -> int:
        """Slots of the pages that hold this many tokens."""
        return num_tokens + -num_tokens % self.cache.page_size

    # -- integrity ------------------------------------------------------------------------------------------------

    def private_slots(self) -> Iterator[int]:
        """Slots that running requests hold and the prefix cache does not own."""
        for request in self.running:
            yield from request.table.slots[request.num_owned :].tolist()

    def check_integrity(self) -> None:
        """Between two steps: every slot has one owner, every count adds up.

        Raises:
            AssertionError: naming the broken invariant.
        """
        self.cache.check_integrity()
        self.waiting.check_integrity()
        private = list(self.private_slots())
        assert len(private) == len(set(private)), "a slot is held by two requests"
        held = self.cache.held
        assert len(private) == held, f"requests hold {len(private)} private slots, the cache counts {held}"
        orders = [request.order for request in self.running]
        assert orders == sorted(orders), "running requests are out of order"
        for request in self.running:
            assert request.num_computed <= len(request.table), f"{request} has computed tokens without slots"
            assert request.num_owned <= request.num_computed, f"{request} shares tokens it has not computed"
        assert self.num_held == sum(len(hold.slots) for hold in self.holds), "held tokens are miscounted"
        in_use = self._held_slots().union(
            self.conversations.slots(), *(request.table.slots.tolist() for request in self.running)
        )
        protected = self.cache.stats().protected
        assert protected == len(in_use), (
            f"{protected} slots are protected, but running requests and holds account for {len(in_use)}"
        )

    def _held_slots(self) -> set[int]:
        """Slots that holds keep locked, each counted once."""
        return set().union(*(hold.slots.tolist() for hold in self.holds))


def _rows_left(request: Request, output: SchedulerOutput) -> int:
    """Of how many tokens of this request the step may still give the logits."""
    if request.score_from is None:
        return 1
    return max(0, MAX_SCORED_TOKENS - sum(scored.stop - scored.start for scored in output.scored))


def _most_tokens(request: Request, output: SchedulerOutput) -> int:
    """How many tokens of a running request the step may compute, if its budget allows; 0 only for one that scores."""
    if request.score_from is None:
        return request.num_remaining
    before = max(request.score_from - request.num_computed, 0)
    return min(request.num_remaining, before + _rows_left(request, output))
