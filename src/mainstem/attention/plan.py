"""The step's attention plan: which rows of queries read which slots of KV, and what they have in common.

A row is the query of one token. One plan serves decoding, chunked prefill and shared prefixes: sequences that attend to
the same slots (branches of one context, users of one system prompt) form a *shared range*, which a backend reads once
for all of them (Ye et al. 2024, cascade attention in FlashInfer).

The plan is made of integers. It knows no requests and no tensors, and no backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from mainstem.pages import Run, SlotArray

# A shorter prefix costs as much in pieces of its own as reading it once saves, however many rows share it: measured by
# benchmarks/bench_sharing.py, see docs/log.md.
MIN_SHARED_TOKENS = 128


class SequenceRows(NamedTuple):
    """Rows `[row_begin, row_end)` are the last tokens of one sequence; each sees all tokens before it, and itself.

    Attributes:
        slots: int32[n], the slots of the sequence up to the last of these rows, in token order.
        runs: the same as runs.
    """

    row_begin: int
    row_end: int
    slots: SlotArray
    runs: tuple[Run, ...]


class SharedRange(NamedTuple):
    """The sequences of rows `[row_begin, row_end)` have tokens `[begin, end)` in the same slots."""

    row_begin: int
    row_end: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The attention of one step.

    Attributes:
        sequences: those of a single row first, in `sharing_order`; their rows are 0, 1, 2, … without a gap.
        num_singles: how many sequences have a single row.
        shared: what single rows share, a range before those below it: the nodes of a tree. Any row of several tokens
            reads its keys for many queries already.
    """

    sequences: tuple[SequenceRows, ...]
    num_singles: int
    shared: tuple[SharedRange, ...]

    @property
    def singles(self) -> tuple[SequenceRows, ...]:
        """The sequences of one row."""
        return self.sequences[: self.num_singles]

    @property
    def chunks(self) -> tuple[SequenceRows, ...]:
        """The sequences of several rows."""
        return self.sequences[self.num_singles :]

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return self.sequences[-1].row_end if self.sequences else 0


def sharing_order(rows: Sequence[Sequence[Run]]) -> list[int]:
    """Indices of the rows in an order that puts rows with a common beginning next to one another."""
    return sorted(range(len(rows)), key=lambda row: tuple(rows[row]))


def plan_step(sequences: Sequence[SequenceRows], *, cascade: bool = True) -> StepPlan:
    """Plan a step.

    Args:
        sequences: as `StepPlan.sequences` wants them.
        cascade: find what rows share; otherwise every row reads all of its keys by itself.
    """
    singles = [sequence.runs for sequence in sequences if sequence.row_end - sequence.row_begin == 1]
    shared = shared_ranges(singles) if cascade and len(singles) > 1 else []
    return StepPlan(tuple(sequences), len(singles), tuple(shared))


def shared_ranges(rows: Sequence[Sequence[Run]]) -> list[SharedRange]:
    """The worthwhile nodes of the trie of the rows' slots, each before the nodes below it.

    Rows are in sharing order, so every node is a range of rows, found from the common lengths of neighbours as the
    intervals of a longest-common-prefix array (Abouelhoda et al. 2004).
    """
    common = [_common_tokens(a, b) for a, b in pairwise(rows)]
    found: list[SharedRange] = []
    pending = [(0, len(rows), 0)]
    while pending:
        row_begin, row_end, begin = pending.pop()
        if row_end - row_begin < 2:
            continue
        end = min(common[row_begin : row_end - 1])
        if end - begin >= MIN_SHARED_TOKENS:
            found.append(SharedRange(row_begin, row_end, begin, end))
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
