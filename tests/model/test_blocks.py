"""Tests of weights in blocks: which numbers they stand for, and how they lie in panels."""

from __future__ import annotations

import pytest
import torch
from gguf import GGMLQuantizationType, dequantize
from torch import nn

from mainstem.model.blocks import BYTES, BlockPanels, blocks_of, fill_in, joined
from tests.support.random_blocks import linear_of, random_blocks

KINDS = list(BYTES)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_stand_for_the_numbers_that_gguf_reads(kind: str) -> None:
    blocks = random_blocks(kind, 9, 96)
    expected = torch.from_numpy(dequantize(blocks.data.numpy(), GGMLQuantizationType[kind]))
    assert torch.equal(blocks.floats().view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_found_in_panels(kind: str) -> None:
    blocks = random_blocks(kind, 75, 64)
    ids = torch.tensor([74, 0, 31, 32, 33, 0])
    expected = blocks.floats()[ids]
    assert torch.equal(blocks.rows(ids), expected)
    assert torch.equal(BlockPanels.of(blocks, 32).rows(ids), expected)
    assert BlockPanels.of(blocks, 32).rows(ids[:0]).shape == (0, 64)


@pytest.mark.parametrize("kind", KINDS)
def test_joined_blocks_are_the_rows_of_all_parts(kind: str) -> None:
    parts = [random_blocks(kind, rows, 64, seed) for seed, rows in enumerate((3, 40, 1))]
    assert torch.equal(joined(parts).floats(), torch.cat([part.floats() for part in parts]))


def test_filled_in_weights_are_plain_and_tied_ones_stay_tied() -> None:
    blocks = random_blocks("Q8_0", 40, 64)
    layers = [linear_of(blocks), linear_of(blocks), linear_of(random_blocks("Q4_1", 8, 32))]
    fill_in(nn.ModuleList(layers))
    assert layers[0].weight is layers[1].weight
    assert torch.equal(layers[0].weight, blocks.floats())
    assert [blocks_of(layer) for layer in layers] == [None] * 3
