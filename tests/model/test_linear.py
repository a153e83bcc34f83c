"""Tests of packed linear layers, by oneDNN and by each instruction set of the native extension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from mainstem.model import linear
from mainstem.model.blocks import BYTES, blocks_of
from mainstem.model.linear import NativeProduct, OneDnnProduct, PackedLinear, Product, has_onednn, pack_linears
from mainstem.native import native_library
from tests.support.random_blocks import linear_of, random_blocks

LIBRARY = native_library()
CPU = torch.device("cpu")
Maker = Callable[[Sequence[nn.Linear]], Product]

MAKERS = [
    pytest.param(
        OneDnnProduct,
        id="onednn",
        marks=pytest.mark.skipif(not has_onednn(), reason="this build of PyTorch has no oneDNN"),
    ),
    *(
        pytest.param(partial(NativeProduct, library=library, instruction_set=index), id=f"native-{name}")
        for library in ([LIBRARY] if LIBRARY else [])
        for index, name in enumerate(library.instruction_sets)
    ),
]


class Block(nn.Module):
    """Children as in a decoder layer, some with biases, with sizes that fill no whole panel."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(48, 64)
        self.k_proj = nn.Linear(48, 16, bias=False)
        self.v_proj = nn.Linear(48, 11)
        self.o_proj = nn.Linear(64, 48, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


@pytest.fixture(params=MAKERS)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Block, Block]:
    monkeypatch.setattr(linear, "_product_for", lambda *_: request.param)
    torch.manual_seed(0)
    plain, packed = Block(), Block()
    packed.load_state_dict(plain.state_dict())
    assert pack_linears(packed, dtype=torch.float32, device=CPU) == 4
    return plain, packed


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 3, 12, 13, 70])
def test_outputs_equal_plain_layers(pair: tuple[Block, Block], rows: int) -> None:
    plain, packed = pair
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
def test_an_input_that_is_not_contiguous(pair: tuple[Block, Block]) -> None:
    plain, packed = pair
    x = torch.randn(48, 5).t()
    torch.testing.assert_close(packed.q_proj(x), plain.q_proj(x), atol=1e-5, rtol=0)


@torch.inference_mode()
def test_no_rows_give_no_rows(pair: tuple[Block, Block]) -> None:
    q, k, _ = pair[1](torch.empty(1, 0, 48))
    assert (q.shape, k.shape) == ((1, 0, 64), (1, 0, 16))


@torch.inference_mode()
def test_a_row_does_not_depend_on_the_others(pair: tuple[Block, Block]) -> None:
    x = torch.randn(1, 33, 48)
    together = pair[1].q_proj(x)
    for step in (1, 2, 5, 11, 12):
        parts = torch.cat([pair[1].q_proj(x[:, row : row + step]) for row in range(0, 33, step)], dim=1)
        assert torch.equal(together, parts)


@torch.inference_mode()
@pytest.mark.skipif(LIBRARY is None, reason="the native extension was not built")
@pytest.mark.parametrize("index", range(len(LIBRARY.instruction_sets) if LIBRARY else 0))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 13, 24, 25, 70])
def test_weights_in_16_bits_count_as_what_they_were_rounded_to(index: int, dtype: torch.dtype, rows: int) -> None:
    assert LIBRARY is not None
    rounded = nn.Linear(48, 75)
    kept = NativeProduct([rounded], LIBRARY, dtype=dtype, instruction_set=index)
    rounded.weight.copy_(rounded.weight.to(dtype))
    exact = NativeProduct([rounded], LIBRARY, instruction_set=index)
    x = torch.randn(rows, 48)
    assert torch.equal(kept.output(x, 0), exact.output(x, 0))


@torch.inference_mode()
@pytest.mark.skipif(LIBRARY is None, reason="the native extension was not built")
@pytest.mark.parametrize("index", range(len(LIBRARY.instruction_sets) if LIBRARY else 0))
def test_weights_in_bytes_are_close_and_the_same_for_any_number_of_rows(index: int) -> None:
    assert LIBRARY is not None
    layer = nn.Linear(48, 75)
    layer.weight[3] = 0.0  # nothing to scale
    kept = NativeProduct([layer], LIBRARY, dtype=torch.int8, instruction_set=index)
    x = torch.randn(70, 48)
    together = kept.output(x, 0)
    # A weight is off by half a step, 1/254 of the largest of its output, at most.
    step = layer.weight.abs().amax(dim=1) / 254
    assert ((together - layer(x)).abs() <= x.abs().sum(dim=1, keepdim=True) * step * 1.001 + 1e-5).all()
    assert torch.equal(together, torch.cat([kept.output(x[row : row + 7], 0) for row in range(0, 70, 7)]))


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def with_floats(layer: nn.Linear) -> nn.Linear:
    """The same layer with plain weights."""
    blocks = blocks_of(layer)
    assert blocks is not None
    plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    plain.weight = nn.Parameter(blocks.floats())
    plain.bias = layer.bias
    return plain


