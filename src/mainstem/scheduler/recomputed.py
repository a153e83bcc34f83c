"""How many tokens are computed again that had been computed before: what the prefix cache gave up too early.

It remembers computed sequences by the hashes of their beginnings, at every 64th token, in a table of fixed size where
newer ones replace older ones. So it counts a little too few, and never more than there were. Knows no tree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainstem.tree import Namespace, TokenArray, namespace_key

MARK = 64
"""Tokens from one remembered beginning to the next."""
TABLE_BITS = 17
_BASE = 0x9E3779B97F4A7C15
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)

Hashes = npt.NDArray[np.uint64]


class Recomputed:
    """Remembers what was computed.

    Attributes:
        total: tokens that were computed again.
    """

    def __init__(self) -> None:
        self.total = 0
        self._table: Hashes = np.zeros(1 << TABLE_BITS, np.uint64)
        self._powers: Hashes = np.ones(1, np.uint64)

    def remember(self, tokens: TokenArray, namespace: Namespace) -> None:
        """These tokens are computed."""
        hashes = self._hashes(tokens, namespace)
        self._table[_places(hashes)] = hashes

    def look(self, tokens: TokenArray, namespace: Namespace, num_cached: int) -> int:
        """Of these tokens, the first `num_cached` were found; how many others were computed before, nearly."""
        if len(tokens) - num_cached < MARK:
            return 0
        hashes = self._hashes(tokens, namespace)
        (known,) = np.nonzero(self._table[_places(hashes)] == hashes)
        again = max(0, MARK * (int(known[-1]) + 1) - num_cached) if len(known) else 0
        self.total += again
        return again

    def forget(self) -> None:
        """Whatever is computed now is new."""
        self._table[:] = 0

    def _hashes(self, tokens: TokenArray, namespace: Namespace) -> Hashes:
        """Of the first 64, 128, ... tokens; a polynomial in the tokens, modulo 2^64."""
        length = len(tokens) - len(tokens) % MARK
        if length > len(self._powers):
            factors = np.full(2 * length, _BASE, np.uint64)
            self._powers = np.multiply.accumulate(factors)
        terms = (tokens[:length].astype(np.uint64) + np.uint64(1)) * self._powers[:length]
        sums: Hashes = np.add.accumulate(terms)[MARK - 1 :: MARK]
        seed = np.uint64(hash(namespace_key(namespace)) & 0xFFFFFFFFFFFFFFFF)
        mixed: Hashes = ((sums ^ seed) * _MULTIPLIER) | np.uint64(1)
        return mixed


def _places(hashes: Hashes) -> npt.NDArray[np.int64]:
    return (hashes >> np.uint64(64 - TABLE_BITS)).astype(np.int64)
