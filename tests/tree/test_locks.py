"""Locks: who is protected, until when, and what misuse does."""

from __future__ import annotations

import pytest

from mainstem.errors import OutOfSlots
from mainstem.tree import RadixCache


@pytest.fixture
def cache() -> RadixCache:
    return RadixCache(100)


def test_a_lock_moves_tokens_from_evictable_to_protected(cache: RadixCache) -> None:
    handle = cache.insert([1, 2, 3]).handle
    assert (cache.stats().evictable, cache.stats().protected) == (3, 0)
    cache.lock(handle)
    assert (cache.stats().evictable, cache.stats().protected) == (0, 3)
    cache.unlock(handle)
    assert (cache.stats().evictable, cache.stats().protected) == (3, 0)


def test_a_locked_path_survives_an_eviction_of_everything_and_can_go_when_unlocked(cache: RadixCache) -> None:
    cache.insert([1, 2, 3, 4])
    handle = cache.insert([1, 2, 5]).handle
    cache.lock(handle)
    assert cache.evict(100) == 2
    assert cache.peek([1, 2, 5]).length == 3
    cache.unlock(handle)
    assert cache.evict(100) == 3
    assert cache.stats().free == 100


def test_locks_are_counted(cache: RadixCache) -> None:
    handle = cache.insert([1, 2, 3]).handle
    cache.lock(handle)
    cache.lock(handle)
    cache.unlock(handle)
    assert cache.evict(3) == 0
    cache.unlock(handle)
    assert cache.evict(3) == 3


def test_a_lock_protects_the_path_above_it(cache: RadixCache) -> None:
    cache.insert([1, 2])
    cache.lock(cache.insert([1, 2, 3, 4]).handle)
    assert cache.stats().protected == 4


def test_a_lock_does_not_protect_what_is_below_it(cache: RadixCache) -> None:
    above = cache.insert([1, 2]).handle
    cache.insert([1, 2, 3, 4])
    cache.lock(above)
    assert cache.evict(100) == 2
    assert cache.peek([1, 2, 3, 4]).length == 2


def test_splitting_a_locked_node_keeps_both_halves_locked(cache: RadixCache) -> None:
    cache.lock(cache.insert([1, 2, 3, 4]).handle)
    cache.match_prefix([1, 2, 9])
    assert cache.stats().num_nodes == 2
    assert cache.evict(100) == 0
    cache.check_integrity()


def test_unlocking_a_handle_taken_before_a_split_releases_both_halves(cache: RadixCache) -> None:
    handle = cache.insert([1, 2, 3, 4]).handle
    cache.lock(handle)
    cache.match_prefix([1, 2, 9])
    cache.unlock(handle)
    assert cache.stats().evictable == 4
    assert cache.evict(100) == 4


def test_the_upper_half_of_a_split_may_be_locked_by_itself(cache: RadixCache) -> None:
    whole = cache.insert([1, 2, 3, 4]).handle
    cache.lock(whole)
    half = cache.match_prefix([1, 2, 9]).handle
    cache.lock(half)
    cache.unlock(whole)
    assert (cache.stats().protected, cache.evict(100)) == (2, 2)
    cache.unlock(half)
    assert cache.evict(100) == 2


def test_two_locks_on_different_branches_are_released_one_by_one(cache: RadixCache) -> None:
    left = cache.insert([1, 2, 3]).handle
    right = cache.insert([1, 2, 4]).handle
    cache.lock(left)
    cache.lock(right)
    cache.unlock(left)
    assert cache.stats().protected == 3
    cache.unlock(right)
    assert cache.stats().protected == 0


def test_an_over_release_is_refused_and_changes_nothing(cache: RadixCache) -> None:
    handle = cache.insert([1, 2, 3]).handle
    with pytest.raises(ValueError, match="not locked"):
        cache.unlock(handle)
    cache.check_integrity()
    cache.lock(handle)
    cache.unlock(handle)
    with pytest.raises(ValueError, match="not locked"):
        cache.unlock(handle)
    assert cache.stats().evictable == 3


