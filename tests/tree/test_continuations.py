"""Tests of what the radix tree says followed a prefix."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainstem.tree import BlockHashCache, NoPrefixCache, PrefixCache, RadixCache

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8)


def after(cache: PrefixCache, prefix: list[int], tail: list[int], length: int = 8, paths: int = 9) -> list[list[int]]:
    handle = cache.match_prefix(prefix).handle
    found = cache.continuations(handle, np.array(tail, np.int32), length, paths)
    return [path.tolist() for path in found]


def test_what_was_cached_after_a_prefix_is_told_the_latest_first() -> None:
    cache = RadixCache(64)
    cache.insert([1, 2, 3, 4])
    cache.insert([1, 2, 8, 9])
    assert after(cache, [1, 2], []) == [[8, 9], [3, 4]]
    cache.match_prefix([1, 2, 3, 4])
    assert after(cache, [1, 2], []) == [[3, 4], [8, 9]]
    assert after(cache, [1, 2], [], length=1, paths=1) == [[3]]


def test_what_is_in_use_comes_before_what_was_used() -> None:
    cache = RadixCache(64)
    cache.lock(cache.insert([1, 2, 3]).handle)
    cache.insert([1, 2, 4])
    assert after(cache, [1, 2], []) == [[3], [4]]


def test_a_tail_that_was_said_otherwise_has_no_continuation() -> None:
    cache = RadixCache(64)
    cache.insert([1, 2, 3, 4, 5])
    assert after(cache, [1], [2, 3]) == [[4, 5]]
    assert after(cache, [1], [2, 9]) == []
    assert after(cache, [1], [2, 3, 4, 5]) == []
    assert after(cache, [1], [2, 3, 4, 5, 6]) == []


def test_namespaces_do_not_tell_each_other() -> None:
    cache = RadixCache(64)
    cache.insert([1, 2, 3], ("a",))
    cache.insert([1], ("b",))
    handle = cache.match_prefix([1], ("b",)).handle
    assert cache.continuations(handle, np.empty(0, np.int32), 8, 8) == []


def test_a_prompt_of_which_nothing_is_cached_has_none() -> None:
    cache = RadixCache(64)
    cache.insert([1, 2])
    assert after(cache, [7], []) == []


def test_caches_that_cannot_tell_say_nothing() -> None:
    for cache in (BlockHashCache(64, 4), NoPrefixCache(64), RadixCache(64, 4)):
        cache.insert([1, 2, 3, 4, 5, 6, 7, 8])
        assert after(cache, [1, 2, 3, 4], []) == []


@given(sequences, st.data(), st.integers(1, 5), st.integers(1, 4))
def test_continuations_are_those_of_cached_sequences(
    said: list[list[int]], data: st.DataObject, length: int, paths: int
) -> None:
    cache = RadixCache(256)
    for tokens in said:
        cache.insert(tokens)
    known = data.draw(st.sampled_from(said))
    cut = data.draw(st.integers(1, len(known)))
    tail = data.draw(st.lists(st.integers(0, 2), max_size=3))
    prefix = [*known[:cut], *tail]
    handle = cache.match_prefix(known[:cut]).handle
    before = cache.stats()
    found = [path.tolist() for path in cache.continuations(handle, np.array(tail, np.int32), length, paths)]
    # The ends of what follows: each is cut off at the length, or where nothing is known to follow.
    follows = [tokens[len(prefix) :] for tokens in said if tokens[: len(prefix)] == prefix]
    ends = {tuple(rest[:length]) for rest in follows}
    ends = {rest for rest in ends if rest and not any(rest != o and o[: len(rest)] == rest for o in ends)}
    assert len(found) == min(len(ends), paths)
    assert set(map(tuple, found)) <= ends
    assert cache.stats() == before
    cache.check_integrity()
