"""Decides which requests run in the next step, how many tokens of each, and who gives way when memory runs out.

The token budget goes to running requests that decode first, then to running prefills (`Prefills`), then to new requests
in the order of the waiting queue (`Admission`). How requests share tokens that are still to be computed depends on when
the prefix cache takes them (see `Reuse`): where it takes computed ones, a request whose next tokens a running one is
computing waits, and borrows them in the step that computes the last of them; where it takes scheduled ones, requests
find them there. It knows nothing of tensors, text and HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from mainstem.errors import OutOfSlots, PromptTooLong
from mainstem.scheduler.admission import Admission
from mainstem.scheduler.candidates import REPLY_WEIGHT, Candidates
from mainstem.scheduler.conversations import Conversations
from mainstem.scheduler.observer import SchedulerObserver
from mainstem.scheduler.output import Hold, SchedulerOutput
from mainstem.scheduler.prefills import Prefills
from mainstem.scheduler.recomputed import Recomputed
from mainstem.scheduler.request import Request, RequestState
from mainstem.scheduler.shares import Shares
from mainstem.scheduler.slots import Slots
from mainstem.scheduler.step import Step
from mainstem.scheduler.tenants import TenantQueues
from mainstem.scheduler.waiting import ORDERS
from mainstem.tree import MatchResult, PrefixCache, PrefixHandle, Reuse

# A decoding request reserves this many slots at a time, so that its tokens lie in long runs.
DECODE_RESERVATION = 64


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
        self.conversations = Conversations(cache, self.waiting.key_of)
        self._anti_thrash = anti_thrash and cache.reuse is Reuse.COMPUTED
        self.running: list[Request] = []
        self.shares = Shares(cache, self.waiting, self.running, self.max_num_seqs, tenant_quota)
        self.holds: set[Hold] = set()
        self.num_held = 0  # tokens of all holds, each counted in full
        self.counts = SchedulerCounts()
        self.recomputed = Recomputed(cache)
        self.observer = SchedulerObserver()
        self.clock = clock
        self._next_order = 0
        self._step_began = 0.0
        self._candidates = Candidates(cache, self.waiting, self.running, cache_reserve)
        self._slots = Slots(cache, self.waiting, lambda request: self.observer.needs_room(request))
        self._admission = Admission(
            cache,
            self.waiting,
            self.running,
            self.shares,
            self.conversations,
            self._candidates,
            self._slots,
            self._begin,
        )
        self._prefills = Prefills(self.waiting, self.running, self._admission)
        self._step = Step(cache, self._slots, self.waiting, max_num_batched_tokens)  # that is under way, or was last
        self._precedence: list[Request] = []

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
        self._slots.store_computed(request)
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
        assert self._admission.lacks_memory is not None
        return self._admission.lacks_memory

    def shortage(self) -> OutOfSlots:
        """Why nothing can run though requests wait: what the stuck one lacks, and what holds keep from it."""
        room = self._candidates.room_for(self.stuck, None)
        return OutOfSlots(room.needed, room.available, held=len(self._held_slots()))

    # -- one step -------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Choose the next step's tokens and reserve their slots."""
        self._step_began = self.clock()
        self.conversations.expire(self._step_began)
        self._step = Step(self.cache, self._slots, self.waiting, self.max_num_batched_tokens)
        self.shares.changed()
        self._make_way()
        budget = self._schedule_decodes(self.max_num_batched_tokens)
        self._admission.lacks_memory = None
        if budget:
            self._admission.claim = None
        num_decodes = self._step.num_tokens
        budget = self._prefills.schedule(self._step, budget)
        self._admission.admit(self._step, budget)
        self.waiting.advance(self._step.num_tokens - num_decodes)
        return self._step.output

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
        requeued = self._step.misled_by(failed)
        for request in {*failed, *requeued}:
            self._step.undo(request)
        for request in requeued:
            self._preempt(request)
        # What a borrower will store, its lender stores before: whoever computed a slot's token owns it.
        lenders = {borrower.lender for borrower in self._step.borrowers}
        for request, start, stop in output.scheduled:
            if request in failed or request in requeued:
                continue
            request.num_computed = stop
            if request.score_from is not None:
                request.score_from = max(request.score_from, stop)
            prefilled = max(0, min(stop, request.num_prompt) - start)
            request.num_prefilled += prefilled
            self.counts.prefilled_tokens += 0 if request.unrecorded else prefilled
            if self.cache.reuse is Reuse.COMPUTED and (
                stop - start > 1 or start < request.num_prompt or request.num_borrowed or request in lenders
            ):
                self._slots.store(request, stop)
        for request, _, _ in output.sources:
            # It followed another request and computed nothing itself.
            if request.num_owned < request.num_borrowed and request not in failed:
                self._slots.store(request, request.num_computed)
        self._step.end()
        return requeued

    def reserve_ahead(self, request: Request, num_slots: int) -> int:
        """Slots that a scheduled request has beyond this step's token, `num_slots` or more if they can be had.

        They are slots of later tokens of its reply, and other requests get them back when they need them.
        """
        left = request.num_prompt + request.max_tokens - len(request.table)
        have = len(request.table) - request.num_computed - 1
        if have < num_slots and left > 0 and self._slots.try_reserve(request, min(DECODE_RESERVATION, left)):
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
            if self._step.undo(request):
                self._preempt(request)
        self._step.end()

    def _begin(self, request: Request, match: MatchResult) -> None:
        """A request is let in, with this much cached."""
        request.charged_before = self._next_order
        request.num_computed_before, request.num_replied_before = request.num_computed, request.num_generated
        if request.admitted_at is not None:
            return
        tokens = request.tokens.array[: request.num_reusable]
        self.cache.begin(tokens, request.namespace, match, request.hints)
        request.admitted_at = self.clock()
        request.num_cached = request.num_computed
        if request.unrecorded:
            return
        self.recomputed.look(tokens, request.namespace, request.num_cached)
        self.counts.prompt_tokens += request.num_prompt
        self.counts.cached_tokens += request.num_cached
        self.observer.admitted(request, self.running)

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

    # -- replies, and who gives way for them ----------------------------------------------------------------------

    def _schedule_decodes(self, budget: int) -> int:
        self._precedence = self.shares.by_precedence()
        for request in self._precedence.copy():
            if request.state is not RequestState.RUNNING or request.num_remaining != 1:
                continue
            if len(request.table) > request.num_computed or self._find_slot(request):
                self._step.schedule(request, 1)
                budget -= 1
        return budget

    def _make_way(self) -> None:
        """Let those who have more than their share give way to the request with a claim; it is next then."""
        self.waiting.favour(None)
        claim = self._admission.claim
        if claim is None or claim.state is not RequestState.WAITING:
            return
        tenant = self.waiting.tenant_of(claim)
        while True:
            room, seats = self._admission.room_for(claim), self.shares.free_seats
            if seats and room.available >= room.needed:
                self.waiting.favour(tenant)
                return
            if not self.shares.may_claim(claim, room.needed):
                return
            if seats and self.conversations.give_way(claim, self.shares.has_more):
                continue
            victim = self.shares.who_gives_way(tenant, seat=not seats)
            if victim is None:
                return
            self._preempt(victim)
            self.shares.changed()

    def _find_slot(self, request: Request) -> bool:
        """Find a slot for the request's next token; false if the request itself had to give way."""
        for slots_wanted in (DECODE_RESERVATION, 1):
            wanted = min(slots_wanted, request.num_prompt + request.max_tokens - len(request.table))
            if self._slots.try_reserve(request, max(wanted, 1)):
                return True
        self._slots.free_reserved(self.running)
        while not self._slots.try_reserve(request, 1):
            if self.conversations.give_way():
                continue
            while (victim := self._precedence.pop()).state is not RequestState.RUNNING:
                pass
            self._preempt(victim)
            if victim is request:
                return False
        return True

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

    def _release(self, request: Request, *, keep: bool = False) -> PrefixHandle | None:
        """Keep what is computed in the prefix cache, give everything else back; the handle is of what was kept.

        With `keep`, what is computed is locked for the conversation's next turn.
        """
        replied = request.num_generated - request.num_replied_before
        done = request.num_computed - request.num_computed_before + (REPLY_WEIGHT - 1) * replied
        self.waiting.charge(request, done - request.charged, request.charged_before)
        begun_with = request.num_prompt + request.num_replied_before
        left = begun_with - max(request.num_computed, request.num_computed_before)
        self.waiting.broken_off(request, max(left, 0))
        self._slots.store_computed(request)
        self._slots.free_private(request)
        if request.handle is not None:
            if keep and request.num_owned:
                self.conversations.ended(request, self.clock())
            self.cache.unlock(request.handle)
        handle = request.handle
        request.forget_slots()
        return handle

    # -- integrity ------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Between two steps: every slot has one owner, every count adds up.

        Raises:
            AssertionError: naming the broken invariant.
        """
        self.cache.check_integrity()
        self.waiting.check_integrity()
        own = [slot for request in self.running for slot in request.table.slots[request.num_owned :].tolist()]
        assert len(own) == len(set(own)), "a slot is held by two requests"
        held = self.cache.held
        assert len(own) == held, f"requests hold {len(own)} private slots, the cache counts {held}"
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
