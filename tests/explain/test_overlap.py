"""What two sequences have in common anywhere: against looking at every window, one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainstem.explain.overlap import ALL_WINDOWS, WINDOW, fingerprint, shared_with, window_hashes
from mainstem.tree import TokenArray

# Few kinds of pieces, so that they come again in another order.
pieces = st.lists(st.integers(0, 5), max_size=6)
MADE = [np.random.default_rng(i).integers(0, 3, 5 + 11 * i).astype(np.int32) for i in range(6)]


def joined(kinds: list[int]) -> TokenArray:
    return np.concatenate([np.empty(0, np.int32), *(MADE[kind] for kind in kinds)])


def naive(tokens: TokenArray, others: TokenArray) -> list[bool]:
    windows = {tuple(others[i : i + WINDOW].tolist()) for i in range(len(others) - WINDOW + 1)}
    shared = [False] * len(tokens)
    for i in range(len(tokens) - WINDOW + 1):
        if tuple(tokens[i : i + WINDOW].tolist()) in windows:
            shared[i : i + WINDOW] = [True] * WINDOW
    return shared


@given(pieces, pieces)
def test_every_stretch_is_found(mine: list[int], theirs: list[int]) -> None:
    tokens, others = joined(mine), joined(theirs)
    assert shared_with(tokens, others).tolist() == naive(tokens, others)


def test_long_stretches_of_long_sequences_are_found() -> None:
    rng = np.random.default_rng(1)
    old = rng.integers(0, 40_000, 3 * ALL_WINDOWS).astype(np.int32)
    new = rng.integers(0, 40_000, 200).astype(np.int32)
    # The first thousand tokens are gone, something is put in between, and something is added.
    later = np.concatenate([new[:50], old[1000:5000], new[50:100], old[5000:], new[100:]])
    expected = [False] * 50 + [True] * 4000 + [False] * 50 + [True] * (len(old) - 5000) + [False] * 100
    assert shared_with(later, old).tolist() == expected


def test_one_hash_a_window() -> None:
    tokens = np.arange(100, dtype=np.int32)
    hashes = window_hashes(tokens)
    assert len(hashes) == 100 - WINDOW + 1
    assert len(set(hashes.tolist())) == len(hashes)
    assert window_hashes(tokens[10:60]).tolist() == hashes[10 : 60 - WINDOW + 1].tolist()
    assert len(window_hashes(tokens[: WINDOW - 1])) == 0


def test_a_fingerprint_is_of_about_the_same_size_and_finds_what_is_within() -> None:
    tokens = np.random.default_rng(2).integers(0, 40_000, 20_000).astype(np.int32)
    whole, part = fingerprint(tokens, 7), fingerprint(tokens[2_000:6_000], 7)
    assert 20 < len(whole.hashes) < 200
    assert 20 < len(part.hashes) < 200
    assert len(set(whole.hashes) & set(part.hashes)) * whole.every > 2_000
    assert not set(whole.hashes) & set(fingerprint(tokens, 8).hashes)
