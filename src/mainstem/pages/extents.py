"""Which slots of the KV pool are free, kept as extents: maximal runs of consecutive free slots.

It knows numbers of slots and nothing of who uses them, nor of tokens or tensors. A sequence whose slots form a few long
runs can be read in place by attention, so allocation aims at few runs and freeing merges neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

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

    Free extents are found by their first slot, by the slot after their last one, and by length. There are at most
    about `sqrt(2 * num_slots)` distinct lengths, so a sorted list of them makes best fit a binary search, whatever the
    number of extents. Not safe for use from several threads.

    Raises:
        ValueError: when `num_slots` is not between 1 and 2**31 - 1.
    """

    def __init__(self, num_slots: int) -> None:
        if not 1 <= num_slots <= MAX_SLOTS:
            raise ValueError(f"num_slots must be between 1 and {MAX_SLOTS}, got {num_slots}")
        self.num_slots = int(num_slots)
        self._num_free = 0
        self._is_free = np.zeros(self.num_slots, dtype=np.bool_)
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

        The run that begins at `after + 1`, if it is free, is used first: it makes the caller's last run longer instead
        of opening another. What is still missing comes from the smallest extent that holds all of it, or else from the
        largest extents.

        Args:
            n: number of slots.
            after: the last slot of the sequence that is being extended, if any.

        Returns:
            int32 array of shape (n,).

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
        if len(runs) == 1:
            return np.arange(*runs[0], dtype=np.int32)
        return np.concatenate([np.empty(0, np.int32), *(np.arange(*run, dtype=np.int32) for run in runs)])

    def free(self, slots: SlotArray) -> None:
        """Give slots back, in any order; neighbouring extents merge.

        Raises:
            ValueError: when a slot is out of range, given twice, or already free; nothing has changed then.
        """
        slots = ascending(slots)
        if len(slots) == 0:
            return
        if slots[0] < 0 or slots[-1] >= self.num_slots:
            wrong = slots[0] if slots[0] < 0 else slots[-1]
            raise ValueError(f"slot {wrong} is outside the pool of {self.num_slots} slots")
        already = self._is_free[slots]
        if already.any():
            raise ValueError(f"slot {slots[already.argmax()]} is freed twice")
        for start, stop in runs_of(slots):
            self._release(start, stop)
        self._num_free += len(slots)

    def all_allocated(self, slots: SlotArray) -> bool:
        """Whether every one of `slots` (all in range) is in use."""
        return not self._is_free[slots].any()

    def check_integrity(self) -> None:
        """Compare every index with the map of free slots.

        Raises:
            AssertionError: naming the broken invariant.
        """
        extents = dict(runs_of(np.flatnonzero(self._is_free).astype(np.int32)))
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
            run = self._cut(start, n)
            n -= run.stop - run.start
            yield run
        while n:
            run = self._cut(self._choose(n), n)
            n -= run.stop - run.start
            yield run

    def _choose(self, n: int) -> int:
        """First slot of the smallest extent that holds `n` slots, or else of the largest one."""
        index = min(bisect_left(self._lengths, n), len(self._lengths) - 1)
        return next(reversed(self._starts_by_length[self._lengths[index]]))

    def _cut(self, start: int, n: int) -> Run:
        """Take up to `n` slots from the front of the extent at `start`."""
        stop = self._remove(start)
        end = min(start + n, stop)
        if end < stop:
            self._add(end, stop)
        return Run(start, end)

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


def ascending(slots: SlotArray) -> SlotArray:
    """`slots` in ascending order; the same array when it is so already.

    Raises:
        ValueError: when it is not a one-dimensional array of integers, or a slot occurs twice.
    """
    slots = np.asarray(slots)
    if slots.ndim != 1 or (slots.dtype.kind not in "iu" and len(slots)):
        raise ValueError("slots must be a one-dimensional array of integers")
    if len(slots) < 2 or (slots[1:] > slots[:-1]).all():
        return slots
    slots = np.sort(slots)
    same = slots[1:] == slots[:-1]
    if same.any():
        raise ValueError(f"slot {slots[same.argmax()]} is given twice")
    return slots


def runs_of(slots: SlotArray) -> list[Run]:
    """The maximal runs of consecutive numbers in a strictly ascending array."""
    if len(slots) == 0:
        return []
    first, last = int(slots[0]), int(slots[-1])
    if last - first + 1 == len(slots):
        return [Run(first, last + 1)]
    breaks = np.flatnonzero(slots[1:] != slots[:-1] + 1)
    starts = [first, *slots[breaks + 1].tolist()]
    stops = [*(slots[breaks] + 1).tolist(), last + 1]
    return [Run(start, stop) for start, stop in zip(starts, stops, strict=True)]
