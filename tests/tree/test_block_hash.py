"""The rules of the block-hash cache, one by one; test_block_hash_model.py has them against a queue of vLLM's kind."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from mainstem.errors import OutOfSlots
from mainstem.tree import BlockHashCache, InsertResult, RadixCache, SequenceView

SIZE = 4


def cache_of(blocks: int) -> BlockHashCache:
    return BlockHashCache(blocks * SIZE, SIZE)


def tokens(blocks: int, start: int = 0) -> list[int]:
    return list(range(start, start + blocks * SIZE))


def hold(cache: BlockHashCache, sequence: list[int], namespace: tuple[Any, ...] = ()) -> InsertResult:
    """Register a sequence in slots of its own, locked, as a request does that found nothing."""
    slots = cache.allocate(len(sequence) + -len(sequence) % SIZE)[: len(sequence)]
    result = cache.insert(sequence, namespace, slots=slots)
    cache.lock(result.handle)
    return result


# Keys


def test_only_full_blocks_are_found() -> None:
    cache = cache_of(10)
    cache.insert([*tokens(2), 100, 101, 102])
    assert cache.stats().num_nodes == 2
    assert cache.match_prefix([*tokens(2), 100, 101, 102]).length == 2 * SIZE
    assert cache.match_prefix(tokens(2)[:-1]).length == SIZE


def test_a_block_is_found_only_after_the_blocks_that_preceded_it() -> None:
    cache = cache_of(10)
    cache.insert(tokens(3))
    assert cache.match_prefix([*[9] * SIZE, *tokens(2, SIZE)]).length == 0
    assert cache.match_prefix(tokens(2, SIZE)).length == 0


def test_a_key_is_the_hash_of_its_parent_and_its_tokens() -> None:
    cache = cache_of(10)
    cache.insert(tokens(3))
    first, second, third = (key for key in cache._key_of if key)
    for parent, key, block in ((first, second, 1), (second, third, 2)):
        text = np.arange(block * SIZE, (block + 1) * SIZE, dtype=np.int32).tobytes()
        assert key == sha256(parent + text).digest()


def test_the_namespace_is_in_the_key_of_the_first_block_only() -> None:
    keys = {}
    for namespace in ((), ("tenant",)):
        cache = cache_of(10)
        cache.insert(tokens(2), namespace)
        keys[namespace] = [key for key in cache._key_of if key]
    assert keys[()][0] != keys["tenant",][0]
    text = np.arange(SIZE, 2 * SIZE, dtype=np.int32).tobytes()
    assert keys["tenant",][1] == sha256(keys["tenant",][0] + text).digest()


NAMESPACES: list[tuple[Any, ...]] = [
    (),
    (1,),
    ("1",),
    (True,),
    (1.0,),
    (b"1",),
    (None,),
    ("",),
    ("bc", "a"),
    ("c", "ab"),
    ("bca",),
    (1, "1"),
    ("é",),
    ("\\xe9",),
]


def test_namespaces_are_apart_by_type_and_by_part() -> None:
    cache = cache_of(100)
    for namespace in NAMESPACES:
        assert cache.match_prefix(tokens(2), namespace).length == 0
        cache.insert(tokens(2), namespace)
    assert cache.stats().num_nodes == 2 * len(NAMESPACES)


def test_a_view_hashes_each_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counting(text: bytes) -> Any:
        hashed.append(len(text))
        return sha256(text)

    monkeypatch.setattr("mainstem.tree.block_hash.sha256", counting)
    cache = cache_of(100)
    view = cache.view(("tenant",))
    slots = cache.allocate(10 * SIZE)
    for length in (7, 8, 9, 23, 23, 40):
        view.peek(tokens(10)[: length - 1])
        view.match_prefix(tokens(10)[: length - 1])
        view.insert(tokens(10)[:length], slots=slots[:length])
    assert len(hashed) == 10


def test_a_view_finds_what_the_cache_finds() -> None:
    cache = cache_of(20)
    cache.insert(tokens(5), ("a",))
    for view, length in ((cache.view(("a",)), 5), (cache.view(), 0)):
        assert isinstance(view, SequenceView)
        assert view.match_prefix(tokens(7)).length == view.peek(tokens(7)).length == length * SIZE


# Matching


def test_a_match_takes_no_lock() -> None:
    cache = cache_of(4)
    cache.insert(tokens(2))
    match = cache.match_prefix(tokens(2))
    assert cache.stats().evictable == 2 * SIZE
    cache.evict(SIZE)
    with pytest.raises(ValueError, match="has been evicted"):
        cache.lock(match.handle)
    cache.check_integrity()


def test_a_match_leaves_the_order_of_use_as_it_is() -> None:
    cache = cache_of(4)
    cache.insert(tokens(2))
    cache.insert(tokens(2, 100))
    cache.match_prefix(tokens(2))
    cache.evict(2 * SIZE)
    assert cache.peek(tokens(2)).length == 0
    assert cache.peek(tokens(2, 100)).length == 2 * SIZE


def test_a_peek_counts_nothing() -> None:
    cache = cache_of(4)
    cache.insert(tokens(2))
    before = cache.stats()
    assert cache.peek(tokens(3)) == (2 * SIZE, 2 * SIZE)
    assert cache.stats() == before


def test_statistics_are_in_tokens() -> None:
    cache = cache_of(4)
    cache.match_prefix(tokens(2))
    cache.insert(tokens(2))
    cache.match_prefix([*tokens(2), 1])
    stats = cache.stats()
    assert (stats.queries, stats.hits, stats.query_tokens, stats.hit_tokens) == (2, 1, 4 * SIZE + 1, 2 * SIZE)


# Registering


def test_the_slots_that_were_given_stay_where_they_are() -> None:
    cache = cache_of(10)
    first = hold(cache, tokens(2))
    second = hold(cache, tokens(2))
    assert set(first.slots.tolist()).isdisjoint(second.slots.tolist())
    assert second.num_cached == 0
    assert cache.stats().num_nodes == 4


def test_of_duplicates_the_first_is_found() -> None:
    cache = cache_of(10)
    first, second = hold(cache, tokens(2)), hold(cache, tokens(2))
    assert cache.match_prefix(tokens(2)).slots.tolist() == first.slots.tolist()
    cache.unlock(first.handle)
    cache.evict(2 * SIZE)
    assert cache.match_prefix(tokens(2)).slots.tolist() == second.slots.tolist()
    cache.check_integrity()


def test_blocks_of_the_cache_are_not_taken_over_again() -> None:
    cache = cache_of(10)
    first = hold(cache, tokens(2))
    slots = np.concatenate([first.slots, cache.allocate(SIZE)])
    second = cache.insert(tokens(3), slots=slots)
    assert (second.length, second.num_cached) == (3 * SIZE, 2 * SIZE)
    assert cache.stats().num_nodes == 3
    assert cache.held == 0


def test_slots_of_an_unfinished_block_stay_with_the_caller() -> None:
    cache = cache_of(10)
    slots = cache.allocate(2 * SIZE)
    assert cache.insert(tokens(2)[:-1], slots=slots[:-1]).length == SIZE
    assert cache.held == SIZE


def test_an_insert_without_slots_finds_and_allocates() -> None:
    cache = cache_of(10)
    first = cache.insert(tokens(2))
    second = cache.insert(tokens(4))
    assert (second.length, second.num_cached) == (4 * SIZE, 2 * SIZE)
    assert second.slots[: 2 * SIZE].tolist() == first.slots.tolist()
    assert second.slots.tolist() == list(range(4 * SIZE))


def test_an_insert_without_room_changes_nothing() -> None:
    cache = cache_of(4)
    hold(cache, tokens(2, 100))
    cache.insert(tokens(2))
    before = cache.stats(), list(cache._idle)
    with pytest.raises(OutOfSlots, match=str(2 * SIZE)):
        cache.insert(tokens(4))
    assert (cache.stats(), list(cache._idle)) == before


@pytest.mark.parametrize(
    ("slots", "complaint"),
    [
        ([0, 1, 2, 3, 0, 1, 2, 3], "given twice"),
        ([2, 3, 4, 5, 6, 7, 8, 9], "whole pages"),
        ([0, 1, 2, 3, 7, 6, 5, 4], "whole pages"),
        ([0, 1, 2, 3, 12, 13, 14, 15], "is free"),
        ([0, 1, 2, 3, 40, 41, 42, 43], "outside the pool"),
        ([4, 5, 6, 7, 8, 9, 10, 11], "for other tokens"),
        ([0, 1, 2, 3, 8, 9, 10, 11], "belongs to the cache"),
        ([0, 1, 2], "must have shape"),
    ],
)
def test_slots_that_cannot_be_taken_over_are_refused(slots: list[int], complaint: str) -> None:
    cache = cache_of(10)
    cache.allocate(3 * SIZE)
    cache.insert(tokens(1, 50), slots=np.arange(8, 12, dtype=np.int32))
    if complaint == "for other tokens":
        slots = slots[4:] + slots[:4]
    before = cache.stats()
    with pytest.raises(ValueError, match=complaint):
        cache.insert(tokens(2), slots=np.array(slots, np.int32))
    assert cache.stats() == before
    cache.check_integrity()


# The queue of blocks to reuse


def test_a_sequence_is_given_up_from_its_end() -> None:
    cache = cache_of(4)
    cache.insert(tokens(4))
    for left in (3, 2, 1, 0):
        assert cache.evict(1) == SIZE
        assert cache.peek(tokens(4)).length == left * SIZE


def test_the_least_recently_unlocked_block_goes_first() -> None:
    cache = cache_of(4)
    first, second = hold(cache, tokens(1)), hold(cache, tokens(1, 100))
    cache.unlock(second.handle)
    cache.unlock(first.handle)
    cache.evict(SIZE)
    assert cache.peek(tokens(1)).length == SIZE
    assert cache.peek(tokens(1, 100)).length == 0


def test_a_block_keeps_its_key_until_it_is_reused() -> None:
    cache = cache_of(3)
    cache.unlock(hold(cache, tokens(2)).handle)
    cache.allocate(SIZE)
    assert cache.peek(tokens(2)).length == 2 * SIZE
    cache.allocate(SIZE)
    assert cache.peek(tokens(2)).length == SIZE
    assert cache.stats().evicted == SIZE


def test_unfinished_blocks_are_reused_before_any_full_one() -> None:
    cache = cache_of(3)
    unfinished = cache.allocate(SIZE)
    cache.insert(tokens(2))
    cache.free(unfinished)
    assert cache.allocate(SIZE).tolist() == unfinished.tolist()
    assert cache.peek(tokens(2)).length == 2 * SIZE


def test_a_locked_block_is_not_reused() -> None:
    cache = cache_of(3)
    held = hold(cache, tokens(2))
    assert cache.evict(3 * SIZE) == 0
    with pytest.raises(OutOfSlots):
        cache.allocate(2 * SIZE)
    cache.unlock(held.handle)
    assert cache.allocate(2 * SIZE).tolist()


def test_a_block_is_locked_as_often_as_it_is_held() -> None:
    cache = cache_of(3)
    held = hold(cache, tokens(2))
    match = cache.match_prefix(tokens(1))
    cache.lock(match.handle)
    cache.unlock(held.handle)
    assert cache.evict(3 * SIZE) == SIZE
    cache.unlock(match.handle)
    assert cache.stats().evictable == SIZE
    with pytest.raises(ValueError, match="not locked"):
        cache.unlock(match.handle)


def test_a_reset_forgets_what_is_not_locked() -> None:
    cache = cache_of(6)
    held = hold(cache, tokens(2))
    cache.insert(tokens(2, 100))
    assert cache.reset() == 2 * SIZE
    assert cache.peek(tokens(2)).length == 2 * SIZE
    assert cache.stats().evicted == 0
    cache.unlock(held.handle)


def test_handles_of_other_caches_are_refused() -> None:
    cache = cache_of(3)
    for other in (cache_of(3), RadixCache(12)):
        handle = other.insert(tokens(1)).handle
        for call in (cache.lock, cache.unlock):
            with pytest.raises(ValueError, match="not of this cache"):
                call(handle)


def test_blocks_of_the_cache_cannot_be_freed() -> None:
    cache = cache_of(3)
    slots = cache.insert(tokens(2)).slots
    with pytest.raises(ValueError, match="belongs to the cache"):
        cache.free(slots)


@pytest.mark.parametrize(("capacity", "size"), [(10, 4), (0, 4), (16, 0), (-4, 4)])
def test_a_pool_that_is_not_whole_blocks_is_refused(capacity: int, size: int) -> None:
    with pytest.raises(ValueError, match="page"):
        BlockHashCache(capacity, size)


def test_a_block_has_16_tokens_by_default() -> None:
    assert BlockHashCache(64).page_size == 16


# Withdrawing


def test_withdrawn_blocks_are_not_found_and_free_when_unlocked() -> None:
    cache = cache_of(5)
    held = hold(cache, tokens(4))
    cache.withdraw(held.handle, 2 * SIZE + 1)
    cache.check_integrity()
    assert cache.peek(tokens(4)).length == 2 * SIZE
    assert cache.stats().free == SIZE
    cache.unlock(held.handle)
    cache.check_integrity()
    assert (cache.stats().free, cache.stats().evictable) == (3 * SIZE, 2 * SIZE)


def test_withdrawn_blocks_stay_while_another_has_them_locked() -> None:
    cache = cache_of(4)
    held = hold(cache, tokens(2))
    other = cache.match_prefix(tokens(2))
    cache.lock(other.handle)
    cache.withdraw(held.handle, 0)
    cache.unlock(held.handle)
    assert cache.stats().free == 2 * SIZE
    cache.unlock(other.handle)
    assert cache.stats().free == 4 * SIZE


def test_withdrawing_needs_a_lock() -> None:
    cache = cache_of(4)
    with pytest.raises(ValueError, match="not locked"):
        cache.withdraw(cache.insert(tokens(2)).handle, 0)


def test_a_cache_of_computed_tokens_has_nothing_to_withdraw() -> None:
    cache = RadixCache(8)
    with pytest.raises(NotImplementedError, match="computed tokens only"):
        cache.withdraw(cache.insert([1, 2]).handle, 0)


# Integrity


def build() -> BlockHashCache:
    """Blocks that are idle, locked, withdrawn, duplicate and held."""
    cache = cache_of(20)
    cache.insert(tokens(3))
    hold(cache, tokens(2))
    cache.withdraw(hold(cache, tokens(2, 100)).handle, SIZE)
    cache.allocate(SIZE)
    return cache


def count_cached(cache: BlockHashCache) -> None:
    cache._cached_tokens += SIZE


def count_evictable(cache: BlockHashCache) -> None:
    cache._evictable -= SIZE


def count_keys(cache: BlockHashCache) -> None:
    cache._num_nodes += 1


def free_a_cached_block(cache: BlockHashCache) -> None:
    cache.allocator.free(np.arange(SIZE, dtype=np.int32))


def disown_a_block(cache: BlockHashCache) -> None:
    cache._is_owned[0] = False
    cache._cached_tokens -= SIZE


def lose_a_key(cache: BlockHashCache) -> None:
    cache._forget(0)


def swap_keys(cache: BlockHashCache) -> None:
    cache._key_of[0], cache._key_of[1] = cache._key_of[1], cache._key_of[0]


def misfile_a_key(cache: BlockHashCache) -> None:
    cache._found[b"another"] = 0


def keep_an_empty_list(cache: BlockHashCache) -> None:
    cache._duplicates[next(iter(cache._found))] = []


def orphan_duplicates(cache: BlockHashCache) -> None:
    key, blocks = cache._duplicates.popitem()
    cache._found[key] = blocks[0]


def leave_the_queue(cache: BlockHashCache) -> None:
    cache._idle.popitem()


def queue_a_locked_block(cache: BlockHashCache) -> None:
    cache._idle[int(np.flatnonzero(cache._locks)[0])] = 0.0


def lock_without_owning(cache: BlockHashCache) -> None:
    cache._locks[-1] = 1


def unlock_twice(cache: BlockHashCache) -> None:
    cache._locks[0] = -1


def damage_the_allocator(cache: BlockHashCache) -> None:
    cache.allocator._num_free += 1


@pytest.mark.parametrize(
    "damage",
    [
        count_cached,
        count_evictable,
        count_keys,
        free_a_cached_block,
        disown_a_block,
        lose_a_key,
        swap_keys,
        misfile_a_key,
        keep_an_empty_list,
        orphan_duplicates,
        leave_the_queue,
        queue_a_locked_block,
        lock_without_owning,
        unlock_twice,
        damage_the_allocator,
    ],
)
def test_check_integrity_notices(damage: Callable[[BlockHashCache], None]) -> None:
    cache = build()
    cache.check_integrity()
    damage(cache)
    with pytest.raises(AssertionError, match=r"\w"):
        cache.check_integrity()
