"""The slot allocator, one behaviour at a time. Random operations are in test_extents_model.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mainstem.errors import OutOfSlots
from mainstem.pages import ExtentAllocator, Run, disjoint_runs, merge_runs, runs_of, slots_of


def holes(allocator: ExtentAllocator, *runs: tuple[int, int]) -> None:
    """Take every slot of a fresh allocator, then free these runs."""
    allocator.allocate(allocator.num_slots)
    for start, stop in runs:
        allocator.free(np.arange(start, stop, dtype=np.int32))


def test_fresh_pool_is_one_extent() -> None:
    allocator = ExtentAllocator(10)
    assert (allocator.num_free, allocator.num_extents) == (10, 1)


def test_allocation_is_one_int32_run_when_an_extent_holds_it() -> None:
    slots = ExtentAllocator(10).allocate(4)
    assert slots.dtype == np.int32
    assert slots.tolist() == [0, 1, 2, 3]


def test_allocating_nothing_takes_nothing() -> None:
    allocator = ExtentAllocator(10)
    assert allocator.allocate(0, after=3).shape == (0,)
    assert allocator.num_free == 10


def test_allocation_goes_on_after_the_last_slot_of_a_sequence() -> None:
    allocator = ExtentAllocator(100)
    first = allocator.allocate(5)
    assert allocator.allocate(3, after=int(first[-1])).tolist() == [5, 6, 7]


def test_what_does_not_fit_after_the_last_slot_comes_from_the_largest_extent() -> None:
    allocator = ExtentAllocator(100)
    holes(allocator, (10, 12), (20, 24), (40, 60))
    slots = allocator.allocate(6, after=9)
    assert runs_of(slots)[0] == Run(10, 12)
    assert set(slots[2:].tolist()) <= set(range(40, 60))
    assert len(runs_of(slots)) == 2


def test_sequences_that_grow_side_by_side_stay_contiguous() -> None:
    allocator = ExtentAllocator(10_000)
    sequences = [allocator.allocate(100).tolist() for _ in range(8)]
    for _ in range(200):
        for slots in sequences:
            slots += allocator.allocate(1, after=slots[-1]).tolist()
    assert [len(runs_of(np.array(slots))) for slots in sequences] == [1] * 8


def test_an_allocation_larger_than_any_extent_takes_the_largest_ones() -> None:
    allocator = ExtentAllocator(100)
    holes(allocator, (0, 3), (10, 30), (40, 50), (60, 61))
    slots = allocator.allocate(28)
    assert runs_of(slots)[0] == Run(10, 30)
    assert len(runs_of(slots)) == 2


def test_every_free_slot_can_be_allocated_however_scattered() -> None:
    allocator = ExtentAllocator(9)
    holes(allocator, (0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
    assert sorted(allocator.allocate(5).tolist()) == [0, 2, 4, 6, 8]


def test_new_runs_begin_at_a_multiple_of_the_page_size() -> None:
    allocator = ExtentAllocator(100, page_size=4)
    starts = [int(allocator.allocate(8)[0]) for _ in range(8)]
    assert [start % 4 for start in starts] == [0] * 8


def test_too_large_an_allocation_is_refused_and_changes_nothing() -> None:
    allocator = ExtentAllocator(10)
    allocator.allocate(4)
    with pytest.raises(OutOfSlots) as raised:
        allocator.allocate(7, after=3)
    assert (raised.value.needed, raised.value.available) == (7, 6)
    assert allocator.num_free == 6
    allocator.check_integrity()


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [0, 2, 1]])
def test_freed_neighbours_merge_in_any_order(order: list[int]) -> None:
    allocator = ExtentAllocator(9)
    holes(allocator)
    for index in order:
        allocator.free(np.arange(3 * index, 3 * index + 3, dtype=np.int32))
    assert allocator.num_extents == 1
    assert runs_of(allocator.allocate(9)) == [Run(0, 9)]


def test_slots_are_freed_in_any_order() -> None:
    allocator = ExtentAllocator(10)
    holes(allocator)
    allocator.free(np.array([7, 2, 8, 3, 9], dtype=np.int32))
    assert (allocator.num_free, allocator.num_extents) == (5, 2)
    allocator.check_integrity()


@pytest.mark.parametrize("slots", [[4, 5, 4], [8, 9, 0], [-1, 5], [9, 10], [3, 3]])
def test_a_wrong_free_is_refused_and_changes_nothing(slots: list[int]) -> None:
    allocator = ExtentAllocator(10)
    holes(allocator, (0, 1))
    with pytest.raises(ValueError, match=r"twice|outside"):
        allocator.free(np.array(slots, dtype=np.int32))
    assert allocator.num_free == 1
    allocator.check_integrity()


def test_freeing_nothing_changes_nothing() -> None:
    allocator = ExtentAllocator(10)
    allocator.free(np.empty(0, dtype=np.int32))
    assert allocator.num_free == 10


@pytest.mark.parametrize("slots", [np.array([1.0]), np.array(1), np.array([[1]]), np.array(["1"])])
def test_slots_must_be_a_line_of_integers(slots: np.ndarray) -> None:
    with pytest.raises(ValueError, match="one-dimensional array of integers"):
        ExtentAllocator(10).free(slots)


@pytest.mark.parametrize(
    "make", [lambda: ExtentAllocator(0), lambda: ExtentAllocator(2**31), lambda: ExtentAllocator(8, 0)]
)
def test_impossible_pools_are_refused(make: Callable[[], ExtentAllocator]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


def test_a_negative_number_of_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        ExtentAllocator(10).allocate(-1)


def test_runs_keep_the_order_of_the_slots() -> None:
    assert runs_of(np.array([7, 8, 9, 2, 3, 0], dtype=np.uint8)) == [Run(7, 10), Run(2, 4), Run(0, 1)]


def test_runs_of_narrow_integers_do_not_wrap_round() -> None:
    assert runs_of(np.array([254, 255, 0], dtype=np.uint8)) == [Run(254, 256), Run(0, 1)]


def test_slots_of_runs_is_the_inverse_of_runs_of_slots() -> None:
    slots = [7, 8, 9, 2, 3, 0]
    assert slots_of(runs_of(np.array(slots))).tolist() == slots


def test_disjoint_runs_are_ascending_and_merged() -> None:
    assert disjoint_runs(np.array([5, 6, 0, 3, 4])) == [Run(0, 1), Run(3, 7)]


def test_runs_with_a_common_slot_are_refused() -> None:
    with pytest.raises(ValueError, match="slot 4 is given twice"):
        merge_runs([Run(4, 6), Run(0, 5)])


def sabotage_count(allocator: ExtentAllocator) -> None:
    allocator._num_free += 1


def sabotage_map(allocator: ExtentAllocator) -> None:
    allocator._is_free[0] = not allocator._is_free[0]
    allocator._num_free = int(np.count_nonzero(allocator._is_free))


def sabotage_merging(allocator: ExtentAllocator) -> None:
    stop = allocator._remove(8)
    allocator._add(8, 9)
    allocator._add(9, stop)


def sabotage_ends(allocator: ExtentAllocator) -> None:
    allocator._start_of.clear()


def sabotage_buckets(allocator: ExtentAllocator) -> None:
    allocator._starts_by_length.clear()


def sabotage_lengths(allocator: ExtentAllocator) -> None:
    allocator._lengths.append(10**6)


@pytest.mark.parametrize(
    "sabotage",
    [sabotage_count, sabotage_map, sabotage_merging, sabotage_ends, sabotage_buckets, sabotage_lengths],
)
def test_check_integrity_notices(sabotage: Callable[[ExtentAllocator], None]) -> None:
    allocator = ExtentAllocator(20)
    allocator.allocate(8)
    allocator.check_integrity()
    sabotage(allocator)
    with pytest.raises(AssertionError):
        allocator.check_integrity()
