"""Tests of simulated agents: loads, where a pool thrashes, and what is said of claims."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from mainstem.bench.cost import RooflineCost
from mainstem.bench.hardware import GPU_EFFICIENCY, hardware
from mainstem.bench.run import ARMS
from mainstem.bench.shapes import model_sizes
from mainstem.bench.simulate import (
    CLAIMS,
    LATE,
    ArmResult,
    Setting,
    agents_at,
    differences,
    floor_of,
    simulate_load,
    sweep,
    turn_size,
)
from mainstem.errors import ConfigError

SETTING = Setting(price_per_hour=24.0)


def cost(machine: str = "8xh100") -> RooflineCost:
    return RooflineCost(model_sizes("llama-3.1-70b"), hardware(machine), GPU_EFFICIENCY)


def test_agents_come_at_random_times_at_the_rate() -> None:
    workload = agents_at(cost(), SETTING, 200, 0.5)
    arrivals = sorted(call.wait for call in workload.calls if call.after is None)
    assert arrivals[0] == 0.0
    assert arrivals[-1] == pytest.approx(400, rel=0.2)
    assert len({round(b - a, 6) for a, b in pairwise(arrivals)}) > 190


def test_all_agents_at_once_arrive_at_once() -> None:
    workload = agents_at(cost(), SETTING, 3, math.inf)
    assert [call.wait for call in workload.calls if call.after is None] == [0.0] * 3


def test_no_agents_and_no_rate_are_refused() -> None:
    for agents, rate in ((0, 1.0), (1, 0.0)):
        with pytest.raises(ConfigError, match="there must be agents"):
            agents_at(cost(), SETTING, agents, rate)


def test_an_ample_pool_hits_what_can_be_hit_and_an_arm_without_a_cache_nothing() -> None:
    workload = agents_at(cost(), SETTING, 2, 0.1)
    results = {arm: simulate_load(arm, workload, cost(), SETTING) for arm in ARMS}
    assert results["radix"].reuse == pytest.approx(results["radix"].ceiling, abs=1e-4)
    assert results["radix"].amplification == pytest.approx(1.0, abs=0.01)
    assert 0 < results["radix"].reuse - results["block-hash"].reuse < 0.01
    assert results["none"].reuse == 0.0
    assert results["none"].waits[LATE].median > 10 * results["radix"].waits[LATE].median


def test_the_same_seed_gives_the_same_result() -> None:
    first, second = (simulate_load("radix", agents_at(cost(), SETTING, 2, 0.1), cost(), SETTING) for _ in range(2))
    assert first == second


def test_a_task_costs_its_share_of_the_machines_time() -> None:
    result = simulate_load("radix", agents_at(cost(), SETTING, 2, math.inf), cost(), SETTING)
    assert result.task_cost == pytest.approx(24.0 / 3600 * result.seconds / 2)


def test_a_pool_that_is_too_small_hits_less() -> None:
    scarce = cost()
    scarce.hardware = replace(scarce.hardware, memory_bytes=21.5e9)  # about 42,000 tokens
    workload = agents_at(scarce, SETTING, 6, math.inf)
    small, large = (simulate_load("radix", workload, made, SETTING) for made in (scarce, cost()))
    assert small.evicted > 0
    assert small.reuse < large.reuse - 0.05
    assert small.amplification > 1.5


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves no room"):
        simulate_load("radix", agents_at(cost(), SETTING, 1, 1.0), cost("h100"), SETTING)


def test_a_sweep_doubles_the_agents_up_to_the_most() -> None:
    results = list(sweep(["radix"], cost(), SETTING, most_agents=5, rate=0.1, fewest=1))
    assert [result.agents for result in results] == [1, 2, 5]


def test_progress_tells_every_call() -> None:
    told: list[tuple[str, int, int]] = []
    workload = agents_at(cost(), SETTING, 1, 1.0)
    simulate_load("radix", workload, cost(), SETTING, lambda *news: told.append(news))
    assert told[-1] == ("radix, 1 agents", len(workload.calls), len(workload.calls))
    assert len(told) == len(workload.calls)


def test_turn_ten_is_the_work_that_was_described() -> None:
    size = turn_size(LATE)
    assert sum(size) == pytest.approx(18_000, rel=0.01)
    assert size.new == 501
    assert turn_size(1) == (0, 9650)


def test_a_claim_is_held_against_its_floors() -> None:
    made = cost()
    workload = agents_at(made, SETTING, 2, 0.1)
    results = [ArmResult(arm, *[simulate_load(arm, workload, made, SETTING)] * 3) for arm in ARMS]
    sentences = differences(results, made)
    floor = floor_of(made, LATE)
    claimed = {claim.arm: claim for claim in CLAIMS}["radix"].late_ttft_s
    assert floor.peak < floor.modelled < claimed
    assert "is within reach" in sentences[1]
    assert len(sentences) == 6
    slow = RooflineCost(made.sizes, hardware("8xa100"), GPU_EFFICIENCY)
    assert "cannot be reached" in differences(results, slow)[0]
