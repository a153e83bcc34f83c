"""Turns a step's schedule into the packed batch that the model runner computes.

Single-token rows come first, ordered so that rows with a common prefix are neighbours; then the chunks of prefill.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mainstem.attention import ChunkPlan, StepPlan, plan_decode, sharing_order
from mainstem.model import StepBatch
from mainstem.pages import Run
from mainstem.scheduler import ScheduledTokens, SchedulerOutput


class PackedStep(NamedTuple):
    """A batch, and which rows of its logits belong to whom.

    Attributes:
        source_rows: for each of the schedule's logit sources, the row that it samples from.
        last_rows: for each scheduled request, the row of its last token, which is not finite if its KV is not.
    """

    batch: StepBatch
    source_rows: list[int]
    last_rows: list[int]


def pack(output: SchedulerOutput, *, cascade: bool = True, max_pieces: int = 1) -> PackedStep:
    """Pack a schedule that is not empty; `cascade` and `max_pieces` are for `plan_decode`."""
    singles = [entry for entry, scheduled in enumerate(output.scheduled) if scheduled.stop - scheduled.start == 1]
    single_runs = [_visible_runs(output.scheduled[entry]) for entry in singles]
    order = sharing_order(single_runs) if cascade else list(range(len(singles)))
    chunks = [entry for entry, scheduled in enumerate(output.scheduled) if scheduled.stop - scheduled.start > 1]
    entries = [singles[i] for i in order] + chunks

    first_row: dict[int, int] = {}
    tokens: list[npt.NDArray[Any]] = []
    positions: list[npt.NDArray[Any]] = []
    slots: list[npt.NDArray[Any]] = []
    chunk_plans = []
    row = 0
    for entry in entries:
        request, start, stop = output.scheduled[entry]
        first_row[entry] = row
        tokens.append(request.tokens.array[start:stop])
        positions.append(np.arange(start, stop))
        slots.append(request.table.slots[start:stop])
        if stop - start > 1:
            chunk_plans.append(ChunkPlan(row, row + stop - start, tuple(request.table.runs(start))))
        row += stop - start

    rows = [first_row[entry] + position - output.scheduled[entry].start for _, entry, position in output.sources]
    lasts = [first_row[entry] + stop - 1 - start for entry, (_, start, stop) in enumerate(output.scheduled)]
    logit_rows = sorted({*rows, *lasts})
    index_of = {packed: index for index, packed in enumerate(logit_rows)}
    decode = plan_decode([single_runs[i] for i in order], cascade=cascade, max_pieces=max_pieces) if singles else None
    batch = StepBatch(
        token_ids=_int64(tokens),
        positions=_int64(positions),
        slot_mapping=_int64(slots),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
        plan=StepPlan(decode, tuple(chunk_plans)),
    )
    return PackedStep(batch, [index_of[packed] for packed in rows], [index_of[packed] for packed in lasts])


def _visible_runs(scheduled: ScheduledTokens) -> list[Run]:
    """Where a single token's keys lie, its own included."""
    return scheduled.request.table.runs(scheduled.stop)


def _int64(parts: list[npt.NDArray[Any]]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
