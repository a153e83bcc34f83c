"""Attention of query rows over one stretch of keys, with the log-sum-exp that joins partial results.

Two backends with one signature: PyTorch's flash operator for CPUs, which reads strided views of the KV pool in place,
and plain matrix products, which run on any device and dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Partial(NamedTuple):
    """A partial result of attention and what is needed to join it with others.

    Attributes:
        out: (batch, heads, rows, head_dim), normalised over the keys that were seen.
        lse: (batch, heads, rows), natural logarithm of the sum of exponentiated scores, float32.
    """

    out: Tensor
    lse: Tensor


Kernel = Callable[[Tensor, Tensor, Tensor, float, bool, Tensor | None], Partial]
"""(q, k, v, scale, causal, mask) -> Partial.

q is (batch, heads, rows, head_dim); k and v are (batch, kv_heads, keys, head_dim), with heads a multiple of kv_heads.
causal lets row i see keys 0 … i (top-left aligned: give it the square chunk only). mask is additive,
(batch, 1, 1, keys); no row may be masked fully.
"""


def flash_cpu(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, mask: Tensor | None) -> Partial:
    """PyTorch's flash attention for CPUs: no copy of k or v, grouped heads without expansion."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return Partial(out, lse)


def matmul(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, mask: Tensor | None) -> Partial:
    """Attention as two matrix products, softmax in float32; memory grows with rows times keys."""
    batch, heads, rows, head_dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    grouped = q.reshape(batch, kv_heads, heads // kv_heads * rows, head_dim)
    scores = torch.matmul(grouped, k.transpose(-1, -2)).float().mul_(scale)
    scores = scores.view(batch, kv_heads, heads // kv_heads, rows, keys)
    if mask is not None:
        scores = scores + mask[:, :, None]
    if causal:
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=q.device).triu_(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse[..., None]).to(v.dtype)
    out = torch.matmul(weights.view(batch, kv_heads, -1, keys), v)
    return Partial(out.view(batch, heads, rows, head_dim), lse.view(batch, heads, rows))


def kernel_for(device: torch.device) -> Kernel:
    """The fastest kernel that runs on `device`. On anything but a CPU this is `matmul`, so far untested there."""
    return flash_cpu if device.type == "cpu" else matmul


def merge_state(a: Partial, b: Partial) -> Partial:
    """Join the attention of the same rows over two disjoint sets of keys. Neither may be empty."""
    weight = torch.sigmoid(b.lse - a.lse)[..., None].to(a.out.dtype)
    return Partial(torch.lerp(a.out, b.out, weight), torch.logaddexp(a.lse, b.lse))
