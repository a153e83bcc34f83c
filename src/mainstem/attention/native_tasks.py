"""Cuts a step's plan into tasks for the threads of the native extension.

A piece is some rows and a stretch of keys that all of them see in the same slots; a task is a list of pieces that one
thread runs in order. Rows of a long prompt are swept: one piece goes over all of their keys. Where there are too few
rows to feed every thread, or where rows share keys, the keys are cut into spans, and each row's spans are merged
afterwards. It knows plans and numbers, no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, gcd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mainstem.attention.plan import SequenceRows, StepPlan

PIECE = np.dtype(
    [
        ("slots", np.uint64),
        ("row_begin", np.int32),
        ("row_end", np.int32),
        ("key_begin", np.int32),
        ("key_end", np.int32),
        ("sweep", np.int32),
        ("unused", np.int32),
    ],
    align=True,
)
"""The `Piece` of native.c."""

# A block of keys is prepared once for this many queries (rows times query heads of a KV head) at most.
MAX_QUERIES = 384
# What preparing a block costs, in queries that it could be used for in that time.
PREPARATION = 24
# Tasks for each thread, so that none waits long for the last.
TASKS_PER_THREAD = 4


class Tasks(NamedTuple):
    """What the extension runs. The arrays, and the slots that they point to, must outlive the run.

    Attributes:
        pieces: of dtype PIECE.
        tasks: int32[num_tasks + 1], where each task's pieces begin.
        limits: int32[rows], how many keys each row sees.
        merged_rows: int32, rows whose output is merged from states.
        states_at: int64[rows], where each row's states begin.
        num_states: how many states there are, for each KV head.
        max_rows: rows of the largest piece.
        owner: keeps the slots alive.
    """

    pieces: npt.NDArray[Any]
    tasks: npt.NDArray[np.int32]
    limits: npt.NDArray[np.int32]
    merged_rows: npt.NDArray[np.int32]
    states_at: npt.NDArray[np.int64]
    num_states: int
    max_rows: int
    owner: StepPlan


class _Piece(NamedTuple):
    slots: int
    row_begin: int
    row_end: int
    key_begin: int
    key_end: int
    sweep: bool = False

    @property
    def cost(self) -> int:
        return (self.row_end - self.row_begin + 1) * (self.key_end - self.key_begin)


@dataclass(slots=True)
class _Planner:
    """Collects tasks. `open_task` is, for each row, the task that has its last span, while that is incomplete."""

    span: int
    max_rows: int
    tasks: list[list[_Piece]] = field(default_factory=list)
    open_task: dict[int, list[_Piece]] = field(default_factory=dict)
    merged: list[int] = field(default_factory=list)

    def sweep(self, sequence: SequenceRows, begin: int, end: int) -> None:
        """Rows `[begin, end)` of a sequence over all their keys."""
        visible = len(sequence.slots) - (sequence.row_end - end)
        self.tasks.append([_Piece(sequence.slots.ctypes.data, begin, end, 0, visible, sweep=True)])

    def cover(self, rows: tuple[int, int], slots: int, begin: int, end: int, *, split: bool) -> None:
        """Rows over keys `[begin, end)`: the rest of a span goes to the task that began it, all else to new tasks."""
        while begin < end:
            within = begin % self.span
            stop = min(end, begin - within + self.span) if split or within else end
            task = self.open_task[rows[0]] if within else []
            if not within:
                self.tasks.append(task)
            for first in range(rows[0], rows[1], self.max_rows):
                task.append(_Piece(slots, first, min(first + self.max_rows, rows[1]), begin, stop))
            begin = stop
            if stop % self.span:
                self.open_task.update(dict.fromkeys(range(*rows), task))


def plan_tasks(plan: StepPlan, *, group: int, kv_heads: int, threads: int, block: int, span: int, rows: int) -> Tasks:
    """Cut a plan into tasks.

    Args:
        plan: the step's.
        group: query heads of one KV head.
        kv_heads: every task is run once for each.
        threads: how many will run them.
        block: keys a block; pieces begin at a multiple of it.
        span: keys a partial result, a multiple of `block`.
        rows: queries that the extension computes together.
    """
    planner = _Planner(span, max(1, MAX_QUERIES // group))
    enough = ceil(TASKS_PER_THREAD * threads / kv_heads)
    multiple = rows // gcd(rows, group)
    tiles = [
        (chunk, begin, min(begin + size, chunk.row_end))
        for chunk in plan.chunks
        for size in [_tile_rows(chunk.row_end - chunk.row_begin, group, kv_heads, threads, multiple)]
        for begin in range(chunk.row_begin, chunk.row_end, size)
    ]
    sweeping = not plan.shared and len(tiles) + plan.num_singles >= enough
    for chunk, begin, end in tiles:
        if sweeping or len(tiles) * kv_heads >= threads:
            planner.sweep(chunk, begin, end)
        else:
            visible = len(chunk.slots) - (chunk.row_end - end)
            planner.cover((begin, end), chunk.slots.ctypes.data, 0, visible, split=True)
            planner.merged.extend(range(begin, end))
    if sweeping:
        for single in plan.singles:
            planner.sweep(single, single.row_begin, single.row_end)
    else:
        _cover_singles(plan, planner, block, split=plan.num_singles < enough)
    return _pack(plan, planner)


def _tile_rows(count: int, group: int, kv_heads: int, threads: int, multiple: int) -> int:
    """Of how many rows, a multiple of `multiple`, a chunk's tiles are, so that the last thread is done soonest."""
    most = max(MAX_QUERIES // group // multiple, 1) * multiple
    fewest = ceil(count / most)
    sizes = (ceil(count / tiles / multiple) * multiple for tiles in range(fewest, fewest + 2 * threads))

    def time(size: int) -> int:
        return ceil(ceil(count / size) * kv_heads / threads) * (size * group + PREPARATION)

    return min(sizes, key=time)


def _cover_singles(plan: StepPlan, planner: _Planner, block: int, *, split: bool) -> None:
    """Give every single row all of its keys, shared ones once for all rows that share whole blocks of them."""
    covered = [0] * plan.num_singles
    for row_begin, row_end, _, end in plan.shared:
        begin, end = covered[row_begin], end // block * block
        if begin < end:
            planner.cover((row_begin, row_end), plan.singles[row_begin].slots.ctypes.data, begin, end, split=True)
            covered[row_begin:row_end] = [end] * (row_end - row_begin)
    for row, single in enumerate(plan.singles):
        planner.cover((row, row + 1), single.slots.ctypes.data, covered[row], len(single.slots), split=split)
    planner.merged.extend(range(plan.num_singles))


def _pack(plan: StepPlan, planner: _Planner) -> Tasks:
    """Write the tasks as arrays, the longest first."""
    tasks = sorted(planner.tasks, key=lambda task: -sum(piece.cost for piece in task))
    pieces = np.zeros(sum(map(len, tasks)), PIECE)
    pieces[["slots", "row_begin", "row_end", "key_begin", "key_end", "sweep"]] = [p for task in tasks for p in task]
    bounds = np.zeros(len(tasks) + 1, np.int32)
    np.cumsum([len(task) for task in tasks], out=bounds[1:])
    limits = np.empty(plan.num_rows, np.int32)
    for row_begin, row_end, slots, _ in plan.sequences:
        limits[row_begin:row_end] = np.arange(len(slots) - (row_end - row_begin) + 1, len(slots) + 1)
    merged = np.array(planner.merged, np.int32)
    states_at = np.zeros(plan.num_rows, np.int64)
    ends = np.cumsum(-(-limits[merged].astype(np.int64) // planner.span))
    states_at[merged[1:]] = ends[:-1]
    num_states = int(ends[-1]) if len(ends) else 0
    max_rows = int((pieces["row_end"] - pieces["row_begin"]).max())
    return Tasks(pieces, bounds, limits, merged, states_at, num_states, max_rows, plan)
