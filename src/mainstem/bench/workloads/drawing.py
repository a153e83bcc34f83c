"""Random tokens and lengths for workloads: the same for the same seed, on every machine. It knows no workload."""

from __future__ import annotations

import numpy as np

from mainstem.errors import ConfigError
from mainstem.tree import TokenArray

# Where a vocabulary has them, the lowest ids are special tokens.
_MOST_SPECIAL = 100
# More than anyone would wait for, or has memory for.
MAX_CALLS = MAX_SIZE = 1_000_000
MAX_SCALE = 100.0


class Drawing:
    """Random tokens, and random numbers for all else; how many tokens are drawn does not change the numbers.

    Args:
        seed: fixes both.
        vocab_size: token ids are below it.
    """

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.rng, self._ids = np.random.default_rng(seed).spawn(2)
        self._lowest = min(_MOST_SPECIAL, vocab_size // 10)
        self._vocab_size = vocab_size

    def tokens(self, n: int) -> TokenArray:
        """int32[n], of no meaning."""
        return self._ids.integers(self._lowest, self._vocab_size, n).astype(np.int32)

    def length(self, low: float, high: float) -> int:
        """A whole number of tokens, at least 1, evenly from `low` to `high`."""
        return max(1, int(self.rng.integers(round(low), round(high), endpoint=True)))


def require_positive(**values: float) -> None:
    """Refuse sizes that make no workload.

    Raises:
        ConfigError: naming the first value that is not above 0, or far too large.
    """
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{name.replace('_', ' ')} must be above 0, got {value:g}")
        most = MAX_SCALE if name == "scale" else MAX_SIZE
        if value > most:
            raise ConfigError(f"{name.replace('_', ' ')} must be at most {most:,.0f}, got {value:g}")


def require_calls(count: int) -> None:
    """Refuse a workload of more calls than anyone would wait for.

    Raises:
        ConfigError: saying how many there would be.
    """
    if count > MAX_CALLS:
        raise ConfigError(f"this makes {count:,} calls, and at most {MAX_CALLS:,} are run; ask for fewer")
