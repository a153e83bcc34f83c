"""What a step is to compute, and what outlives it. It knows requests, and not how they were chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mainstem.pages import SlotArray
from mainstem.scheduler.request import Request
from mainstem.tree import PrefixHandle


class ScheduledTokens(NamedTuple):
    """Tokens `[start, stop)` of a request are computed in this step; their slots are in its page table."""

    request: Request
    start: int
    stop: int


class LogitSource(NamedTuple):
    """`request` samples its next token from the logits of token `position` of the `entry`-th scheduled request."""

    request: Request
    entry: int
    position: int


class ScoredTokens(NamedTuple):
    """The logits of tokens `[start, stop)` of `request`, the `entry`-th scheduled one, are wanted; may be none."""

    request: Request
    entry: int
    start: int
    stop: int


class SchedulerOutput(NamedTuple):
    """One step's work; empty when nothing can run. A request that scores has one `scored` for each `scheduled`."""

    scheduled: list[ScheduledTokens]
    sources: list[LogitSource]
    scored: list[ScoredTokens]


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """A lock on a computed prefix that outlives the request that computed it.

    Attributes:
        handle: of the locked prefix.
        slots: int32[n], where its tokens' KV lies.
    """

    handle: PrefixHandle
    slots: SlotArray
