"""What two token sequences have in common anywhere, not only at their beginning.

A stretch counts when it is at least `WINDOW` tokens long, which is more than chat templates put between messages.
Windows are compared by a hash of their tokens. It knows nothing of requests.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mainstem.tree import TokenArray

WINDOW = 16
# How many windows of a sequence are its fingerprint, about.
FINGERPRINT = 64

Hashes: TypeAlias = npt.NDArray[np.uint64]
_FACTORS = [np.uint64(pow(0x9E3779B97F4A7C15, 1 << i, 2**64)) for i in range(WINDOW.bit_length() - 1)]
_MIX = np.uint64(0xD6E8FEB86659FD93)


class Fingerprint(NamedTuple):
    """Hashes of some windows of a sequence, of which about one in `every` was taken."""

    hashes: list[int]
    every: int


def window_hashes(tokens: TokenArray) -> Hashes:
    """A hash of each window: uint64[len(tokens) - WINDOW + 1], or none if there are fewer tokens."""
    if len(tokens) < WINDOW:
        return np.empty(0, np.uint64)
    hashes = tokens.astype(np.uint64) + np.uint64(1)
    span = 1
    for factor in _FACTORS:  # a polynomial of the tokens, of windows twice as long each time
        hashes = hashes[:-span] * factor + hashes[span:]
        span *= 2
    hashes *= _MIX
    return hashes ^ (hashes >> np.uint64(32))


def fingerprint(tokens: TokenArray, salt: int) -> Fingerprint:
    """A sample of a sequence's windows, by which others that have stretches of it are found.

    Windows are chosen by their hash, so all sequences choose the same ones, a long one fewer of them.

    Args:
        tokens: int32[n].
        salt: sequences of different salts have no hash in common.
    """
    hashes = window_hashes(tokens)
    every = 1
    while len(hashes) > FINGERPRINT * every:
        every *= 2
    chosen = hashes[hashes % np.uint64(every) == 0][: 2 * FINGERPRINT]
    return Fingerprint((chosen ^ np.uint64(salt % 2**64)).tolist(), every)


def shared_with(tokens: TokenArray, others: TokenArray) -> npt.NDArray[np.bool_]:
    """Which tokens are in a stretch that `others` have too: bool[len(tokens)]."""
    mine, theirs = window_hashes(tokens), window_hashes(others)
    change = np.zeros(len(tokens) + 1, np.int32)
    if len(mine) and len(theirs):
        theirs.sort()
        places = np.minimum(np.searchsorted(theirs, mine), len(theirs) - 1)
        starts = np.flatnonzero(theirs[places] == mine)
        change[starts] += 1
        change[starts + WINDOW] -= 1
    return np.cumsum(change[:-1]) > 0
