"""Weights in blocks, as GGUF files have them: 32 weights of an output share a scale, and are a few bits each.

A block stands for float32 numbers exactly: what is computed with it is the same, bit for bit, as with those. It knows
how blocks lie in a file and in the panels of the native extension; it knows no models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

INPUTS = 32
"""Weights of an output that share a scale."""
BYTES = {"Q4_1": 20, "Q8_0": 34}
"""Kinds of blocks, as GGUF names them, and bytes of one: a scale, a minimum and half bytes; or a scale and bytes."""


class Blocks(NamedTuple):
    """A matrix in blocks.

    Attributes:
        kind: a key of `BYTES`.
        data: uint8 (outputs, inputs / 32 * bytes of a block), as in a GGUF file.
    """

    kind: str
    data: Tensor

    @property
    def width(self) -> int:
        """Inputs, a multiple of 32."""
        return self.data.shape[1] // BYTES[self.kind] * INPUTS

    def floats(self) -> Tensor:
        """The numbers that the blocks stand for, float32 (outputs, inputs)."""
        blocks = self.data.view(len(self.data), self.width // INPUTS, BYTES[self.kind])
        scale = blocks[..., :2].view(torch.float16).float()
        if self.kind == "Q8_0":
            return (blocks[..., 2:].view(torch.int8) * scale).flatten(1)
        minimum, halves = blocks[..., 2:4].view(torch.float16).float(), blocks[..., 4:]
        return (torch.cat([halves & 15, halves >> 4], dim=-1) * scale + minimum).flatten(1)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows by their numbers, int64[n], as floats: (n, inputs)."""
        return Blocks(self.kind, self.data[ids]).floats()


class BlockPanels(NamedTuple):
    """A matrix in blocks as the native extension wants it: the blocks of some outputs side by side.

    Attributes:
        kind: a key of `BYTES`.
        data: uint8 (panels, inputs / 32, bytes of a block times outputs of a panel); see `block_bytes` in native.c.
            Outputs that are missing in the last panel are zeros.
    """

    kind: str
    data: Tensor

    @classmethod
    def of(cls, blocks: Blocks, panel: int) -> BlockPanels:
        """Arrange blocks for panels of so many outputs."""
        size = BYTES[blocks.kind]
        count = -(-len(blocks.data) // panel)
        padded = nn.functional.pad(blocks.data, (0, 0, 0, count * panel - len(blocks.data)))
        rows = padded.view(count, panel, -1, size).transpose(1, 2)
        panels = cls(blocks.kind, torch.empty(count, rows.shape[1], panel * size, dtype=torch.uint8))
        for part, (start, stop, element) in zip(panels._parts(), _parts_of(blocks.kind), strict=True):
            part.copy_(rows[..., start:stop].view(element).transpose(2, 3))
        return panels

    def rows(self, ids: Tensor) -> Tensor:
        """Outputs by their numbers, int64[n], as floats: (n, inputs)."""
        panel = self.data.shape[2] // BYTES[self.kind]
        where, lane = ids // panel, ids % panel
        # A fresh copy has strides that can be viewed as bytes even where there is nothing.
        found = [part[where, :, :, lane].clone(memory_format=torch.contiguous_format) for part in self._parts()]
        return Blocks(self.kind, torch.cat([part.view(torch.uint8) for part in found], dim=2).flatten(1)).floats()

    def _parts(self) -> list[Tensor]:
        """Views of the data, (panels, inputs / 32, elements of a block, outputs of a panel)."""
        panel = self.data.shape[2] // BYTES[self.kind]
        return [
            self.data[..., start * panel : stop * panel]
            .view(element)
            .view(*self.data.shape[:2], (stop - start) // element.itemsize, panel)
            for start, stop, element in _parts_of(self.kind)
        ]


def joined(parts: Sequence[Blocks]) -> Blocks:
    """The outputs of all parts, which are of one kind, one after the other."""
    return Blocks(parts[0].kind, torch.cat([part.data for part in parts]))


def blocks_of(module: nn.Module) -> Blocks | None:
    """The blocks that a linear layer or an embedding has in place of its weight, which is then on the meta device."""
    return module.__dict__.get("blocks")


def set_blocks(module: nn.Module, blocks: Blocks) -> None:
    """Give a linear layer or an embedding blocks in place of its weight."""
    module.__dict__["blocks"] = blocks


def fill_in(module: nn.Module) -> None:
    """Turn all blocks below `module` into plain float32 weights; tied ones stay tied."""
    filled: dict[int, nn.Parameter] = {}
    for part in module.modules():
        if (blocks := blocks_of(part)) is not None:
            key = id(blocks.data)
            if key not in filled:
                filled[key] = nn.Parameter(blocks.floats(), requires_grad=False)
            part.weight = filled[key]
            del part.__dict__["blocks"]


def _parts_of(kind: str) -> list[tuple[int, int, torch.dtype]]:
    """Byte ranges of a block and what they are moved by: scale and minimum, bytes, or half bytes by fours."""
    if kind == "Q8_0":
        return [(0, 2, torch.float16), (2, BYTES[kind], torch.uint8)]
    return [(0, 4, torch.float16), (4, BYTES[kind], torch.int32)]
