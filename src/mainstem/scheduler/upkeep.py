"""What is done for the prefix cache between two steps: room is made before it is needed, and what is idle is dropped.

It knows how full the pool is and how much time has passed. What goes first is the cache's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mainstem.tree import PrefixCache

MAX_TOKENS_BETWEEN_STEPS = 16_384
"""Most tokens that are evicted or dropped at once while requests run."""
SWEEPS_PER_TTL = 10
"""What is idle is looked for so often within the time to live, but at most once a second."""


class Upkeep:
    """Keeps some slots free, and drops what nobody has used for long.

    Args:
        cache: whose pool it is.
        ttl_s: for how long what nobody uses stays, unless it is retained or shared by many; 0 for as long as there is
            room.
        high: share of the pool in use above which room is made.
        low: share of the pool in use down to which it is made.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        cache: PrefixCache,
        *,
        ttl_s: float = 0.0,
        high: float = 1.0,
        low: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._ttl_s = ttl_s
        self._high = high
        self._low = low
        self._clock = clock
        self._next_sweep = clock()

    @property
    def interval_s(self) -> float | None:
        """How often there is something to do though no request comes; None for never."""
        return max(self._ttl_s / SWEEPS_PER_TTL, 1.0) if self._ttl_s else None

    def run(self) -> int:
        """Do what is due; returns how many tokens left the cache."""
        return self._sweep() + self._make_room()

    def _sweep(self) -> int:
        if not self._ttl_s or self._clock() < self._next_sweep:
            return 0
        dropped = self._cache.expire(self._ttl_s, limit=MAX_TOKENS_BETWEEN_STEPS)
        if dropped < MAX_TOKENS_BETWEEN_STEPS:  # else the rest goes next time
            self._next_sweep = self._clock() + max(self._ttl_s / SWEEPS_PER_TTL, 1.0)
        return dropped

    def _make_room(self) -> int:
        capacity, free = self._cache.capacity, self._cache.allocator.num_free
        if capacity - free <= self._high * capacity:
            return 0
        wanted = int((1.0 - self._low) * capacity) - free
        return self._cache.evict(min(max(wanted, 0), MAX_TOKENS_BETWEEN_STEPS))
