"""How PyTorch's operators visit a step's keys: long runs in place, short ones gathered.

Every segment gives its rows a partial result, and the partial results of a row are joined by their log-sum-exp
(Dao 2023, FlashAttention-2). It knows plans, no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mainstem.attention.plan import SharedRange, StepPlan
from mainstem.pages import Run

# A segment shorter than this per row costs more as a call of its own than gathered with the row's other short runs.
SHORT_RUN = 256
# A run is cut into pieces for the sake of idle cores only if each piece still has this many tokens.
MIN_PIECE_TOKENS = 512


class Segment(NamedTuple):
    """Rows `[row_begin, row_end)` attend to slots `[start, start + pieces * piece_tokens)`, cut into equal pieces.

    `partial` is the index of the first of the `pieces` partial results that each of these rows gets from it.
    """

    row_begin: int
    row_end: int
    start: int
    pieces: int
    piece_tokens: int
    partial: int


class Tail(NamedTuple):
    """The short runs of one row, to be gathered."""

    row: int
    runs: tuple[Run, ...]
    length: int


@dataclass(frozen=True, slots=True)
class RowLayout:
    """How single rows `0 … num_rows - 1` attend; every row has at least one segment or tail.

    Attributes:
        num_partials: partial results to merge per row; the tails' one is the last of them.
    """

    num_rows: int
    segments: tuple[Segment, ...]
    tails: tuple[Tail, ...]
    num_partials: int

    @property
    def tokens_read(self) -> int:
        """KV tokens read a layer: a shared segment counts once."""
        shared = sum(segment.pieces * segment.piece_tokens for segment in self.segments)
        return shared + sum(tail.length for tail in self.tails)


class Chunk(NamedTuple):
    """Rows `[row_begin, row_end)` attend to all of `runs`, then causally to themselves."""

    row_begin: int
    row_end: int
    runs: tuple[Run, ...]


class Layout(NamedTuple):
    """A step's plan as PyTorch's operators run it; `rows` is None without single rows."""

    rows: RowLayout | None
    chunks: tuple[Chunk, ...]


def lay_out(plan: StepPlan, *, max_pieces: int = 1) -> Layout:
    """Lay a plan out; long runs may be cut into `max_pieces` pieces."""
    singles = [sequence.runs for sequence in plan.singles]
    chunks = [
        Chunk(begin, end, tuple(_slice_runs(runs, 0, len(slots) - (end - begin))))
        for begin, end, slots, runs in plan.chunks
    ]
    return Layout(lay_out_rows(singles, plan.shared, max_pieces=max_pieces) if singles else None, tuple(chunks))


def lay_out_rows(rows: Sequence[Sequence[Run]], shared: Sequence[SharedRange], *, max_pieces: int = 1) -> RowLayout:
    """Lay single rows out.

    Args:
        rows: each given by the runs of all it attends to, itself included.
        shared: what they have in common, a range before those below it.
        max_pieces: into how many pieces a long run may be cut, so that few rows still occupy every core.
    """
    covered = [0] * len(rows)
    used = [0] * len(rows)
    loose: list[list[Run]] = [[] for _ in rows]
    segments: list[Segment] = []

    def place(row_begin: int, row_end: int, runs: Sequence[Run]) -> None:
        for run in runs:
            length = run.stop - run.start
            if length < SHORT_RUN:
                for row in range(row_begin, row_end):
                    loose[row].append(run)
                continue
            pieces = min(max_pieces, max(1, length // MIN_PIECE_TOKENS))
            tokens, rest = divmod(length, pieces)
            partial = max(used[row_begin:row_end])
            segments.append(Segment(row_begin, row_end, run.start, pieces, tokens, partial))
            for row in range(row_begin, row_end):
                used[row] = partial + pieces
                if rest:
                    loose[row].append(Run(run.stop - rest, run.stop))

    for row_begin, row_end, begin, end in shared:
        place(row_begin, row_end, _slice_runs(rows[row_begin], begin, end))
        covered[row_begin:row_end] = [end] * (row_end - row_begin)
    for row, runs in enumerate(rows):
        place(row, row + 1, _slice_runs(runs, covered[row], None) if covered[row] else runs)
    tails = tuple(
        Tail(row, tuple(runs), sum(run.stop - run.start for run in runs)) for row, runs in enumerate(loose) if runs
    )
    return RowLayout(len(rows), tuple(segments), tails, max(used) + bool(tails))


def _slice_runs(runs: Sequence[Run], begin: int, end: int | None) -> list[Run]:
    """The runs of tokens `[begin, end)` of a row."""
    sliced: list[Run] = []
    position = 0
    for start, stop in runs:
        first = start + max(begin - position, 0)
        last = stop if end is None else min(start + end - position, stop)
        if first < last:
            sliced.append(Run(first, last))
        position += stop - start
        if end is not None and position >= end:
            break
    return sliced
