"""Tests of how memory is divided."""

from __future__ import annotations

import pytest
import torch

from mainstem.config import EngineConfig, parse_size
from mainstem.engine.budget import CPU_POOL_BYTES, plan_memory
from mainstem.errors import ConfigError
from mainstem.model import ModelShape

CPU = torch.device("cpu")
SHAPE = ModelShape(
    architecture="llama",
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    hidden_size=576,
    intermediate_size=1536,
    vocab_size=49_152,
    max_position=8192,
    num_parameters=135_000_000,
    num_active_parameters=106_000_000,
    weight_bytes=540_000_000,
    dtype=torch.float32,
    kv_dtype=torch.float32,
)


def test_a_pool_of_a_given_size_has_that_many_tokens() -> None:
    budget = plan_memory(EngineConfig(kv_memory="64MiB"), SHAPE, CPU)
    assert budget.kv_bytes_per_token == 46_080
    assert budget.pool_tokens == 64 * 2**20 // 46_080
    assert budget.limited_by == "--kv-memory"


def test_a_pool_of_blocks_has_whole_ones() -> None:
    config = EngineConfig(kv_memory="64MiB", prefix_cache="block-hash", block_size=100)
    budget = plan_memory(config, SHAPE, CPU)
    assert budget.pool_tokens == 1400
    assert budget.pool_bytes == 1400 * 46_080


def test_a_pool_without_room_for_a_block_is_refused() -> None:
    config = EngineConfig(kv_memory="4MiB", prefix_cache="block-hash", block_size=100)
    with pytest.raises(ConfigError, match="would hold 0 tokens in blocks of 100"):
        plan_memory(config, SHAPE, CPU)


def test_a_block_size_below_1_is_refused() -> None:
    with pytest.raises(ConfigError, match="block_size must be between 1"):
        EngineConfig(prefix_cache="block-hash", block_size=0)


def test_on_a_cpu_the_pool_is_modest_by_default() -> None:
    assert plan_memory(EngineConfig(), SHAPE, CPU).pool_bytes <= CPU_POOL_BYTES


def test_a_small_share_of_memory_makes_a_small_pool() -> None:
    with pytest.raises(ConfigError, match="tokens at 46080 bytes"):
        plan_memory(EngineConfig(memory_utilization=1e-6), SHAPE, CPU)


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 4 * 2**30), ("512MB", 512 * 10**6), ("1.5g", 3 * 2**29), ("100", 100), ("2 kib", 2048)]
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1GiB", "0", "4XB", "1e", "nan", "inf", "9999999999GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_size(text)
