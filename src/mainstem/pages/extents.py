"""Which slots of the KV pool are free, kept as extents: maximal runs of consecutive free slots.

It knows numbers of slots and nothing of who uses them, nor of tokens or tensors. A sequence whose slots form a few long
runs can be read in place by attention, so allocation aims at few runs and freeing merges neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mainstem.errors import OutOfSlots

SlotArray: TypeAlias = npt.NDArray[np.int32]

MAX_SLOTS = 2**31 - 1


class Run(NamedTuple):
    """Consecutive slots `start`, …, `stop - 1`."""

    start: int
    stop: int


class ExtentAllocator:
    """Hands out slots of a pool in runs as long as possible.

    A sequence grows a few tokens at a time, beside others that do the same. Packing them tightly would interleave them
    slot by slot, so a new run begins in the middle of the largest extent: it has room to grow, and so has the run that
    ends before it. Nothing is reserved by that; every free slot stays available to everyone.

    Free extents are found by their first slot, by the slot after their last one, and by length. There are at most
    about `sqrt(2 * num_slots)` distinct lengths, so keeping a sorted list of them is cheap whatever the number of
    extents. Not safe for use from several threads.

    Args:
        num_slots: size of the pool.
        page_size: new runs begin at a multiple of this, provided that slots are only ever taken and freed in whole
            pages.

    Raises:
        ValueError: when `num_slots` is not between 1 and 2**31 - 1, or `page_size` is below 1.
    """

    def __init__(self, num_slots: int, page_size: int = 1) -> None:
        if not 1 <= num_slots <= MAX_SLOTS:
            raise ValueError(f"num_slots must be between 1 and {MAX_SLOTS}, got {num_slots}")
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        self.num_slots = int(num_slots)
        self.page_size = int(page_size)
        self._num_free = 0
        # One byte a slot, seen as an array too: short runs are searched faster as bytes.
        self._free_bytes = bytearray(self.num_slots)
        self._is_free = np.frombuffer(self._free_bytes, dtype=np.bool_)
        self._stop_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self._starts_by_length: dict[int, dict[int, None]] = {}
        self._lengths: list[int] = []
        self._add(0, self.num_slots)
        self._is_free[:] = True
        self._num_free = self.num_slots

    @property
    def num_free(self) -> int:
        """Slots that are not allocated."""
        return self._num_free

    @property
    def num_extents(self) -> int:
        """Maximal runs of free slots; 1 when the free memory is in one piece."""
        return len(self._stop_of)

    def allocate(self, n: int, *, after: int | None = None) -> SlotArray:
        """Take `n` free slots, in as few runs as possible.

        The extent that begins at `after + 1`, if there is one, is used first: it makes the caller's last run longer
        instead of opening another. What is still missing comes from the largest extents.

        Args:
            n: number of slots.
            after: the last slot of the sequence that is being extended, if any.

        Returns:
            int32 array of shape (n,).

        Raises:
            OutOfSlots: when fewer than `n` slots are free; nothing has changed then.
            ValueError: when `n` is negative.
        """
        return slots_of(self.allocate_runs(n, after=after))

    def allocate_runs(self, n: int, *, after: int | None = None) -> list[Run]:
        """Take `n` free slots, as `allocate` does, and return them as runs in the order of use.

        Raises:
            OutOfSlots: when fewer than `n` slots are free; nothing has changed then.
            ValueError: when `n` is negative.
        """
        if n < 0:
            raise ValueError(f"cannot allocate {n} slots")
        if n > self._num_free:
            raise OutOfSlots(n, self._num_free)
        runs = list(self._take(int(n), after))
        self._num_free -= n
        for start, stop in runs:
            self._is_free[start:stop] = False
        return runs

    def free(self, slots: SlotArray) -> None:
        """Give slots back, in any order; neighbouring extents merge.

        Raises:
            ValueError: when a slot is out of range, given twice, or already free; nothing has changed then.
        """
        self.free_runs(disjoint_runs(slots))

    def free_runs(self, runs: Sequence[Run]) -> None:
        """Give back runs that have no slot in common, in any order; as `free` does.

        Raises:
            ValueError: when a slot is out of range or already free; nothing has changed then.
        """
        for run in runs:
            if not self.all_allocated(run):
                slot = run.start + int(self._is_free[run.start : run.stop].argmax())
                raise ValueError(f"slot {slot} is freed twice")
        for start, stop in runs:
            self._release(start, stop)
            self._num_free += stop - start

    def all_allocated(self, run: Run) -> bool:
        """Whether every slot of a run is in use.

        Raises:
            ValueError: when a slot is out of range.
        """
        if run.start < 0 or run.stop > self.num_slots:
            wrong = run.start if run.start < 0 else run.stop - 1
            raise ValueError(f"slot {wrong} is outside the pool of {self.num_slots} slots")
        return self._free_bytes.find(1, run.start, run.stop) < 0

    def check_integrity(self) -> None:
        """Compare every index with the map of free slots.

        Raises:
            AssertionError: naming the broken invariant.
        """
        extents = dict(runs_of(np.flatnonzero(self._is_free)))
        assert self._num_free == np.count_nonzero(self._is_free), "free slots are miscounted"
        assert self._stop_of == extents, "extents differ from the map of free slots, or neighbours are not merged"
        assert self._start_of == {stop: start for start, stop in extents.items()}, "extents by end are wrong"
        by_length: dict[int, set[int]] = {}
        for start, stop in extents.items():
            by_length.setdefault(stop - start, set()).add(start)
        assert {length: set(starts) for length, starts in self._starts_by_length.items()} == by_length, (
            "extents by length are wrong"
        )
        assert self._lengths == sorted(by_length), "the list of lengths is wrong"

    def _take(self, n: int, after: int | None) -> Iterator[Run]:
        """Cut `n` slots out of the extents, which hold as many."""
        if n and after is not None and (start := int(after) + 1) in self._stop_of:
            run = self._cut(start, start, n)
            n -= run.stop - run.start
            yield run
        while n:
            length = self._lengths[-1]
            start = next(reversed(self._starts_by_length[length]))
            run = self._cut(start, start + self._margin(start, length - n), n)
            n -= run.stop - run.start
            yield run

    def _margin(self, start: int, spare: int) -> int:
        """How many slots to leave free before a run in the extent at `start` that has `spare` slots too many."""
        if spare <= 0 or start == 0:  # at the very beginning of the pool, no run before needs room
            return 0
        return spare // 2 - spare // 2 % self.page_size

    def _cut(self, start: int, begin: int, n: int) -> Run:
        """Take up to `n` slots, from `begin` on, out of the extent at `start`."""
        stop = self._remove(start)
        end = min(begin + n, stop)
        if start < begin:
            self._add(start, begin)
        if end < stop:
            self._add(end, stop)
        return Run(begin, end)

    def _release(self, start: int, stop: int) -> None:
        self._is_free[start:stop] = True
        if stop in self._stop_of:
            stop = self._remove(stop)
        if start in self._start_of:
            start = self._start_of[start]
            self._remove(start)
        self._add(start, stop)

    def _add(self, start: int, stop: int) -> None:
        self._stop_of[start] = stop
        self._start_of[stop] = start
        length = stop - start
        starts = self._starts_by_length.get(length)
        if starts is None:
            starts = self._starts_by_length[length] = {}
            insort(self._lengths, length)
        starts[start] = None

    def _remove(self, start: int) -> int:
        stop = self._stop_of.pop(start)
        del self._start_of[stop]
        length = stop - start
        starts = self._starts_by_length[length]
        del starts[start]
        if not starts:
            del self._starts_by_length[length]
            del self._lengths[bisect_left(self._lengths, length)]
        return stop


def slots_of(runs: Sequence[Run]) -> SlotArray:
    """The slots of some runs, one after the other, in one int32 array."""
    arrays = [np.arange(start, stop, dtype=np.int32) for start, stop in runs]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)


def runs_of(slots: npt.NDArray[np.integer[Any]]) -> list[Run]:
    """The runs of consecutive slots in an array, in its own order: `[7, 8, 9, 2, 3]` has 7–9 and 2–3.

    Raises:
        ValueError: when it is not a one-dimensional array of integers.
    """
    slots = np.asarray(slots)
    if slots.ndim != 1 or (slots.dtype.kind not in "iu" and len(slots)):
        raise ValueError("slots must be a one-dimensional array of integers")
    if slots.dtype != np.int32:
        slots = slots.astype(np.int64)
    if len(slots) == 0:
        return []
    breaks = np.flatnonzero(slots[1:] != slots[:-1] + 1)
    if len(breaks) == 0:
        return [Run(slots.item(0), slots.item(-1) + 1)]
    starts = [slots.item(0), *slots[breaks + 1].tolist()]
    stops = [*(slots[breaks] + 1).tolist(), slots.item(-1) + 1]
    # As `Run(start, stop)` for each, in a quarter of the time.
    return list(map(tuple.__new__, repeat(Run), zip(starts, stops, strict=True)))


def disjoint_runs(slots: npt.NDArray[np.integer[Any]]) -> list[Run]:
    """The maximal runs of a set of slots given in any order, ascending.

    Raises:
        ValueError: when it is not a one-dimensional array of integers, or a slot occurs twice.
    """
    return merge_runs(runs_of(slots))


def merge_runs(runs: Sequence[Run]) -> list[Run]:
    """Runs given in any order, ascending, and those that touch made one.

    Raises:
        ValueError: when two of them have a slot in common.
    """
    if len(runs) < 2:
        return list(runs)
    first, *rest = sorted(runs)
    merged = [first]
    for run in rest:
        last = merged[-1]
        if run.start < last.stop:
            raise ValueError(f"slot {run.start} is given twice")
        if run.start == last.stop:
            merged[-1] = Run(last.start, run.stop)
        else:
            merged.append(run)
    return merged
