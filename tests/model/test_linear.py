"""Tests of prepacked linear layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mainstem.model.linear import PrepackedLinear, can_prepack, prepack_linears

pytestmark = pytest.mark.skipif(
    not can_prepack(torch.float32, torch.device("cpu")), reason="this build of PyTorch has no oneDNN"
)


class Block(nn.Module):
    """Children as in a decoder layer, some with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(48, 64)
        self.k_proj = nn.Linear(48, 16, bias=False)
        self.v_proj = nn.Linear(48, 16)
        self.o_proj = nn.Linear(64, 48, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


@pytest.fixture
def pair() -> tuple[Block, Block]:
    torch.manual_seed(0)
    plain, packed = Block(), Block()
    packed.load_state_dict(plain.state_dict())
    assert prepack_linears(packed) == 4
    return plain, packed


@torch.inference_mode()
def test_outputs_equal_plain_layers(pair: tuple[Block, Block]) -> None:
    plain, packed = pair
    for rows in (1, 3, 70):
        x = torch.randn(1, rows, 48)
        for expected, got in zip(plain(x), packed(x), strict=True):
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
        out = torch.randn(1, rows, 64)
        torch.testing.assert_close(packed.o_proj(out), plain.o_proj(out), atol=1e-5, rtol=0)


@torch.inference_mode()
def test_every_input_gets_its_own_output_in_any_order_of_calls(pair: tuple[Block, Block]) -> None:
    plain, packed = pair
    inputs = [torch.randn(2, 48) for _ in range(3)]
    for name, i in [("q_proj", 0), ("q_proj", 1), ("v_proj", 0), ("v_proj", 0), ("k_proj", 2), ("q_proj", 2)]:
        expected, got = getattr(plain, name)(inputs[i]), getattr(packed, name)(inputs[i])
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_no_rows_give_no_rows(pair: tuple[Block, Block]) -> None:
    q, k, _ = pair[1](torch.empty(1, 0, 48))
    assert (q.shape, k.shape) == ((1, 0, 64), (1, 0, 16))


@torch.inference_mode()
def test_a_row_does_not_depend_on_the_others(pair: tuple[Block, Block]) -> None:
    x = torch.randn(1, 33, 48)
    together = pair[1].q_proj(x)
    alone = torch.cat([pair[1].q_proj(x[:, row : row + 1]) for row in range(33)], dim=1)
    assert torch.equal(together, alone)


@torch.inference_mode()
def test_nothing_is_kept_once_every_layer_was_called(pair: tuple[Block, Block]) -> None:
    pair[1](torch.randn(2, 48))
    assert isinstance(pair[1].q_proj, PrepackedLinear)
    assert pair[1].q_proj._product._input is None


def test_other_types_are_left_alone() -> None:
    assert not can_prepack(torch.bfloat16, torch.device("cpu"))
    assert not can_prepack(torch.float32, torch.device("cuda"))
