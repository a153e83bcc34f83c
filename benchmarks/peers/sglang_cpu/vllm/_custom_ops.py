"""Rotary position embedding in plain PyTorch, in place.

SGLang takes it from vLLM on machines for which it has no kernel of its own. It gives the same result at the speed that
PyTorch has.
"""

from __future__ import annotations

import torch


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """Turn queries and keys by their positions.

    Args:
        positions: int64[tokens].
        query: float[tokens, heads * head_size], changed in place.
        key: float[tokens, kv_heads * head_size], changed in place.
        head_size: width of a head, all of which is turned.
        cos_sin_cache: float[positions, head_size], the cosines and then the sines of each.
        is_neox: whether the first half of a head is turned with the second, not even places with odd ones.
    """
    cos, sin = cos_sin_cache[positions.flatten()][:, None].chunk(2, dim=-1)
    for vectors in (query, key):
        heads = vectors.view(positions.numel(), -1, head_size)
        first, second = heads.chunk(2, dim=-1) if is_neox else (heads[..., ::2], heads[..., 1::2])
        turned = (first * cos - second * sin, second * cos + first * sin)
        joined = torch.cat(turned, -1) if is_neox else torch.stack(turned, -1).flatten(-2)
        vectors.copy_(joined.view_as(vectors))
