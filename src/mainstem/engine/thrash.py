"""Notices that the pool is too small for its conversations: much of what is computed had been computed before.

It sees totals as they grow and says what to do; it knows nothing of the cache.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

log = logging.getLogger(__name__)

WINDOW_S = 60.0
SAMPLE_S = 5.0
MUCH = 0.25
"""Share of the prefilled tokens of a window that had been computed before, from which on it is called thrash."""
MIN_SHARE_OF_POOL = 0.05
"""Less than this share of the pool in a window is not worth a warning."""
QUIET_S = 600.0
"""Seconds between two warnings."""


class _Sample(NamedTuple):
    at: float
    recomputed: int
    prefilled: int


class ThrashWatch:
    """Watches one engine.

    Args:
        pool_tokens: size of its pool.
        clock: seconds, never going back.

    Attributes:
        tokens_per_s: computed again though they had been cached, over the last minute.
        share: of what was prefilled in that minute.
    """

    def __init__(self, pool_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool_tokens = pool_tokens
        self._clock = clock
        self._samples: deque[_Sample] = deque([_Sample(clock(), 0, 0)])
        self._last_warning = float("-inf")
        self.tokens_per_s = 0.0
        self.share = 0.0

    @property
    def is_active(self) -> bool:
        """Whether the last minute had any."""
        return self.tokens_per_s > 0.0

    def sample(self, recomputed: int, prefilled: int) -> None:
        """Take in the totals since the start."""
        now = self._clock()
        if now - self._samples[-1].at < SAMPLE_S:
            return
        self._samples.append(_Sample(now, recomputed, prefilled))
        while len(self._samples) > 2 and self._samples[1].at <= now - WINDOW_S:
            self._samples.popleft()
        first = self._samples[0]
        again, done = recomputed - first.recomputed, prefilled - first.prefilled
        self.tokens_per_s = again / (now - first.at)
        self.share = again / max(done, 1)
        is_much = self.share >= MUCH and again >= MIN_SHARE_OF_POOL * self._pool_tokens
        if is_much and now - self._last_warning >= QUIET_S:
            self._last_warning = now
            log.warning("%s", self.advice())

    def advice(self) -> str:
        """What is wrong and what helps."""
        return (
            f"the pool of {self._pool_tokens:,} tokens is too small for the conversations that are going on: "
            f"{self.tokens_per_s:,.0f} tokens a second are computed again that had been cached and were evicted, "
            f"{self.share:.0%} of all prefill. Raise --kv-memory or --memory-utilization; if that cannot be, have "
            "fewer conversations at once (--max-num-seqs), or tell which are over (docs/lifetime.md)"
        )
