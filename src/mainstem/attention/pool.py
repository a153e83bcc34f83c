"""The memory that holds the keys and values of every token slot.

It knows slots and layers; nothing of who owns a slot.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KVPool:
    """Keys and values of every token slot, one pair of tensors a layer, each (kv_heads, num_slots, head_dim).

    Heads come first so that a run of slots is one stretch of memory for each head, which is what a kernel reads.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_kv_heads, num_slots, head_dim)
        self.num_slots = num_slots
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store the step's keys and values, each (1, kv_heads, tokens, head_dim), into `slots`, int64[tokens]."""
        for pool, new in ((self.keys[layer], key), (self.values[layer], value)):
            pool.index_copy_(1, slots, new[0].to(pool.dtype))
