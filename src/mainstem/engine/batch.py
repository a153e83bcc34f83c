"""Turns a step's schedule into the packed batch that the model runner computes.

Single-token rows come first, ordered so that rows with a common prefix are neighbours; then the chunks of prefill.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mainstem.attention import SequenceRows, plan_step, sharing_order
from mainstem.model import StepBatch
from mainstem.scheduler import SchedulerOutput


class PackedStep(NamedTuple):
    """A batch, and which rows of its logits belong to whom.

    Attributes:
        source_rows: for each of the schedule's logit sources, the row that it samples from.
        scored_rows: for each of the schedule's scored tokens, their rows.
        last_rows: for each scheduled request, the row of its last token, which is not finite if its KV is not.
    """

    batch: StepBatch
    source_rows: list[int]
    scored_rows: list[slice]
    last_rows: list[int]


def pack(output: SchedulerOutput, *, cascade: bool = True) -> PackedStep:
    """Pack a schedule that is not empty; `cascade` lets rows read what they share once."""
    runs = [tuple(request.table.runs(stop)) for request, _, stop in output.scheduled]
    singles = [entry for entry, (_, start, stop) in enumerate(output.scheduled) if stop - start == 1]
    if cascade:
        singles = [singles[i] for i in sharing_order([runs[entry] for entry in singles])]
    chunks = [entry for entry, (_, start, stop) in enumerate(output.scheduled) if stop - start > 1]

    first_row: dict[int, int] = {}
    tokens: list[npt.NDArray[Any]] = []
    positions: list[npt.NDArray[Any]] = []
    slots: list[npt.NDArray[Any]] = []
    sequences: list[SequenceRows] = []
    row = 0
    for entry in singles + chunks:
        request, start, stop = output.scheduled[entry]
        first_row[entry] = row
        tokens.append(request.tokens.array[start:stop])
        positions.append(np.arange(start, stop))
        slots.append(request.table.slots[start:stop])
        sequences.append(SequenceRows(row, row + stop - start, request.table.slots[:stop], runs[entry]))
        row += stop - start

    origins = [first_row[entry] - scheduled.start for entry, scheduled in enumerate(output.scheduled)]
    rows = [origins[entry] + position for _, entry, position in output.sources]
    scored = [range(origins[entry] + start, origins[entry] + stop) for _, entry, start, stop in output.scored]
    lasts = [origin + scheduled.stop - 1 for origin, scheduled in zip(origins, output.scheduled, strict=True)]
    logit_rows = sorted({*rows, *lasts, *chain.from_iterable(scored)})
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
    )


def _int64(parts: list[npt.NDArray[Any]]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
