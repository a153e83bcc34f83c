"""The step's attention plan: which rows of queries read which runs of KV slots.

A *segment* is a contiguous range of query rows and one contiguous run of KV slots. One plan serves decoding, chunked
prefill and shared prefixes: rows that attend to the same slots (branches of one context, users of one system prompt)
share a segment, which is read once for all of them, and each row joins its segments' partial results by their
log-sum-exp (Dao 2023, FlashAttention-2; Ye et al. 2024, cascade attention in FlashInfer).

The plan is made of integers. It knows no requests and no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from mainstem.pages import Run

# A segment shorter than this per row costs more as a call of its own than gathered with the row's other short runs.
SHORT_RUN = 256
# Sharing must save at least this many token reads a layer to pay for one more segment (see docs/log.md).
MIN_SHARED_READS = 512
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
class DecodePlan:
    """How single-token rows `0 … num_rows - 1` attend; every row has at least one segment or tail.

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


class ChunkPlan(NamedTuple):
    """A prefill chunk: rows `[row_begin, row_end)` attend to all of `runs`, then causally to themselves."""

    row_begin: int
    row_end: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The attention of one step: single-token rows first, then the chunks of prefill."""

    decode: DecodePlan | None
    chunks: tuple[ChunkPlan, ...]


class _SharedRange(NamedTuple):
    """Rows `[row_begin, row_end)` of the sorted rows have tokens `[begin, end)` in the same slots."""

    row_begin: int
    row_end: int
    begin: int
    end: int


def sharing_order(rows: Sequence[Sequence[Run]]) -> list[int]:
    """Indices of the rows in an order that puts rows with a common beginning next to one another."""
    return sorted(range(len(rows)), key=lambda row: tuple(rows[row]))


def plan_decode(rows: Sequence[Sequence[Run]], *, cascade: bool = True, max_pieces: int = 1) -> DecodePlan:
    """Plan single-token rows.

    Args:
        rows: in `sharing_order`, each given by the runs of all it attends to, itself included.
        cascade: read what rows share once; otherwise every row reads all its runs by itself.
        max_pieces: into how many pieces a long run may be cut, so that few rows still occupy every core.
    """
    shared = _shared_ranges(rows) if cascade and len(rows) > 1 else []
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
    return DecodePlan(len(rows), tuple(segments), tails, max(used) + bool(tails))


def _shared_ranges(rows: Sequence[Sequence[Run]]) -> list[_SharedRange]:
    """The worthwhile nodes of the trie of the rows' slots, each before the nodes below it.

    Rows are in sharing order, so every node is a range of rows, found from the common lengths of neighbours as the
    intervals of a longest-common-prefix array (Abouelhoda et al. 2004).
    """
    common = [_common_tokens(a, b) for a, b in pairwise(rows)]
    found: list[_SharedRange] = []
    pending = [(0, len(rows), 0)]
    while pending:
        row_begin, row_end, begin = pending.pop()
        if row_end - row_begin < 2:
            continue
        end = min(common[row_begin : row_end - 1])
        if (end - begin) * (row_end - row_begin - 1) >= MIN_SHARED_READS:
            found.append(_SharedRange(row_begin, row_end, begin, end))
            begin = end
        # Below this node the rows part where two neighbours have no more than `end` tokens in common.
        cuts = [row + 1 for row in range(row_begin, row_end - 1) if common[row] == end]
        bounds = [row_begin, *cuts, row_end]
        pending.extend((first, last, begin) for first, last in pairwise(bounds))
    return found


def _common_tokens(a: Sequence[Run], b: Sequence[Run]) -> int:
    """How many leading tokens of two rows lie in the same slots."""
    total = 0
    for run_a, run_b in zip(a, b, strict=False):
        if run_a.start != run_b.start:
            break
        total += min(run_a.stop, run_b.stop) - run_a.start
        if run_a.stop != run_b.stop:
            break
    return total


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
