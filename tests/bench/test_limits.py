"""Tests of the floor of the time to first token."""

from __future__ import annotations

import pytest
import torch

from mainstem.bench.limits import Limits, ModelCost, measure_limits
from mainstem.model import ModelShape

COST = ModelCost(num_active=1000, num_layers=2, query_width=8, weight_bytes=5000, kv_bytes_per_token=64)
SHAPE = ModelShape(
    architecture="llama",
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    hidden_size=64,
    intermediate_size=128,
    vocab_size=448,
    max_position=2048,
    num_parameters=100_000,
    num_active_parameters=80_000,
    weight_bytes=400_000,
    dtype=torch.float32,
    kv_dtype=torch.float32,
)


def test_arithmetic_is_linear_layers_and_attention() -> None:
    assert COST.flops(cached=30, new=10) == 2 * 1000 * 10 + 4 * 2 * 8 * (30 * 10 + 50)


def test_computing_in_two_parts_is_as_much_arithmetic_as_at_once() -> None:
    assert COST.flops(0, 30) + COST.flops(30, 10) == pytest.approx(COST.flops(0, 40))


def test_a_long_suffix_is_bound_by_arithmetic_and_one_token_by_reading() -> None:
    limits = Limits(flops_per_s=1e6, bytes_per_s=1e6)
    assert limits.ttft_floor(COST, cached=0, new=100) == COST.flops(0, 100) / 1e6
    assert limits.ttft_floor(COST, cached=100, new=1) == (5000 + 64 * 101) / 1e6


def test_the_cost_is_that_of_the_shape() -> None:
    assert ModelCost.of(SHAPE) == ModelCost(80_000, 2, 64, 400_000, 512)


def test_the_machine_reaches_something() -> None:
    limits = measure_limits(SHAPE, rows=16, device=torch.device("cpu"))
    assert 1e6 < limits.flops_per_s < 1e17
    assert 1e6 < limits.bytes_per_s < 1e16
