"""What the radix tree matches and stores."""

from __future__ import annotations

import numpy as np
import pytest

from mainstem.errors import OutOfSlots
from mainstem.tree import RadixCache


@pytest.fixture
def cache() -> RadixCache:
    return RadixCache(100)


def test_two_turns_of_an_agent_share_the_first_turn() -> None:
    """The demonstration of the document that this project began with."""
    cache = RadixCache(4096)
    turn1 = [*range(101, 111), 201, 202, 203, 301, 302]
    turn2 = [*turn1, 401, 402, 403, 404]
    assert len(cache.insert(turn1).slots) == 15
    match = cache.match_prefix(turn2)
    assert (match.length, f"{match.length / len(turn2):.1%}") == (15, "78.9%")
    cache.insert(turn2)
    assert cache.capacity - cache.stats().free == 19


def test_an_empty_cache_matches_nothing(cache: RadixCache) -> None:
    match = cache.match_prefix([1, 2, 3])
    assert (match.length, match.slots.tolist()) == (0, [])


def test_inserted_tokens_are_matched_with_their_slots(cache: RadixCache) -> None:
    inserted = cache.insert([1, 2, 3])
    match = cache.match_prefix([1, 2, 3, 4])
    assert match.length == 3
    assert match.slots.tolist() == inserted.slots.tolist()
    assert match.slots.dtype == inserted.slots.dtype == np.int32


def test_inserting_a_strict_prefix_of_an_edge_allocates_nothing(cache: RadixCache) -> None:
    whole = cache.insert([1, 2, 3, 4])
    prefix = cache.insert([1, 2])
    assert (prefix.length, prefix.num_cached) == (2, 2)
    assert prefix.slots.tolist() == whole.slots.tolist()[:2]
    assert cache.stats().free == 96
    cache.check_integrity()


def test_inserting_the_same_twice_allocates_nothing(cache: RadixCache) -> None:
    first = cache.insert([1, 2, 3])
    second = cache.insert([1, 2, 3])
    assert (second.length, second.num_cached) == (3, 3)
    assert second.slots.tolist() == first.slots.tolist()
    assert (cache.stats().free, cache.stats().num_nodes) == (97, 1)


def test_inserting_nothing_stores_nothing(cache: RadixCache) -> None:
    result = cache.insert([])
    assert (result.length, result.num_cached, result.slots.tolist()) == (0, 0, [])
    assert (cache.stats().num_nodes, cache.stats().num_namespaces) == (0, 0)


def test_one_token_is_stored_and_matched(cache: RadixCache) -> None:
    cache.insert([7])
    assert cache.match_prefix([7]).length == 1
    assert cache.match_prefix([8]).length == 0


def test_a_longer_sequence_adds_only_its_end(cache: RadixCache) -> None:
    first = cache.insert([1, 2, 3])
    second = cache.insert([1, 2, 3, 4, 5])
    assert (second.length, second.num_cached) == (5, 3)
    assert second.slots.tolist()[:3] == first.slots.tolist()
    assert cache.stats().free == 95


def test_slots_of_a_growing_sequence_are_one_run(cache: RadixCache) -> None:
    cache.insert(range(10))
    slots = cache.insert(range(30)).slots
    assert (np.diff(slots) == 1).all()


def test_a_match_in_the_middle_of_an_edge_splits_it_and_both_halves_keep_their_slots(cache: RadixCache) -> None:
    slots = cache.insert([1, 2, 3, 4, 5]).slots.tolist()
    match = cache.match_prefix([1, 2, 3, 9])
    assert (match.length, match.slots.tolist()) == (3, slots[:3])
    assert cache.stats().num_nodes == 2
    assert cache.match_prefix([1, 2, 3, 4, 5]).slots.tolist() == slots
    cache.check_integrity()


def test_the_handle_of_a_match_in_the_middle_of_an_edge_stands_for_the_matched_half(cache: RadixCache) -> None:
    cache.insert([1, 2, 3, 4, 5])
    cache.lock(cache.match_prefix([1, 2, 3, 9]).handle)
    assert cache.stats().protected == 3


def test_branches_share_their_common_beginning(cache: RadixCache) -> None:
    left = cache.insert([1, 2, 3, 4, 5])
    right = cache.insert([1, 2, 3, 6, 7])
    assert (right.num_cached, right.slots.tolist()[:3]) == (3, left.slots.tolist()[:3])
    assert set(right.slots.tolist()[3:]).isdisjoint(left.slots.tolist())
    assert (cache.stats().free, cache.stats().num_nodes) == (93, 3)


def test_a_reply_is_matched_up_to_its_last_token_without_kv(cache: RadixCache) -> None:
    prompt, reply = [1, 2, 3, 4], [5, 6, 7]
    cache.insert((prompt + reply)[:-1])  # the last sampled token has no KV yet
    next_turn = [*prompt, *reply, 8, 9]
    assert cache.match_prefix(next_turn).length == len(prompt) + len(reply) - 1


def test_results_do_not_alias_the_cache(cache: RadixCache) -> None:
    tokens = np.array([1, 2, 3], dtype=np.int32)
    cache.insert(tokens).slots[:] = 55
    tokens[:] = 9
    match = cache.match_prefix([1, 2, 3])
    match.slots[:] = 66
    assert cache.match_prefix([1, 2, 3]).slots.tolist() == [0, 1, 2]
    cache.check_integrity()


