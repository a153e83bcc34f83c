"""Runs a step's attention with PyTorch's operators, layer by layer: on any device, and without a compiler.

It knows plans and pools; it does not know requests, models or where a plan came from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mainstem.attention.kernels import Kernel, Partial, merge_state
from mainstem.attention.layout import Chunk, RowLayout, Segment, Tail, lay_out
from mainstem.attention.plan import StepPlan
from mainstem.attention.pool import KVPool

# A chunk of at least this many rows amortises copying many cached runs together.
MAX_RUNS_IN_PLACE = 6


@dataclass(slots=True)
class _Tails:
    """Gathered short runs: slots (rows, longest), additive mask (rows, 1, 1, longest) or None, and their rows."""

    slots: Tensor
    mask: Tensor | None
    rows: Tensor | None
    count: int


class TorchStepAttention:
    """A `StepAttention` of PyTorch's operators.

    Args:
        plan: what each row attends to.
        slot_mapping: int64[tokens], where each row's own key and value go.
        pool: the KV memory.
        kernel: attention over one stretch of keys.
        max_pieces: into how many pieces a long run may be cut, so that few rows still occupy every core.
    """

    def __init__(
        self, plan: StepPlan, slot_mapping: Tensor, pool: KVPool, kernel: Kernel, *, max_pieces: int | None = None
    ) -> None:
        if max_pieces is None:
            # A kernel works on the KV heads of a run side by side; more cores than that need more pieces.
            max_pieces = -(-torch.get_num_threads() // pool.keys[0].shape[0])
        self._layout = lay_out(plan, max_pieces=max_pieces)
        self._slot_mapping = slot_mapping
        self._pool = pool
        self._kernel = kernel
        self._tails = _gather_tails(self._layout.rows, pool) if self._layout.rows else None
        self._parts: Partial | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Write the layer's keys and values, then attend.

        q is (1, heads, tokens, head_dim); k and v are (1, kv_heads, tokens, head_dim).
        Returns (1, tokens, heads, head_dim).
        """
        self._pool.write(layer, self._slot_mapping, k, v)
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        decode, chunks = self._layout.rows, self._layout.chunks
        if decode is None and len(chunks) == 1:
            return self._attend_chunk(chunks[0], q, k, v, keys, values, scale).transpose(1, 2)
        out = torch.empty(1, q.shape[2], q.shape[1], q.shape[3], dtype=q.dtype, device=q.device)
        if decode is not None:
            out[0, : decode.num_rows] = self._attend_rows(decode, q, keys, values, scale)
        for chunk in chunks:
            rows = slice(chunk.row_begin, chunk.row_end)
            attended = self._attend_chunk(chunk, q[:, :, rows], k[:, :, rows], v[:, :, rows], keys, values, scale)
            out[:, rows] = attended.transpose(1, 2)
        return out

    def _attend_chunk(
        self, chunk: Chunk, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """A prefill chunk over its cached runs and causally over itself; (1, heads, rows, head_dim)."""
        state = self._kernel(q, k, v, scale, True, None)
        for cached_keys, cached_values in _cached_stretches(chunk, keys, values):
            cached = _fold_groups(self._kernel, q, cached_keys, cached_values, scale)
            state = merge_state(state, cached)
        return state.out

    def _attend_rows(self, plan: RowLayout, q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Single-token rows over their segments and tails, merged; (rows, heads, head_dim)."""
        _, heads, _, head_dim = q.shape
        kv_heads = keys.shape[0]
        group = heads // kv_heads
        # Query heads of one KV head become rows, so that a key is read once for all of them.
        grouped = q[0, :, : plan.num_rows].view(kv_heads, group, plan.num_rows, head_dim)
        parts = self._partials(plan, grouped)
        for segment in plan.segments:
            self._attend_segment(segment, grouped, keys, values, scale, parts)
        if self._tails is not None:
            self._attend_tails(self._tails, plan.num_partials - 1, grouped, keys, values, scale, parts)
        if plan.num_partials == 1:
            merged = parts.out[0]
        else:
            weights = torch.softmax(parts.lse, dim=0)[..., None].to(q.dtype)
            merged = (weights * parts.out).sum(0)
        return merged.permute(2, 0, 1, 3).reshape(plan.num_rows, heads, head_dim)

    def _partials(self, plan: RowLayout, grouped: Tensor) -> Partial:
        """Room for every partial result; the layers of a step fill the same cells, the rest stay empty (lse = -inf)."""
        if self._parts is None:
            shape = (plan.num_partials, *grouped.shape)
            out = torch.zeros(shape, dtype=grouped.dtype, device=grouped.device)
            lse = torch.full(shape[:-1], -torch.inf, dtype=torch.float32, device=grouped.device)
            self._parts = Partial(out, lse)
        return self._parts

    def _attend_segment(
        self, segment: Segment, grouped: Tensor, keys: Tensor, values: Tensor, scale: float, parts: Partial
    ) -> None:
        kv_heads, group, _, head_dim = grouped.shape
        pieces, tokens = segment.pieces, segment.piece_tokens
        rows = segment.row_end - segment.row_begin
        row_range = slice(segment.row_begin, segment.row_end)
        q = grouped[:, :, row_range].reshape(1, kv_heads, group * rows, head_dim).expand(pieces, -1, -1, -1)
        slots = slice(segment.start, segment.start + pieces * tokens)
        k = keys[:, slots].view(kv_heads, pieces, tokens, head_dim).transpose(0, 1)
        v = values[:, slots].view(kv_heads, pieces, tokens, head_dim).transpose(0, 1)
        partial = self._kernel(q, k, v, scale, False, None)
        cells = slice(segment.partial, segment.partial + pieces)
        parts.out[cells, :, :, row_range] = partial.out.reshape(pieces, kv_heads, group, rows, head_dim)
        parts.lse[cells, :, :, row_range] = partial.lse.reshape(pieces, kv_heads, group, rows)

    def _attend_tails(
        self, tails: _Tails, cell: int, grouped: Tensor, keys: Tensor, values: Tensor, scale: float, parts: Partial
    ) -> None:
        kv_heads, head_dim = grouped.shape[0], grouped.shape[3]
        by_row = grouped if tails.rows is None else grouped.index_select(2, tails.rows)
        q = by_row.permute(2, 0, 1, 3)
        flat = tails.slots.view(-1)
        k = keys.index_select(1, flat).view(kv_heads, tails.count, -1, head_dim).transpose(0, 1)
        v = values.index_select(1, flat).view(kv_heads, tails.count, -1, head_dim).transpose(0, 1)
        partial = self._kernel(q, k, v, scale, False, tails.mask)
        out, lse = partial.out.permute(1, 2, 0, 3), partial.lse.permute(1, 2, 0)
        if tails.rows is None:
            parts.out[cell] = out
            parts.lse[cell] = lse
        else:
            parts.out[cell].index_copy_(2, tails.rows, out)
            parts.lse[cell].index_copy_(2, tails.rows, lse.to(parts.lse.dtype))


def _cached_stretches(chunk: Chunk, keys: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The chunk's cached keys and values, each (1, kv_heads, n, head_dim): in place, or copied if scattered."""
    if not chunk.runs:
        return []
    if len(chunk.runs) <= MAX_RUNS_IN_PLACE:
        return [(keys[None, :, start:stop], values[None, :, start:stop]) for start, stop in chunk.runs]
    slots = torch.cat([torch.arange(start, stop, device=keys.device) for start, stop in chunk.runs])
    return [(keys.index_select(1, slots)[None], values.index_select(1, slots)[None])]


def _fold_groups(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Partial:
    """Attention without a mask, the query heads of each KV head folded into rows: larger products for the kernel."""
    _, heads, rows, head_dim = q.shape
    kv_heads = k.shape[1]
    out, lse = kernel(q.reshape(1, kv_heads, -1, head_dim), k, v, scale, False, None)
    return Partial(out.reshape(1, heads, rows, head_dim), lse.reshape(1, heads, rows))


def _gather_tails(plan: RowLayout, pool: KVPool) -> _Tails | None:
    if not plan.tails:
        return None
    device, dtype = pool.keys[0].device, pool.keys[0].dtype
    longest = max(tail.length for tail in plan.tails)
    # Unused cells read slot of the row's own first token, a real value, and are masked.
    slots = np.empty((len(plan.tails), longest), np.int64)
    for row, tail in enumerate(plan.tails):
        slots[row] = tail.runs[0].start
        slots[row, : tail.length] = np.concatenate([np.arange(start, stop) for start, stop in tail.runs])
    mask = None
    if any(tail.length < longest for tail in plan.tails):
        lengths = torch.tensor([tail.length for tail in plan.tails], device=device)
        hidden = torch.arange(longest, device=device)[None] >= lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)[:, None, None]
    rows = _tail_rows(plan.tails, plan.num_rows, device)
    return _Tails(torch.from_numpy(slots).to(device), mask, rows, len(plan.tails))


def _tail_rows(tails: tuple[Tail, ...], num_rows: int, device: torch.device) -> Tensor | None:
    """Which rows have tails; None when all do."""
    return None if len(tails) == num_rows else torch.tensor([tail.row for tail in tails], device=device)
