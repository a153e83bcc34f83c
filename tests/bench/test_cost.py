"""Tests of the step cost: sizes of models, machines, and what a roofline makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mainstem.bench.cost import RooflineCost, StepLoad
from mainstem.bench.hardware import GPU_EFFICIENCY, hardware
from mainstem.bench.shapes import model_sizes
from mainstem.errors import ConfigError


def cost(model: str = "llama-3.1-70b", machine: str = "8xh100") -> RooflineCost:
    return RooflineCost(model_sizes(model), hardware(machine), GPU_EFFICIENCY)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-8b", 8_190_735_360),
        ("smollm2", 134_515_008),
    ],
)
def test_sizes_have_as_many_parameters_as_the_published_weights(name: str, parameters: int) -> None:
    assert model_sizes(name).num_parameters == parameters


def test_names_that_are_not_known_are_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"known are .*llama-3.1-70b"):
        model_sizes("llama-9")
    with pytest.raises(ConfigError, match="one of a100, h100, h200"):
        hardware("8xtpu")
    with pytest.raises(ConfigError, match="is not known"):
        hardware("0xh100")


def test_a_machine_of_several_devices_costs_as_much_as_they_do() -> None:
    one, eight = hardware("h100"), hardware("8xh100")
    assert eight.price_per_hour == 8 * one.price_per_hour
    assert one.link_bytes_per_s == 0


def test_a_long_chunk_is_bound_by_arithmetic_and_a_token_by_memory() -> None:
    made = cost()
    chunk, token = made.prefill(0, 8192), made.prefill(8192, 1)
    peak = 8 * made.hardware.flops_per_s * GPU_EFFICIENCY.gemm
    products = 2 * made.model.num_active * 8192 + 2 * made.sizes.vocab_size * made.sizes.hidden
    assert float(chunk.linear) == pytest.approx(products / peak)
    memory = 8 * made.hardware.bytes_per_s * GPU_EFFICIENCY.memory
    assert float(token.linear) == pytest.approx(made.model.weight_bytes / memory)
    assert float(token.attention) == pytest.approx(made.model.kv_bytes_per_token * 8193 / memory)


def test_one_device_has_nobody_to_reduce_with() -> None:
    assert float(cost("llama-3.1-8b", "h100").prefill(0, 512).all_reduce) == 0
    assert float(cost("llama-3.1-8b", "2xh100").prefill(0, 512).all_reduce) > 0


def test_the_floor_is_below_every_prediction() -> None:
    made = cost()
    for cached, new in ((0, 1), (0, 9650), (17474, 501), (100_000, 1)):
        assert made.floor(cached, new) < float(made.prefill(cached, new).total)


def test_chunks_of_a_prompt_cost_more_than_the_whole_but_attend_to_the_same_pairs() -> None:
    made = cost()
    whole = made.prefill(0, 4096)
    halves = [made.prefill(0, 2048), made.prefill(2048, 2048)]
    assert sum(float(half.attention) for half in halves) == pytest.approx(float(whole.attention))
    assert sum(float(half.total) for half in halves) > float(whole.total)


def test_steps_ahead_get_longer_by_a_token_for_every_request() -> None:
    made = cost()
    ahead = made.ahead(4, 40_000, 3)
    each = [made.parts(StepLoad(4.0, 4.0, 40_000 + 4 * i, 40_000 + 4 * i)).total for i in range(3)]
    np.testing.assert_allclose(ahead, np.array(each, np.float64))


def test_the_pool_is_what_the_weights_leave() -> None:
    made = cost()
    used = made.pool_tokens(0.9) * made.model.kv_bytes_per_token + 2 * made.sizes.num_parameters
    assert used == pytest.approx(0.9 * 8 * 80e9, rel=1e-4)
    assert cost("llama-3.1-70b", "h100").pool_tokens() == 0


@pytest.mark.parametrize(("name", "value"), [("gemm", 0.0), ("attention", 1.1), ("step_overhead_s", -1.0)])
def test_shares_outside_of_the_possible_are_refused(name: str, value: float) -> None:
    changes: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError):
        replace(GPU_EFFICIENCY, **changes)
