"""Random weights in blocks."""

from __future__ import annotations

import torch
from torch import nn

from mainstem.model.blocks import BYTES, INPUTS, Blocks, set_blocks


def random_blocks(kind: str, outputs: int, inputs: int, seed: int = 0) -> Blocks:
    """Blocks with any numbers, scales and minima of either sign, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    head = BYTES[kind] - (INPUTS if kind == "Q8_0" else INPUTS // 2)
    scales = (torch.randn(outputs, inputs // INPUTS, head // 2, generator=generator) / 50).to(torch.float16)
    scales[0] = 0
    numbers = torch.randint(
        0, 256, (outputs, inputs // INPUTS, BYTES[kind] - head), dtype=torch.uint8, generator=generator
    )
    return Blocks(kind, torch.cat([scales.view(torch.uint8), numbers], dim=2).flatten(1))


def linear_of(blocks: Blocks, bias: bool = True) -> nn.Linear:
    """A layer whose weight is on the meta device, with blocks beside it."""
    outputs, inputs = len(blocks.data), blocks.width
    layer = nn.Linear(inputs, outputs, bias=bias)
    layer.weight = nn.Parameter(torch.empty(outputs, inputs, device="meta"), requires_grad=False)
    set_blocks(layer, blocks)
    return layer
