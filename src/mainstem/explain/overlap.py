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
# Of sequences with more windows than this only one in so many is looked for.
ALL_WINDOWS, ANCHOR_EVERY = 4096, 16
# Most displacements that are followed; windows at others count by themselves.
MAX_OFFSETS = 32

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
    """Which tokens are in a stretch that `others` have too: bool[len(tokens)].

    Windows that are in both are found first, in long sequences only a sample of them; from each the stretch is followed
    to its ends. So a stretch of a few windows may be overlooked where there are more than `ALL_WINDOWS` tokens.
    """
    shared = np.zeros(len(tokens), np.bool_)
    mine, theirs = _anchors(tokens), _anchors(others)
    if not len(mine.hashes) or not len(theirs.hashes):
        return shared
    order = np.argsort(theirs.hashes)
    places = np.minimum(np.searchsorted(theirs.hashes, mine.hashes, sorter=order), len(order) - 1)
    same = theirs.hashes[order[places]] == mine.hashes
    starts, partners = mine.starts[same], theirs.starts[order[places[same]]]
    offsets, counts = np.unique(partners - starts, return_counts=True)
    for offset in offsets[np.argsort(-counts)][:MAX_OFFSETS].tolist():
        first, last = max(0, -offset), min(len(tokens), len(others) - offset)
        _mark_runs(shared[first:last], tokens[first:last] == others[first + offset : last + offset])
    left = starts[~shared[starts]]
    shared[(left[:, None] + np.arange(WINDOW)).ravel()] = True
    return shared


class _Anchors(NamedTuple):
    """Some windows of a sequence: their hashes, uint64[k], and where they begin, int64[k]."""

    hashes: Hashes
    starts: npt.NDArray[np.int64]


def _anchors(tokens: TokenArray) -> _Anchors:
    hashes = window_hashes(tokens)
    starts = np.arange(len(hashes))
    if len(hashes) > ALL_WINDOWS:
        starts = np.flatnonzero(hashes % np.uint64(ANCHOR_EVERY) == 0)
    return _Anchors(hashes[starts], starts)


def _mark_runs(shared: npt.NDArray[np.bool_], equal: npt.NDArray[np.bool_]) -> None:
    """Set what is in a run of equal tokens that is no shorter than a window."""
    edges = np.flatnonzero(np.diff(equal, prepend=False, append=False))
    for start, stop in edges.reshape(-1, 2).tolist():
        if stop - start >= WINDOW:
            shared[start:stop] = True
