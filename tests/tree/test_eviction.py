"""What goes when room is needed, in which order and how much of it."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from mainstem.errors import OutOfSlots
from mainstem.pages import runs_of
from mainstem.tree import EvictionReason, RadixCache
from mainstem.tree.node import Node
from mainstem.tree.order import Ring
from mainstem.tree.tenancy import Space


@pytest.fixture
def cache() -> RadixCache:
    return RadixCache(100)


def test_evicting_three_of_ten_tokens_frees_three(cache: RadixCache) -> None:
    cache.insert(range(10))
    assert cache.evict(3) == 3
    assert (cache.stats().free, cache.stats().evicted) == (93, 3)


def test_a_leaf_is_trimmed_from_its_tail(cache: RadixCache) -> None:
    slots = cache.insert(range(10)).slots.tolist()
    cache.evict(3)
    match = cache.match_prefix(range(10))
    assert (match.length, match.slots.tolist()) == (7, slots[:7])
    cache.check_integrity()


def test_eviction_stops_when_nothing_is_left(cache: RadixCache) -> None:
    cache.insert([1, 2, 3])
    assert cache.evict(50) == 3
    assert cache.evict(50) == 0


def test_evicting_nothing_frees_nothing(cache: RadixCache) -> None:
    cache.insert([1, 2, 3])
    assert cache.evict(0) == 0


def test_a_negative_number_is_refused(cache: RadixCache) -> None:
    with pytest.raises(ValueError, match="-1"):
        cache.evict(-1)


def test_the_least_recently_inserted_goes_first(cache: RadixCache) -> None:
    for first in (1, 2, 3):
        cache.insert([first, 0])
    cache.evict(2)
    assert [cache.peek([first, 0]).length for first in (1, 2, 3)] == [0, 2, 2]


def test_a_match_makes_its_path_more_recent(cache: RadixCache) -> None:
    for first in (1, 2, 3):
        cache.insert([first, 0])
    cache.match_prefix([1, 0])
    cache.evict(2)
    assert [cache.peek([first, 0]).length for first in (1, 2, 3)] == [2, 0, 2]


def test_an_insert_makes_its_path_more_recent(cache: RadixCache) -> None:
    for first in (1, 2):
        cache.insert([first, 0])
    cache.insert([1, 0])
    cache.evict(2)
    assert [cache.peek([first, 0]).length for first in (1, 2)] == [2, 0]


def test_a_release_makes_its_path_more_recent(cache: RadixCache) -> None:
    handle = cache.insert([1, 0]).handle
    cache.lock(handle)
    cache.insert([2, 0])
    cache.unlock(handle)
    cache.evict(2)
    assert [cache.peek([first, 0]).length for first in (1, 2)] == [2, 0]


def test_only_the_matched_half_of_an_edge_becomes_more_recent(cache: RadixCache) -> None:
    cache.insert([1, 2, 3, 4])
    cache.insert([5, 6])
    cache.match_prefix([1, 2])
    cache.evict(4)
    assert cache.peek([1, 2, 3, 4]).length == 2
    assert cache.peek([5, 6]).length == 0


def test_a_trimmed_leaf_keeps_its_place_in_the_order(cache: RadixCache) -> None:
    cache.insert([1, 2, 3, 4])
    cache.insert([5, 6])
    cache.evict(1)
    cache.evict(3)
    assert cache.peek([1]).length == 0
    assert cache.peek([5, 6]).length == 2


def test_a_parent_goes_only_after_its_children(cache: RadixCache) -> None:
    cache.insert([1, 2, 3])
    cache.insert([1, 2, 4])
    cache.evict(1)
    assert cache.peek([1, 2, 3]).length == 2
    cache.evict(1)
    assert (cache.peek([1, 2]).length, cache.stats().num_nodes) == (2, 1)


def test_a_parent_can_go_when_its_last_child_is_gone(cache: RadixCache) -> None:
    cache.insert([1, 2, 3])
    cache.insert([1, 2, 4])
    cache.evict(2)
    assert cache.evict(2) == 2
    assert cache.stats().num_nodes == 0


def test_pages_round_an_eviction_up() -> None:
    cache = RadixCache(64, page_size=4)
    cache.insert(range(16))
    assert cache.evict(1) == 4
    assert cache.evict(5) == 8
    assert cache.match_prefix(range(16)).length == 4
    cache.check_integrity()


def test_allocation_evicts_just_what_is_missing() -> None:
    cache = RadixCache(10)
    cache.insert(range(8))
    slots = cache.allocate(4)
    assert len(set(slots.tolist())) == 4
    assert (cache.stats().evicted, cache.held) == (2, 4)
    cache.check_integrity()


def test_an_allocation_that_cannot_be_met_is_refused_and_evicts_nothing() -> None:
    cache = RadixCache(10)
    cache.lock(cache.insert(range(5)).handle)
    cache.insert(range(10, 13))
    with pytest.raises(OutOfSlots) as raised:
        cache.allocate(6)
    assert (raised.value.needed, raised.value.available) == (6, 5)
    assert (cache.stats().evicted, cache.stats().free) == (0, 2)


def test_an_allocation_goes_on_after_the_last_slot(cache: RadixCache) -> None:
    first = cache.insert(range(5)).slots
    more = cache.allocate(5, after=int(first[-1]))
    assert runs_of(np.concatenate([first, more])) == [(0, 10)]


@pytest.mark.parametrize("n", [-1, -4, 3])
def test_an_allocation_must_be_in_whole_pages(n: int) -> None:
    with pytest.raises(ValueError, match="multiple of the page size"):
        RadixCache(16, page_size=4).allocate(n)


def test_a_trimmed_leaf_does_not_keep_its_former_arrays_in_memory(cache: RadixCache) -> None:
    cache.insert(range(90))
    cache.evict(80)
    (leaf,) = cache._order.accounts[()].order.usual()
    assert leaf.key.base is None
    assert leaf.slots.base is None
    cache.check_integrity()


def test_the_beginning_of_a_split_edge_does_not_keep_the_whole_in_memory(cache: RadixCache) -> None:
    cache.insert(range(90))
    cache.match_prefix(range(10))
    cache.evict(80)
    (leaf,) = cache._order.accounts[()].order.usual()
    assert leaf.key.base is None
    cache.check_integrity()


@pytest.mark.parametrize("evicted", [80, 90])
def test_a_handle_of_what_was_evicted_keeps_nothing_in_memory(cache: RadixCache, evicted: int) -> None:
    handle = cache.insert(range(90)).handle
    cache.evict(evicted)
    kept = gc.get_referents(handle)
    assert not any(isinstance(thing, Node | Ring | Space) for thing in kept)
    assert sum(thing.nbytes for thing in kept if isinstance(thing, np.ndarray)) == 0


def test_whoever_listens_is_told_what_leaves_and_why(cache: RadixCache) -> None:
    told: list[tuple[list[int], int, EvictionReason]] = []
    cache.on_evict.append(lambda node, kept, reason: told.append((node.key.tolist(), kept, reason)))
    cache.insert([1, 2, 3])
    cache.insert([1, 2, 7, 8, 9])
    cache.evict(2)  # the older leaf, and the end of the other one
    cache.reset()
    assert told == [
        ([3], 0, EvictionReason.LRU),
        ([7, 8, 9], 2, EvictionReason.LRU),
        ([7, 8], 0, EvictionReason.RESET),
        ([1, 2], 0, EvictionReason.RESET),
    ]
    assert (cache.evicted_by_reason[EvictionReason.LRU], cache.evicted_by_reason[EvictionReason.RESET]) == (2, 4)


def test_what_leaves_is_still_in_its_place_when_listeners_are_told(cache: RadixCache) -> None:
    parents: list[list[int]] = []

    def note(node: Node, *_: object) -> None:
        assert node.parent is not None
        parents.append(node.parent.key.tolist())

    cache.on_evict.append(note)
    cache.insert([1, 2, 3])
    cache.insert([1, 2, 7])
    cache.evict(2)
    assert parents == [[1, 2], [1, 2]]


def test_wanted_leaves_go_last_and_all_the_same_when_room_is_needed() -> None:
    cache = RadixCache(60)
    for first in (0, 100, 200):
        cache.insert(range(first, first + 20))
    cache.wanted = lambda leaf: 12 if leaf.key[0] == 0 else 0
    cache.evict(10)
    assert cache.peek(range(20)).length == 12
    cache.evict(30)
    assert [cache.peek(range(first, first + 20)).length for first in (0, 100, 200)] == [12, 0, 8]
    cache.evict(20)
    assert cache.stats().free == 60
    cache.check_integrity()


@pytest.mark.parametrize("page_size", [1, 4])
def test_room_is_made_though_all_is_wanted(page_size: int) -> None:
    cache = RadixCache(400, page_size)
    for first in range(0, 1000, 100):
        cache.insert(range(first, first + 40))
    cache.wanted = lambda leaf: len(leaf.key)
    assert cache.evict(100) == 100
    cache.check_integrity()
