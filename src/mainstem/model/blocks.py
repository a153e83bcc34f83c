"""Weights in blocks, as GGUF files have them: 32 inputs of an output share a scale, and the numbers are a few bits each.

A block stands for float32 numbers that are given exactly: what is computed with it is the same bit for bit as with those.
It knows the layout of blocks in a file and in the panels of the native extension, no models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

INPUTS = 32
"""Weights of an output that share a scale."""
BYTES = {"Q4_1": 20, "Q8_0": 34}
"""Kinds of blocks, as GGUF names them, and the size of one: scale, minimum and half bytes; or scale and bytes."""


class Blocks(NamedTuple):
    """A matrix in blocks.

    Attributes:
        kind: a key of `BYTES`.
        data: uint8 (outputs, inputs / 32 * bytes of a block).
    """

    kind: str
    data: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        outputs, size = self.data.shape
        return outputs, size // BYTES[self.kind] * INPUTS

    def floats(self) -> Tensor:
        """The numbers that the blocks stand for, float32 (outputs, inputs)."""
        blocks = self.data.unflatten(1, (-1, BYTES[self.kind]))
        scale = blocks[..., :2].view(torch.float16).float()
        if self.kind == "Q8_0":
            return (blocks[..., 2:].view(torch.int8) * scale).flatten(1)
        minimum = blocks[..., 2:4].view(torch.float16).float()
        halves = blocks[..., 4:]
        return (torch.cat([halves & 15, halves >> 4], dim=-1) * scale + minimum).flatten(1)

    def panels(self, width: int) -> Tensor:
        """uint8 (panels, blocks, bytes): the blocks of `width` outputs lie side by side, see `block_bytes` in native.c.

        Outputs that are missing in the last panel are zeros.
        """
        size = BYTES[self.kind]
        count = -(-len(self.data) // width)
        padded = nn.functional.pad(self.data, (0, 0, 0, count * width - len(self.data)))
        blocks = padded.view(count, width, -1, size).transpose(1, 2)
        panels = torch.empty(count, blocks.shape[1], width * size, dtype=torch.uint8)
        # Scales and minima are two bytes each; half bytes are moved by fours.
        head, number = (2, torch.uint8) if self.kind == "Q8_0" else (4, torch.int32)
        for start, stop, element in ((0, head, torch.float16), (head, size, number)):
            rows = blocks[..., start:stop].view(element).transpose(2, 3)
            panels[..., start * width : stop * width].view(element).unflatten(2, rows.shape[2:]).copy_(rows)
        return panels


def joined(parts: Sequence[Blocks]) -> Blocks:
    """Blocks of one kind, the outputs of all parts one after the other."""
    return Blocks(parts[0].kind, torch.cat([part.data for part in parts]))