def test_an_over_release_cannot_take_the_lock_of_a_longer_prefix(cache: RadixCache) -> None:
    above = cache.insert([1, 2]).handle
    cache.lock(cache.insert([1, 2, 3]).handle)
    with pytest.raises(ValueError, match="not locked"):
        cache.unlock(above)
    assert cache.evict(100) == 0


def test_the_handle_of_an_empty_match_is_locked_and_unlocked_without_harm(cache: RadixCache) -> None:
    handle = cache.match_prefix([1]).handle
    cache.lock(handle)
    assert cache.stats().protected == 0
    cache.unlock(handle)
    with pytest.raises(ValueError, match="not locked"):
        cache.unlock(handle)
    cache.lock(cache.insert([]).handle)
    cache.check_integrity()


def test_the_handle_of_an_empty_match_outlives_a_reset(cache: RadixCache) -> None:
    cache.insert([1])
    handle = cache.match_prefix([2]).handle
    cache.lock(handle)
    cache.reset()
    cache.unlock(handle)
    cache.check_integrity()


def test_locking_an_evicted_prefix_is_refused(cache: RadixCache) -> None:
    handle = cache.insert([1, 2, 3]).handle
    cache.evict(3)
    with pytest.raises(ValueError, match="evicted"):
        cache.lock(handle)
    with pytest.raises(ValueError, match="evicted"):
        cache.unlock(handle)
    cache.check_integrity()


def test_locking_a_prefix_whose_tail_was_evicted_is_refused(cache: RadixCache) -> None:
    handle = cache.insert([1, 2, 3]).handle
    cache.evict(1)
    with pytest.raises(ValueError, match="evicted"):
        cache.lock(handle)
    cache.lock(cache.match_prefix([1, 2, 3]).handle)
    assert cache.stats().protected == 2


def test_an_old_handle_does_not_come_to_mean_the_same_tokens_inserted_again(cache: RadixCache) -> None:
    handle = cache.insert([1, 2, 3]).handle
    cache.evict(3)
    cache.insert([1, 2, 3])
    with pytest.raises(ValueError, match="evicted"):
        cache.lock(handle)


def test_a_handle_of_another_cache_is_refused(cache: RadixCache) -> None:
    handle = RadixCache(10).insert([1]).handle
    cache.insert([1])
    with pytest.raises(ValueError, match="not of this cache"):
        cache.lock(handle)


def test_something_that_is_no_handle_is_refused(cache: RadixCache) -> None:
    with pytest.raises(ValueError, match="not of this cache"):
        cache.lock(None)  # type: ignore[arg-type]


def test_a_failed_insert_leaves_every_lock_as_it_was() -> None:
    cache = RadixCache(6)
    cache.insert([1, 2])
    locked = cache.insert([3, 4, 5]).handle
    cache.lock(locked)
    with pytest.raises(OutOfSlots):
        cache.insert([1, 2, 6, 7])
    assert (cache.stats().protected, cache.stats().evictable) == (3, 2)
    cache.check_integrity()


def test_a_reset_keeps_what_is_locked_and_drops_the_rest(cache: RadixCache) -> None:
    cache.insert([1, 2, 3, 4])
    handle = cache.match_prefix([1, 2]).handle
    cache.lock(handle)
    cache.insert([7, 8, 9])
    assert cache.reset() == 5
    assert (cache.stats().protected, cache.stats().free) == (2, 98)
    assert cache.match_prefix([1, 2, 3]).length == 2
    cache.unlock(handle)
    cache.check_integrity()


def test_a_reset_of_an_idle_cache_frees_everything_and_is_no_eviction(cache: RadixCache) -> None:
    cache.insert([1, 2, 3])
    cache.insert([1, 4], ("tenant",))
    assert cache.reset() == 5
    stats = cache.stats()
    assert (stats.free, stats.num_nodes, stats.num_namespaces, stats.evicted) == (100, 0, 0, 0)
