"""Slots that callers hold: taken, filled, handed over to the tree, or given back."""

from __future__ import annotations

import numpy as np
import pytest

from mainstem.tree import BlockHashCache, InsertResult, NoPrefixCache, PrefixCache, RadixCache, Reuse


@pytest.fixture
def cache() -> RadixCache:
    return RadixCache(100)


def compute(cache: PrefixCache, tokens: list[int]) -> tuple[list[int], InsertResult]:
    """Allocate slots for every token and insert; returns the slots with the result."""
    slots = cache.allocate(len(tokens))
    return slots.tolist(), cache.insert(tokens, slots=slots)


def test_allocated_slots_are_held_until_they_are_freed(cache: RadixCache) -> None:
    slots = cache.allocate(5)
    stats = cache.stats()
    assert (stats.held, stats.protected, stats.free) == (5, 5, 95)
    cache.free(slots[::-1])
    assert (cache.held, cache.stats().free) == (0, 100)


def test_the_tree_takes_over_computed_slots(cache: RadixCache) -> None:
    slots, result = compute(cache, [1, 2, 3])
    assert result.slots.tolist() == slots
    assert (result.length, result.num_cached, cache.held) == (3, 0, 0)
    assert cache.match_prefix([1, 2, 3]).slots.tolist() == slots
    cache.check_integrity()


def test_two_that_computed_the_same_keep_one_copy_and_the_second_keeps_its_slots_until_it_frees_them(
    cache: RadixCache,
) -> None:
    first, _ = compute(cache, [1, 2, 3])
    second, result = compute(cache, [1, 2, 3, 4])
    assert (result.length, result.num_cached) == (4, 3)
    assert result.slots.tolist() == [*first, second[3]]
    assert cache.held == 3
    cache.check_integrity()
    cache.free(np.array(second[:3], dtype=np.int32))
    assert cache.held == 0
    cache.check_integrity()


def test_slots_that_the_tree_owns_already_may_be_repeated_for_the_cached_part(cache: RadixCache) -> None:
    first, _ = compute(cache, [1, 2, 3])
    more = cache.allocate(2, after=first[-1])
    result = cache.insert([1, 2, 3, 4, 5], slots=np.array([*first, *more], dtype=np.int32))
    assert result.slots.tolist() == [*first, *more.tolist()]
    assert cache.held == 0


def test_computed_slots_beyond_the_last_whole_page_stay_the_callers() -> None:
    cache = RadixCache(64, page_size=4)
    slots = cache.allocate(8)
    result = cache.insert(range(6), slots=slots[:6])
    assert (result.length, cache.held) == (4, 4)
    cache.free(slots[4:])
    assert cache.held == 0
    cache.check_integrity()


@pytest.mark.parametrize("count", [2, 4])
def test_there_must_be_one_slot_a_token(cache: RadixCache, count: int) -> None:
    slots = cache.allocate(count)
    with pytest.raises(ValueError, match="one slot a token"):
        cache.insert([1, 2, 3], slots=slots)
    assert cache.held == count


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([0, 1, 50], "is free"),
        ([0, 1, 1], "given twice"),
        ([0, 1, 100], "outside the pool"),
        ([-1, 0, 1], "outside the pool"),
        ([0, 1, 10], "belongs to the cache"),
        ([0.0, 1.0, 2.0], "integers"),
    ],
)
def test_slots_that_the_caller_does_not_hold_are_refused_and_nothing_changes(
    cache: RadixCache, slots: list[int], message: str
) -> None:
    cache.allocate(10)  # slots 0 to 9
    assert cache.insert([9, 9]).slots.tolist() != [0, 1]
    cached = cache.match_prefix([9, 9]).slots
    given = [int(cached[0]) if slot == 10 else slot for slot in slots]
    before = cache.stats()
    with pytest.raises(ValueError, match=message):
        cache.insert([1, 2, 3], slots=np.array(given))
    assert cache.stats() == before
    cache.check_integrity()


def test_slots_that_do_not_form_whole_pages_are_refused() -> None:
    cache = RadixCache(64, page_size=4)
    slots = cache.allocate(8)
    with pytest.raises(ValueError, match="whole pages"):
        cache.insert(range(4), slots=slots[2:6])
    with pytest.raises(ValueError, match="whole pages"):
        cache.free(slots[:2])
    assert cache.held == 8


def test_a_slot_of_the_tree_cannot_be_freed_by_a_caller(cache: RadixCache) -> None:
    slots, _ = compute(cache, [1, 2, 3])
    with pytest.raises(ValueError, match="belongs to the cache"):
        cache.free(np.array(slots, dtype=np.int32))
    cache.check_integrity()


def test_a_slot_cannot_be_freed_twice(cache: RadixCache) -> None:
    slots = cache.allocate(3)
    cache.free(slots)
    with pytest.raises(ValueError, match="twice"):
        cache.free(slots)


def test_given_slots_are_not_aliased(cache: RadixCache) -> None:
    slots = cache.allocate(3)
    cache.insert([1, 2, 3], slots=slots)
    slots[:] = 77
    assert cache.match_prefix([1, 2, 3]).slots.tolist() == [0, 1, 2]


def test_without_a_cache_nothing_is_held_or_matched() -> None:
    cache = NoPrefixCache(100)
    slots, result = compute(cache, [1, 2, 3])
    assert (result.length, result.num_cached, result.slots.tolist()) == (0, 0, [])
    assert cache.match_prefix([1, 2, 3]).length == 0
    assert cache.peek([1, 2, 3]) == (0, 0)
    assert (cache.held, cache.stats().hits, cache.stats().queries) == (3, 0, 1)
    cache.free(np.array(slots, dtype=np.int32))
    assert (cache.held, cache.evict(5), cache.reset()) == (0, 0, 0)
    cache.check_integrity()


def test_without_a_cache_an_insert_allocates_nothing() -> None:
    cache = NoPrefixCache(10)
    assert cache.insert(range(50)).length == 0
    assert cache.stats().free == 10


def test_without_a_cache_locks_are_still_counted() -> None:
    cache = NoPrefixCache(10)
    handle = cache.insert([1, 2]).handle
    cache.lock(handle)
    cache.unlock(handle)
    with pytest.raises(ValueError, match="not locked"):
        cache.unlock(handle)
    with pytest.raises(ValueError, match="not of this cache"):
        cache.lock(RadixCache(10).match_prefix([]).handle)


@pytest.mark.parametrize(
    ("kind", "reuse"),
    [(RadixCache, Reuse.COMPUTED), (BlockHashCache, Reuse.SCHEDULED), (NoPrefixCache, Reuse.NEVER)],
)
def test_a_cache_says_when_it_takes_tokens(kind: type[PrefixCache], reuse: Reuse) -> None:
    assert kind.reuse is reuse
