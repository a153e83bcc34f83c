"""Turns a step's schedule into the packed batch that the model runner computes.

Single-token rows come first, ordered so that rows with a common prefix are neighbours; then the chunks of prefill. A
draft is a single row too: a branch of its request that is one token long, in the slots after the request's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mainstem.attention import SequenceRows, plan_step, sharing_order
from mainstem.model import StepBatch
from mainstem.pages import Run, SlotArray, runs_of
from mainstem.scheduler import ScheduledTokens, SchedulerOutput
from mainstem.speculation import DraftTree


class PackedStep(NamedTuple):
    """A batch, and which rows of its logits belong to whom.

    Attributes:
        source_rows: for each of the schedule's logit sources, the row that it samples from.
        scored_rows: for each of the schedule's scored tokens, their rows.
        last_rows: for each scheduled request, the row of its last token, which is not finite if its KV is not.
        draft_rows: for each scheduled request with drafts, the rows of their nodes.
    """

    batch: StepBatch
    source_rows: list[int]
    scored_rows: list[slice]
    last_rows: list[int]
    draft_rows: dict[int, list[int]]


class _Piece(NamedTuple):
    """Neighbouring rows of one sequence: the tokens to compute, and the slots of all up to the last of them."""

    tokens: npt.NDArray[np.int32]
    slots: SlotArray
    runs: tuple[Run, ...]


def pack(
    output: SchedulerOutput, drafts: Mapping[int, DraftTree] = MappingProxyType({}), *, cascade: bool = True
) -> PackedStep:
    """Pack a schedule that is not empty.

    Args:
        output: the schedule.
        drafts: for scheduled requests, by their index, what may follow; their page tables have slots for it.
        cascade: rows read what they share once.
    """
    pieces = [
        _Piece(request.tokens.array[start:stop], request.table.slots[:stop], tuple(request.table.runs(stop)))
        for request, start, stop in output.scheduled
    ]
    first_draft: dict[int, int] = {}
    for entry, draft in drafts.items():
        first_draft[entry] = len(pieces)
        pieces += _draft_pieces(output.scheduled[entry], draft)
    singles = [index for index, piece in enumerate(pieces) if len(piece.tokens) == 1]
    if cascade:
        singles = [singles[i] for i in sharing_order([pieces[index].runs for index in singles])]
    chunks = [index for index, piece in enumerate(pieces) if len(piece.tokens) > 1]

    first_row: dict[int, int] = {}
    tokens: list[npt.NDArray[Any]] = []
    positions: list[npt.NDArray[Any]] = []
    slots: list[npt.NDArray[Any]] = []
    sequences: list[SequenceRows] = []
    row = 0
    for index in singles + chunks:
        piece = pieces[index]
        count, stop = len(piece.tokens), len(piece.slots)
        first_row[index] = row
        tokens.append(piece.tokens)
        positions.append(np.arange(stop - count, stop))
        slots.append(piece.slots[-count:])
        sequences.append(SequenceRows(row, row + count, piece.slots, piece.runs))
        row += count

    origins = [first_row[entry] - scheduled.start for entry, scheduled in enumerate(output.scheduled)]
    drafted = {
        entry: [first_row[first + node] for node in range(len(drafts[entry].tokens))]
        for entry, first in first_draft.items()
    }
    rows = [origins[entry] + position for _, entry, position in output.sources]
    scored = [range(origins[entry] + start, origins[entry] + stop) for _, entry, start, stop in output.scored]
    lasts = [origin + scheduled.stop - 1 for origin, scheduled in zip(origins, output.scheduled, strict=True)]
    logit_rows = sorted({*rows, *lasts, *chain.from_iterable(scored), *chain.from_iterable(drafted.values())})
    index_of = {packed: index for index, packed in enumerate(logit_rows)}
    batch = StepBatch(
        token_ids=_int64(tokens),
        positions=_int64(positions),
        slot_mapping=_int64(slots),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
        plan=plan_step(sequences, cascade=cascade),
    )
    return PackedStep(
        batch,
        source_rows=[index_of[packed] for packed in rows],
        # Neighbours in the step are neighbours among the logits too.
        scored_rows=[slice(index_of[r[0]], index_of[r[-1]] + 1) if r else slice(0, 0) for r in scored],
        last_rows=[index_of[packed] for packed in lasts],
        draft_rows={entry: [index_of[packed] for packed in of_nodes] for entry, of_nodes in drafted.items()},
    )


def _draft_pieces(scheduled: ScheduledTokens, draft: DraftTree) -> list[_Piece]:
    """The rows of a draft: each sees all before the draft, its own ancestors and itself."""
    request, _, stop = scheduled
    table = request.table
    pieces = []
    for node, token in enumerate(draft.tokens):
        path = draft.path(node)
        if path[-1] == len(path) - 1:  # in order, as the slots are
            slots, runs = table.slots[: stop + len(path)], table.runs(stop + len(path))
        else:
            own = table.slots[stop + np.array(path)]
            slots, runs = np.concatenate([table.slots[:stop], own]), [*table.runs(stop), *runs_of(own)]
        pieces.append(_Piece(np.array([token], np.int32), slots, tuple(runs)))
    return pieces


def _int64(parts: list[npt.NDArray[Any]]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