def test_peek_says_what_a_match_would_find(cache: RadixCache) -> None:
    cache.insert([1, 2, 3, 4, 5])
    assert cache.peek([1, 2, 3, 9]) == (3, 3)
    assert cache.peek([9]) == (0, 0)


def test_peek_tells_the_part_of_a_match_that_is_not_locked(cache: RadixCache) -> None:
    cache.insert([1, 2, 3, 4, 5])
    cache.lock(cache.match_prefix([1, 2]).handle)
    assert cache.peek([1, 2, 3, 4, 9]) == (4, 2)


def test_peek_has_no_effect(cache: RadixCache) -> None:
    cache.insert([1, 2, 3, 4, 5])
    cache.insert([6, 7])
    before = cache.stats()
    cache.peek([1, 2, 3])
    assert cache.stats() == before
    cache.evict(5)
    assert cache.peek([1, 2, 3]).length == 0
    assert cache.peek([6, 7]).length == 2


def test_statistics_count_matches_and_nothing_else(cache: RadixCache) -> None:
    cache.insert([1, 2, 3])
    cache.match_prefix([1, 2, 9, 9])
    cache.match_prefix([9])
    cache.insert([1, 2, 3, 4])
    stats = cache.stats()
    assert (stats.queries, stats.hits, stats.query_tokens, stats.hit_tokens) == (2, 1, 5, 2)
    assert stats.inserted_tokens == 4


def test_a_sequence_longer_than_the_pool_is_refused_and_changes_nothing() -> None:
    cache = RadixCache(10)
    cache.insert([1, 2, 3, 4])
    cache.insert([5, 6])
    before = cache.stats()
    with pytest.raises(OutOfSlots) as raised:
        cache.insert([1, 2, *range(50, 60)])
    assert (raised.value.needed, raised.value.available) == (10, 8)
    assert cache.stats() == before
    cache.evict(4)  # the failed insert must not have made [1, 2] more recent
    assert cache.peek([5, 6]).length == 2
    cache.check_integrity()


def test_the_capacity_is_never_exceeded() -> None:
    cache = RadixCache(10)
    for start in range(50):
        cache.insert(range(100 * start, 100 * start + 7))
        stats = cache.stats()
        assert stats.free + stats.evictable + stats.protected == 10
    assert cache.stats().evicted == 50 * 7 - 10


def test_slots_of_evicted_tokens_are_used_again() -> None:
    cache = RadixCache(10)
    seen: set[int] = set()
    for start in range(20):
        seen.update(cache.insert(range(100 * start, 100 * start + 7)).slots.tolist())
    assert seen <= set(range(10))


def test_an_insert_never_evicts_the_prefix_that_it_extends() -> None:
    cache = RadixCache(10)
    old = cache.insert([1, 2, 3, 4])
    cache.insert([5, 6, 7, 8])
    result = cache.insert([1, 2, 3, 4, 10, 11, 12, 13])
    assert result.num_cached == 4
    assert result.slots.tolist()[:4] == old.slots.tolist()
    assert cache.peek([5, 6, 7, 8]).length == 2
    cache.check_integrity()


def test_an_insert_may_evict_what_follows_the_prefix_that_it_extends() -> None:
    cache = RadixCache(6)
    cache.insert([1, 2, 3, 4, 5])
    assert cache.insert([1, 2, 7, 8, 9, 10]).length == 6
    assert cache.peek([1, 2, 3]).length == 2


@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_pages_round_matches_and_inserts_down(size: int) -> None:
    cache = RadixCache(64, page_size=size)
    tokens = list(range(40))
    whole = 39 // size * size
    result = cache.insert(tokens[:39])
    assert (result.length, len(result.slots)) == (whole, whole)
    assert cache.stats().free == 64 - whole
    diverging = [*tokens[:21], 99, *tokens[22:]]
    assert cache.match_prefix(diverging).length == 21 // size * size
    cache.check_integrity()


def test_pages_with_the_same_first_token_are_told_apart() -> None:
    cache = RadixCache(64, page_size=4)
    cache.insert([1, 1, 1, 1, 5, 5, 5, 5])
    cache.insert([1, 1, 1, 2, 5, 5, 5, 5])
    assert cache.stats().num_nodes == 2
    assert cache.match_prefix([1, 1, 1, 2, 5, 5, 5, 5]).length == 8
    assert cache.match_prefix([1, 1, 1, 3]).length == 0


def test_the_slots_of_a_page_are_consecutive_and_aligned() -> None:
    cache = RadixCache(64, page_size=4)
    for start in range(0, 300, 10):
        slots = cache.insert(range(start, start + 22)).slots.reshape(-1, 4)
        assert (slots[:, 0] % 4 == 0).all()
        assert (np.diff(slots, axis=1) == 1).all()


@pytest.mark.parametrize(("capacity", "page_size"), [(0, 1), (-4, 1), (10, 4), (16, 0)])
def test_impossible_sizes_are_refused(capacity: int, page_size: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        RadixCache(capacity, page_size)
