"""What a request says about the future of what it computes. Plain data: how far it is believed is not said here."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

LIFETIMES = (30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 6 * 3600.0, 12 * 3600.0, 24 * 3600.0)
"""Seconds for which something can be retained. Others are rounded up to one of these, so that few differ."""
NUM_PRIORITIES = 3
"""Priorities of retained prefixes are 0, 1 (the usual one) and 2."""


class Retention(NamedTuple):
    """How long and how much a prefix is worth more than others.

    Attributes:
        ttl_s: seconds from its last use; one of `LIFETIMES`.
        priority: what goes first when more is retained than the budget allows, lower ones first.
    """

    ttl_s: float
    priority: int = 1

    @classmethod
    def of(cls, ttl_s: float, priority: int = 1) -> Retention:
        """Retention for at least so long, but at most a day, and with the nearest priority that there is."""
        step = min(bisect_left(LIFETIMES, ttl_s), len(LIFETIMES) - 1)
        return cls(LIFETIMES[step], min(max(priority, 0), NUM_PRIORITIES - 1))

    def joined(self, other: Retention) -> Retention:
        """The least that is worth no less than both."""
        return Retention(max(self.ttl_s, other.ttl_s), max(self.priority, other.priority))


class Keep(NamedTuple):
    """A breakpoint: the first `length` tokens of a prompt are to be retained."""

    length: int
    retention: Retention


@dataclass(frozen=True, slots=True)
class CacheHints:
    """What a request says.

    Attributes:
        session: the conversation that the request belongs to; None if it does not say.
        ends_session: it is the last request of its session.
        expected_return_s: in how many seconds the session's next request is expected; None if it does not say.
        keep: what is to be retained of its prompt.
        source: whose hints these are; hints of one source are believed or not together.
    """

    session: str | None = None
    ends_session: bool = False
    expected_return_s: float | None = None
    keep: tuple[Keep, ...] = ()
    source: str = ""


NO_HINTS = CacheHints()
