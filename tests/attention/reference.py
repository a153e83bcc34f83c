"""Attention as the textbook has it: every row over all of its keys at once, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mainstem.pages import Run


def dense_attention(q: Tensor, keys: Tensor, values: Tensor, runs: Sequence[Run], scale: float) -> Tensor:
    """One row, q (heads, head_dim), over keys and values (kv_heads, slots, head_dim) in `runs`; (heads, head_dim)."""
    slots = torch.cat([torch.arange(start, stop) for start, stop in runs])
    group = q.shape[0] // keys.shape[0]
    k = keys[:, slots].double().repeat_interleave(group, dim=0)
    v = values[:, slots].double().repeat_interleave(group, dim=0)
    scores = torch.einsum("hd,hnd->hn", q.double(), k) * scale
    return torch.einsum("hn,hnd->hd", torch.softmax(scores, dim=-1), v)
