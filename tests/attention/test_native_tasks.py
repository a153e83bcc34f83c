"""Tests of the tasks for the native extension: every key once, in order, and only where it is visible."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainstem.attention import SequenceRows, StepPlan, plan_step
from mainstem.attention.native_tasks import Tasks, plan_tasks
from mainstem.pages import Run

BLOCK, SPAN = 4, 16


def step_of(lengths: list[tuple[int, int]], *, root: int, cascade: bool = True) -> StepPlan:
    """Sequences given by (tokens, rows); single rows share their first `root` tokens, as far as they have them."""
    sequences = []
    row = 0
    for index, (length, rows) in enumerate(sorted(lengths, key=lambda pair: pair[1] > 1)):
        shared = min(root, length - 1) if rows == 1 else 0
        own = 10_000 * (index + 1)
        runs = tuple(run for run in (Run(0, shared), Run(own, own + length - shared)) if run.start < run.stop)
        slots = np.concatenate([np.arange(start, stop, dtype=np.int32) for start, stop in runs])
        sequences.append(SequenceRows(row, row + rows, slots, runs))
        row += rows
    return plan_step(sequences, cascade=cascade)


def tasks_of(plan: StepPlan, *, threads: int = 2, group: int = 3, kv_heads: int = 2) -> Tasks:
    return plan_tasks(plan, group=group, kv_heads=kv_heads, threads=threads, block=BLOCK, span=SPAN, rows=6)


def check(plan: StepPlan, tasks: Tasks) -> None:
    """Every row sees its keys once and in order; no span is continued by another task than the one that began it."""
    seen: dict[int, list[tuple[int, int]]] = {row: [] for row in range(plan.num_rows)}
    task_of: dict[tuple[int, int], int] = {}
    slots = {row: sequence.slots for sequence in plan.sequences for row in range(sequence.row_begin, sequence.row_end)}
    for task, (begin, end) in enumerate(zip(tasks.tasks[:-1], tasks.tasks[1:], strict=True)):
        for piece in tasks.pieces[begin:end]:
            first, last = int(piece["key_begin"]), int(piece["key_end"])
            assert first % BLOCK == 0
            assert first < last
            for row in range(piece["row_begin"], piece["row_end"]):
                seen[row].append((first, last))
                for span in range(first // SPAN, -(-last // SPAN)):
                    assert task_of.setdefault((row, span), task) == task
    for row, pieces in seen.items():
        limit = int(tasks.limits[row])
        assert len(slots[row]) >= limit
        at = 0
        for first, last in sorted(pieces):
            assert first == at
            at = last
        assert at >= limit
    swept = {row for p in tasks.pieces if p["sweep"] for row in range(p["row_begin"], p["row_end"])}
    assert swept | set(tasks.merged_rows.tolist()) == set(seen)
    assert not swept & set(tasks.merged_rows.tolist())
    ranges = sorted((tasks.states_at[r], tasks.states_at[r] + -(-tasks.limits[r] // SPAN)) for r in tasks.merged_rows)
    assert all(a[1] <= b[0] for a, b in pairwise(ranges))
    assert not ranges or ranges[-1][1] <= tasks.num_states


@given(
    st.lists(st.tuples(st.integers(1, 90), st.sampled_from([1, 1, 1, 2, 7, 40])), min_size=1, max_size=9),
    st.sampled_from([0, 3, 16, 39, 64]),
    st.integers(1, 9),
    st.sampled_from([1, 3, 4, 16]),
)
def test_every_row_sees_its_keys_once(lengths: list[tuple[int, int]], root: int, threads: int, group: int) -> None:
    plan = step_of([(max(length, rows), rows) for length, rows in lengths], root=root)
    check(plan, tasks_of(plan, threads=threads, group=group))


def test_shared_whole_blocks_are_read_once() -> None:
    plan = step_of([(700 + i, 1) for i in range(8)], root=602)
    tasks = tasks_of(plan)
    shared = [p for p in tasks.pieces if p["row_end"] - p["row_begin"] == 8]
    assert sum(int(p["key_end"] - p["key_begin"]) for p in shared) == 600
    check(plan, tasks)


def test_without_cascade_nothing_is_shared() -> None:
    plan = step_of([(700 + i, 1) for i in range(8)], root=602, cascade=False)
    assert all(p["row_end"] - p["row_begin"] == 1 for p in tasks_of(plan).pieces)


def test_a_single_row_feeds_every_thread() -> None:
    tasks = tasks_of(step_of([(160, 1)], root=0), threads=8, kv_heads=1)
    assert len(tasks.tasks) - 1 == 160 // SPAN


def test_a_long_prompt_is_cut_into_tiles_of_what_is_computed_together() -> None:
    tasks = tasks_of(step_of([(512, 512)], root=0))
    sizes = tasks.pieces["row_end"] - tasks.pieces["row_begin"]
    assert all(tasks.pieces["sweep"])
    assert sum(size * 3 % 6 != 0 for size in sizes) <= 1


def test_no_tile_looks_beyond_its_last_row() -> None:
    tasks = tasks_of(step_of([(512, 512)], root=0))
    assert all(p["key_end"] == tasks.limits[p["row_end"] - 1] for p in tasks.pieces)