@torch.inference_mode()
@pytest.mark.skipif(LIBRARY is None, reason="the native extension was not built")
@pytest.mark.parametrize("index", range(len(LIBRARY.instruction_sets) if LIBRARY else 0))
@pytest.mark.parametrize("kind", list(BYTES))
@pytest.mark.parametrize(("inputs", "sizes"), [(32, (1,)), (96, (64, 11, 5)), (160, (75,))])
def test_blocks_give_the_bits_of_their_numbers_for_any_number_of_rows(
    index: int, kind: str, inputs: int, sizes: tuple[int, ...]
) -> None:
    assert LIBRARY is not None
    layers = [linear_of(random_blocks(kind, size, inputs, seed), bias=seed != 1) for seed, size in enumerate(sizes)]
    kept = NativeProduct(layers, LIBRARY, dtype=None, instruction_set=index)
    exact = NativeProduct([with_floats(layer) for layer in layers], LIBRARY, instruction_set=index)
    assert kept.kept == kind
    x = torch.randn(70, inputs)
    for rows in (*range(1, 41), 70):
        out, expected = torch.empty(rows, sum(sizes)), torch.empty(rows, sum(sizes))
        kept.compute(x[:rows], out)
        exact.compute(x[:rows], expected)
        assert same_bits(out, expected), rows


@pytest.mark.skipif(LIBRARY is None, reason="the native extension was not built")
def test_the_fewest_bits_that_change_no_number_are_kept() -> None:
    assert LIBRARY is not None

    def kept(*weights: Tensor) -> object:
        layers = [nn.Linear(weight.shape[1], len(weight), bias=False) for weight in weights]
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight.data = weight
        return NativeProduct(layers, LIBRARY, dtype=None).kept

    weight = torch.randn(40, 48)
    assert kept(weight) == torch.float32
    assert kept(weight.bfloat16().float()) == torch.bfloat16
    assert kept(weight.half().float()) == torch.float16
    assert kept(weight.bfloat16().float(), weight) == torch.float32


@torch.inference_mode()
@pytest.mark.skipif(LIBRARY is None, reason="the native extension was not built")
def test_layers_in_different_blocks_become_one_product_of_floats() -> None:
    assert LIBRARY is not None
    layers = [linear_of(random_blocks("Q4_1", 40, 64)), linear_of(random_blocks("Q8_0", 24, 64))]
    mixed = NativeProduct(layers, LIBRARY, dtype=None)
    exact = NativeProduct([with_floats(layer) for layer in layers], LIBRARY)
    assert mixed.kept == torch.float32
    x = torch.randn(3, 64)
    assert same_bits(mixed.output(x, 0), exact.output(x, 0))


@pytest.mark.skipif(LIBRARY is None, reason="the native extension was not built")
@pytest.mark.parametrize("number", [torch.float32, torch.bfloat16, "Q4_1", "Q8_0"])
def test_the_weights_of_outputs_are_found_in_a_product(number: torch.dtype | str) -> None:
    assert LIBRARY is not None
    layer = nn.Linear(64, 75)
    if isinstance(number, str):
        layer = with_floats(blocked := linear_of(random_blocks(number, 75, 64)))
    else:
        layer.weight.data = layer.weight.to(number).float()
    product = NativeProduct([blocked if isinstance(number, str) else layer], LIBRARY, dtype=None)
    assert product.kept == number
    ids = torch.tensor([74, 0, 31, 32, 0])
    assert torch.equal(product.rows(ids), layer.weight[ids])


@torch.inference_mode()
def test_nothing_is_kept_once_every_layer_was_called(pair: tuple[Block, Block]) -> None:
    pair[1](torch.randn(2, 48))
    assert isinstance(pair[1].q_proj, PackedLinear)
    assert pair[1].q_proj.product._input is None


def test_other_types_and_devices_are_left_alone() -> None:
    assert pack_linears(Block(), dtype=torch.bfloat16, device=CPU) == 0
    assert pack_linears(Block(), dtype=torch.float32, device=torch.device("cuda")) == 0


def test_the_native_extension_is_taken_where_it_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def product() -> type[Product]:
        block = Block()
        pack_linears(block, dtype=torch.float32, device=CPU)
        assert isinstance(block.o_proj, PackedLinear)
        return type(block.o_proj.product)

    if LIBRARY is not None:
        assert product() is NativeProduct
    monkeypatch.setattr(linear, "native_library", lambda: None)
    if has_onednn():
        assert product() is OneDnnProduct
