"""How many drafts a step should check: what steps are known to cost, and what requests gained or lost by drafts so far.

A step is worth the tokens it gives for the time it takes. Costs are measured, for every number of requests and size of
context by themselves: first steps without drafts, now and then again, then what drafts add to them. Every request that
takes part in a step pays for the drafts in it, whosever they are, and earns what its own save. Drafts that would bring
one of them further behind than `MAX_LOSS` are not checked. It knows seconds and counts, nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log2
from typing import NamedTuple

# How far a request may fall behind, as a share of the time it would have taken; a little less than is promised.
MAX_LOSS = 0.03
# A request may begin with so many steps of loss, as long as all requests together have not lost their share.
GRACE_STEPS = 0.75
# Of what was gained, so many steps count later on: what went well long ago says nothing about now.
CREDIT_STEPS = 4.0
# Drafts must make a step so much better by estimate.
MIN_GAIN = 0.02
# After so many steps with drafts, some run without, to see what they take by now.
REFRESH_AFTER, REFRESH_STEPS = 64, 2
# What a draft is taken to add to a step before anything was measured.
FIRST_COST = 0.08
# How far one measurement moves an estimate, and how much of an outlier is believed.
WEIGHT, MAX_OUTLIER = 0.25, 2.0
# How far a step without drafts moves what was measured of drafts towards `FIRST_COST`, if that is less: one hiccup of
# the machine must not end them for good.
FORGET = 0.002


class Load(NamedTuple):
    """What a step without drafts does: one token for each of `requests`, which have `context` tokens altogether."""

    requests: int
    context: int

    @property
    def key(self) -> tuple[int, int]:
        """Loads that take about as long have the same."""
        requests = self.requests if self.requests <= 8 else 8 + round(4 * log2(self.requests / 8))
        return requests, round(2 * log2(max(self.context, 64)))


@dataclass(slots=True)
class Account:
    """Of a request, in seconds: what it would have taken without drafts, and how far they have put it behind."""

    elapsed_s: float = 0.0
    lost_s: float = 0.0

    def book(self, plain_s: float, extra_s: float, accepted: int) -> None:
        """One step that took `extra_s` longer for its drafts, `accepted` of them this request's own and right."""
        self.elapsed_s += plain_s
        self.lost_s = max(self.lost_s + extra_s - accepted * plain_s, -CREDIT_STEPS * plain_s)


@dataclass(slots=True)
class _Costs:
    """Of steps with one load.

    Attributes:
        plain_s: seconds of one without drafts.
        extra: what drafts add, as a share of that, by the size of their number.
        to_measure: how many of the next steps have none.
        drafted: how many with drafts there were since.
    """

    plain_s: float
    extra: dict[int, float] = field(default_factory=dict)
    to_measure: int = REFRESH_STEPS - 1
    drafted: int = 0


class Pace:
    """What is known of an engine's steps."""

    def __init__(self) -> None:
        self._costs: dict[tuple[int, int], _Costs] = {}
        self._extra: dict[int, float] = {}  # over all loads
        self._all = Account()

    def most(self, load: Load, probabilities: Sequence[float], accounts: Sequence[Account]) -> int:
        """How many of the best drafts to check.

        Args:
            load: of the step without them.
            probabilities: of each draft to be right, the best first.
            accounts: of all requests in the step.
        """
        costs = self._costs.get(load.key)
        if not probabilities or costs is None or costs.to_measure:
            return 0
        limit_s = min(self._allowance_s(account, costs.plain_s) for account in accounts)
        tokens, best, most = float(load.requests), load.requests * (1 + MIN_GAIN), 0
        # What many drafts cost is found out by way of few.
        enough = 2 ** (max(self._extra, default=0) + 1) - 1
        for number, probability in enumerate(probabilities[:enough], start=1):
            extra = self._extra_of(costs, number)
            if extra * costs.plain_s > limit_s:
                break
            tokens += probability
            if tokens / (1 + extra) > best:
                best, most = tokens / (1 + extra), number
        return most

    def note(self, load: Load, seconds: float, drafted: int, accounts: Sequence[tuple[Account, int]]) -> None:
        """A step has run.

        Args:
            load: as it would have been without drafts.
            seconds: it took.
            drafted: how many drafts it checked.
            accounts: of all requests in it, each with how many of its drafts were right.
        """
        costs = self._costs.get(load.key)
        if costs is None:
            if drafted == 0:
                self._costs[load.key] = _Costs(seconds)
            return
        plain_s, extra = costs.plain_s, 0.0
        if drafted:
            size = drafted.bit_length()
            known = self._extra_of(costs, drafted)
            seen = min(max(seconds / plain_s - 1, 0.0), max(MAX_OUTLIER * known, 1.0))
            for table in (costs.extra, self._extra):
                table[size] = table[size] + WEIGHT * (seen - table[size]) if size in table else seen
            extra = costs.extra[size]
            costs.drafted += 1
            if costs.drafted == REFRESH_AFTER:
                costs.drafted, costs.to_measure = 0, REFRESH_STEPS
        else:
            costs.plain_s += WEIGHT * (min(seconds, MAX_OUTLIER * plain_s) - plain_s)
            costs.to_measure = max(costs.to_measure - 1, 0)
            for table in (costs.extra, self._extra):
                _forget(table)
        for account, accepted in accounts:
            account.book(plain_s, extra * plain_s, accepted)
            self._all.book(plain_s, extra * plain_s, accepted)

    def _allowance_s(self, account: Account, plain_s: float) -> float:
        """How many more seconds a request may lose."""
        of_all = MAX_LOSS * self._all.elapsed_s - self._all.lost_s + GRACE_STEPS * plain_s
        grace_s = max(min(GRACE_STEPS * plain_s, of_all), 0.0)
        return MAX_LOSS * account.elapsed_s - account.lost_s + grace_s

    def _extra_of(self, costs: _Costs, number: int) -> float:
        """What so many drafts add to a step, as a share of it: by those of the same size, or the next known ones."""
        size = number.bit_length()
        for table in (costs.extra, self._extra):
            if size in table:
                return table[size]
        if self._extra:
            nearest = min(self._extra, key=lambda known: abs(known - size))
            return self._extra[nearest] * 2.0 ** (size - nearest)
        return FIRST_COST * number


def _forget(table: dict[int, float]) -> None:
    for size, extra in table.items():
        table[size] = min(extra, extra + FORGET * (FIRST_COST * 2 ** (size - 1) - extra))
