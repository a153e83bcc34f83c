"""Tests of the plan of shared ranges and of its layout for PyTorch: who reads what, and what is read once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem.attention import sharing_order
from mainstem.attention.layout import RowLayout, lay_out_rows
from mainstem.attention.plan import shared_ranges
from mainstem.pages import Run


def slots_read(plan: RowLayout, row: int) -> list[int]:
    """Every slot that a row attends to, sorted."""
    slots: list[int] = []
    for segment in plan.segments:
        if segment.row_begin <= row < segment.row_end:
            slots += range(segment.start, segment.start + segment.pieces * segment.piece_tokens)
    for tail in plan.tails:
        if tail.row == row:
            for start, stop in tail.runs:
                slots += range(start, stop)
    return sorted(slots)


def slots_of(runs: list[Run]) -> list[int]:
    return sorted(slot for start, stop in runs for slot in range(start, stop))


def laid_out(rows: list[list[Run]], *, cascade: bool = True, max_pieces: int = 1) -> RowLayout:
    return lay_out_rows(rows, shared_ranges(rows) if cascade else [], max_pieces=max_pieces)


def in_order(rows: list[list[Run]]) -> list[list[Run]]:
    return [rows[i] for i in sharing_order(rows)]


def test_a_common_root_is_one_segment_for_all_rows() -> None:
    rows = in_order([[Run(0, 3000), Run(5000 + 200 * i, 5100 + 200 * i)] for i in range(8)])
    plan = laid_out(rows)
    assert {(s.row_begin, s.row_end) for s in plan.segments} == {(0, 8)}
    assert plan.tokens_read == 3000 + 8 * 100


def test_rows_with_nothing_in_common_read_their_own() -> None:
    rows = in_order([[Run(10_000 * i, 10_000 * i + 1000)] for i in range(3)])
    plan = laid_out(rows)
    assert [(s.row_begin, s.row_end) for s in plan.segments] == [(0, 1), (1, 2), (2, 3)]
    assert plan.tokens_read == 3000


def test_a_branch_that_lies_right_behind_its_root_shares_the_root() -> None:
    rows = in_order([[Run(0, 1100)], [Run(0, 1000), Run(4000, 4100)], [Run(0, 1000), Run(5000, 5100)]])
    assert laid_out(rows).tokens_read == 1000 + 3 * 100


def test_every_level_of_a_tree_is_shared() -> None:
    left = [Run(0, 1000), Run(2000, 2600)]
    right = [Run(0, 1000), Run(3000, 3600)]
    rows = in_order([[*side, Run(6000 + 100 * i, 6010 + 100 * i)] for i, side in enumerate([left, right, left, right])])
    plan = laid_out(rows)
    assert plan.tokens_read == 1000 + 600 + 600 + 4 * 10
    assert {(s.row_begin, s.row_end) for s in plan.segments} == {(0, 4), (0, 2), (2, 4)}


def test_a_short_common_beginning_is_not_worth_a_segment() -> None:
    rows = in_order([[Run(0, 20), Run(1000 + 100 * i, 1050 + 100 * i)] for i in range(2)])
    plan = laid_out(rows)
    assert plan.segments == ()
    assert [slots_read(plan, row) for row in range(2)] == [slots_of(runs) for runs in rows]


def test_without_cascade_every_row_reads_everything() -> None:
    rows = in_order([[Run(0, 3000), Run(5000 + 200 * i, 5100 + 200 * i)] for i in range(8)])
    assert laid_out(rows, cascade=False).tokens_read == 8 * 3100


def test_partial_results_of_a_row_do_not_overwrite_one_another() -> None:
    rows = in_order([[Run(0, 5000), Run(9000 + 1000 * i, 9300 + 1000 * i)] for i in range(4)])
    plan = laid_out(rows, max_pieces=6)
    assert {segment.pieces for segment in plan.segments} == {6, 1}
    for row in range(4):
        cells = [
            cell
            for segment in plan.segments
            if segment.row_begin <= row < segment.row_end
            for cell in range(segment.partial, segment.partial + segment.pieces)
        ]
        assert len(cells) == len(set(cells))
        assert all(cell < plan.num_partials for cell in cells)


@st.composite
def trees(draw: st.DrawFn) -> list[list[Run]]:
    """Rows of a random tree of runs, in which every row ends in a slot of its own."""
    next_slot = 0
    rows: list[list[Run]] = [[]]
    for _ in range(draw(st.integers(1, 5))):
        grown: list[list[Run]] = []
        for row in rows[:12]:
            for _ in range(draw(st.integers(1, 3))):
                length = draw(st.sampled_from([1, 5, 90, 300, 700, 1700]))
                next_slot += draw(st.integers(0, 1)) * 7
                run = Run(next_slot, next_slot + length)
                next_slot += length
                if row and row[-1].stop == run.start:
                    grown.append([*row[:-1], Run(row[-1].start, run.stop)])
                else:
                    grown.append([*row, run])
        rows = grown
    return rows


@given(trees(), st.booleans(), st.integers(1, 8))
def test_every_row_reads_each_of_its_slots_exactly_once(rows: list[list[Run]], cascade: bool, max_pieces: int) -> None:
    rows = in_order(rows)
    plan = laid_out(rows, cascade=cascade, max_pieces=max_pieces)
    for row, runs in enumerate(rows):
        assert slots_read(plan, row) == slots_of(runs)


@given(trees())
def test_sharing_never_reads_more(rows: list[list[Run]]) -> None:
    rows = in_order(rows)
    assert laid_out(rows).tokens_read <= laid_out(rows, cascade=False).tokens_read
