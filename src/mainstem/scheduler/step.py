"""The step that is under way: what it is to compute, and which requests rely on what others compute in it.

It knows requests and their slots, and not how they were chosen.
"""

from __future__ import annotations

from collections.abc import Collection

from mainstem.scheduler.candidates import Donor
from mainstem.scheduler.output import LogitSource, ScheduledTokens, SchedulerOutput, ScoredTokens
from mainstem.scheduler.request import Request
from mainstem.scheduler.slots import Slots
from mainstem.scheduler.tenants import TenantQueues
from mainstem.tree import MatchResult, PrefixCache, Reuse

# Most tokens whose logits are wanted for scoring in one step; a row of logits is as wide as the vocabulary.
MAX_SCORED_TOKENS = 256


class Step:
    """One step.

    Args:
        cache: that owns pages, in some caches before they are computed.
        slots: of the requests.
        waiting: is told what will be computed.
        max_num_tokens: most tokens it may compute.

    Attributes:
        output: what is scheduled so far.
        borrowers: requests that joined it relying on tokens that others compute in it.
    """

    def __init__(self, cache: PrefixCache, slots: Slots, waiting: TenantQueues, max_num_tokens: int) -> None:
        self.output = SchedulerOutput([], [], [])
        self.borrowers: list[Request] = []
        self._cache = cache
        self._slots = slots
        self._waiting = waiting
        self._max_num_tokens = max_num_tokens
        self._uncomputed_pages: set[int] = set()  # first slots of what the prefix cache was given before it is computed

    @property
    def num_tokens(self) -> int:
        """How many it computes so far."""
        return sum(stop - start for _, start, stop in self.output.scheduled)

    @property
    def tokens_left(self) -> int:
        """How many more it may compute."""
        return self._max_num_tokens - self.num_tokens

    @property
    def rows_left(self) -> int:
        """Of how many tokens it may still give the logits for scoring."""
        return MAX_SCORED_TOKENS - sum(scored.stop - scored.start for scored in self.output.scored)

    def most_tokens(self, request: Request) -> int:
        """How many tokens of a running request it may compute.

        For one that scores, as many as it may still give the logits for; only then it may be 0.
        """
        if request.score_from is None:
            return request.num_remaining
        before = max(request.score_from - request.num_computed, 0)
        return min(request.num_remaining, before + self.rows_left)

    # -- what it computes -----------------------------------------------------------------------------------------

    def schedule(self, request: Request, num_tokens: int) -> None:
        """Compute the next tokens of a request, for which it has slots."""
        start = request.num_computed
        stop = start + num_tokens
        if self._cache.reuse is Reuse.SCHEDULED and stop - request.num_owned >= self._cache.page_size:
            before = request.num_owned
            self._slots.store(request, stop)
            pages = request.table.slots[before : request.num_owned : self._cache.page_size]
            self._uncomputed_pages.update(pages.tolist())
        if num_tokens > 1:
            self._waiting.computed(request, stop)
        self.output.scheduled.append(ScheduledTokens(request, start, stop))
        entry = len(self.output.scheduled) - 1
        if request.score_from is not None:
            self.output.scored.append(ScoredTokens(request, entry, min(max(request.score_from, start), stop), stop))
        elif stop == len(request.tokens):
            self.output.sources.append(LogitSource(request, entry, stop - 1))

    def join(self, request: Request, match: MatchResult, donor: Donor | None) -> None:
        """A request begins with what is cached of it, and with what another one computes in this step."""
        request.handle = match.handle
        request.table.append(match.slots)
        request.num_owned = request.num_computed = match.length
        if donor is not None and donor.common > match.length:
            request.table.append(donor.request.table.slots[match.length : donor.common])
            request.num_computed = request.num_borrowed = donor.common
            request.lender = donor.request
        elif self._uncomputed_pages:
            pages = match.slots[:: self._cache.page_size].tolist()
            if not self._uncomputed_pages.isdisjoint(pages):
                request.num_borrowed = match.length
        if request.num_borrowed:
            self.borrowers.append(request)

    def follow(self, request: Request, entry: int) -> None:
        """A request samples after the tokens of another one, the `entry`-th that is scheduled."""
        self.output.sources.append(LogitSource(request, entry, len(request.tokens) - 1))

    # -- when it has run, or failed -------------------------------------------------------------------------------

    def misled_by(self, failed: Collection[Request]) -> set[Request]:
        """Those that relied on tokens of failed requests, or on one another's that did, failed or not."""
        misled: set[Request] = set()
        for request in self.borrowers:
            if request in failed or request.lender in failed or request.lender in misled:
                misled.add(request)
        return misled

    def undo(self, request: Request) -> bool:
        """Take back what the failed step was to compute for a request; whether it shared any of that with others."""
        self._waiting.withdrawn(request)
        if request.num_owned > request.num_computed:
            assert request.handle is not None
            self._cache.withdraw(request.handle, request.num_computed)
            return True
        if request.lender is not None:
            self._slots.free_after(request, request.num_borrowed)
            request.table.truncate(request.num_owned)
            request.num_computed = request.num_owned
        return request.num_borrowed > 0

    def end(self) -> None:
        """It is over: nobody relies on anybody."""
        for request in self.borrowers:
            request.num_borrowed = 0
            request.lender = None
        self.borrowers.clear()
