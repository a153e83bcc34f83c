"""Tests of the comparison of predictions with the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mainstem.bench.cost import RooflineCost
from mainstem.bench.hardware import Hardware
from mainstem.bench.run import EngineArms
from mainstem.bench.shapes import model_sizes
from mainstem.bench.validate import CPU_EFFICIENCY, Probe, efficiency_of, probe, sizes_of, validate
from mainstem.bench.workload import Workload
from mainstem.bench.workloads.agent import TurnRange, agent
from mainstem.config import EngineConfig
from mainstem.engine.build import BuiltEngine, build_engine
from tests.bench.support import VOCAB_SIZE

HERE = Hardware(
    name="this",
    devices=1,
    flops_per_s=300e9,
    bytes_per_s=30e9,
    memory_bytes=0.0,
    link_bytes_per_s=0.0,
    link_latency_s=0.0,
    price_per_hour=0.0,
    source="made up",
)
POOL = 8192


@pytest.fixture(scope="module")
def config(tiny_model: Path) -> EngineConfig:
    return EngineConfig(model=str(tiny_model), kv_memory="4MiB", max_num_batched_tokens=64)


@pytest.fixture(scope="module")
def built(config: EngineConfig) -> BuiltEngine:
    return build_engine(config)


def small_agent() -> Workload:
    return agent(scale=0.02, turns=TurnRange(3, 3), agents=2, vocab_size=VOCAB_SIZE)


def test_a_probe_of_a_machine_that_keeps_to_the_model_finds_its_shares() -> None:
    true = replace(CPU_EFFICIENCY, gemm=0.55, attention=0.3, step_overhead_s=0.004)
    cost = RooflineCost(model_sizes("smollm2"), HERE, true)
    found = Probe(
        rows=512,
        context=1536,
        chunk=float(cost.prefill(0, 512).total),
        chunk_over_context=float(cost.prefill(1536, 512).total),
        decode=float(cost.prefill(0, 1).total),
    )
    shares = efficiency_of(found, model_sizes("smollm2"), HERE)
    assert shares.gemm == pytest.approx(0.55, rel=0.01)
    assert shares.attention == pytest.approx(0.3, rel=0.01)
    assert shares.step_overhead_s == pytest.approx(0.004, rel=0.01)


def test_a_probe_that_makes_no_sense_gives_shares_that_are_possible() -> None:
    shares = efficiency_of(Probe(512, 1536, 1e-9, 1e-9, 1e-9), model_sizes("smollm2"), HERE)
    assert shares.gemm == shares.attention == 1.0
    assert shares.step_overhead_s == 0.0


def test_a_probe_times_three_kinds_of_steps(built: BuiltEngine, config: EngineConfig) -> None:
    found = probe(EngineArms(built, config, POOL), config.max_num_batched_tokens, 2048, VOCAB_SIZE)
    assert (found.rows, found.context) == (64, 192)
    assert min(found.chunk, found.chunk_over_context, found.decode) > 0


def test_sizes_of_a_loaded_model_are_its_own(built: BuiltEngine) -> None:
    shape = built.core.runner.shape
    sizes = sizes_of("tiny", shape)
    assert sizes.num_active_parameters == shape.num_active_parameters
    assert sizes.num_parameters == shape.num_parameters
    assert sizes.cost.kv_bytes_per_token == shape.kv_bytes_per_token


def test_every_turn_is_predicted_and_measured(built: BuiltEngine, config: EngineConfig) -> None:
    workload = small_agent()
    sizes = sizes_of("tiny", built.core.runner.shape)
    costs = {"stated": RooflineCost(sizes, HERE, CPU_EFFICIENCY)}
    ended: list[int] = []
    checks = validate(
        EngineArms(built, config, POOL),
        config,
        workload,
        costs,
        arm="radix",
        pool_tokens=POOL,
        repeats=2,
        on_end=ended.append,
    )
    assert [check.turn for check in checks] == [1, 2, 3]
    assert len(ended) == 2 * len(workload.calls)
    for check in checks:
        assert check.fastest <= check.measured <= check.slowest
        assert check.ratio("stated") == check.predicted["stated"] / check.measured
        assert 0 < check.prefilled <= check.prompt
