"""Tests of how arms take turns, and of the sizes of pools."""

from __future__ import annotations

import pytest

from mainstem.bench.drive import drive
from mainstem.bench.run import ARMS, VirtualArms, ample_pool, parse_arms, run_arms, scarce_pool
from mainstem.config import EngineConfig
from mainstem.errors import ConfigError
from tests.bench.support import VOCAB_SIZE, small_workloads


def arms(capacity: int) -> VirtualArms:
    return VirtualArms(EngineConfig(max_num_batched_tokens=64), capacity, VOCAB_SIZE)


def test_another_arm_goes_first_in_each_repeat() -> None:
    workload = small_workloads()["agent"]
    order = [(run.repeat, run.arm) for run in run_arms(workload, arms(4096), ("radix", "none"), 3)]
    assert order == [(0, "radix"), (0, "none"), (1, "none"), (1, "radix"), (2, "radix"), (2, "none")]


def test_every_run_begins_with_an_empty_cache() -> None:
    workload = small_workloads()["agent"]
    first, second = run_arms(workload, arms(4096), ("radix",), 2)
    assert first.records[0].cached_tokens == second.records[0].cached_tokens == 0
    assert [r.cached_tokens for r in first.records] == [r.cached_tokens for r in second.records]


def test_the_end_of_every_call_is_told() -> None:
    workload = small_workloads()["branch"]
    told: list[tuple[str, int, int]] = []
    list(run_arms(workload, arms(8192), ("radix",), 2, lambda *end: told.append(end)))
    assert sorted(told) == [("radix", repeat, call) for repeat in range(2) for call in range(len(workload.calls))]


@pytest.mark.parametrize("name", sorted(small_workloads()))
@pytest.mark.parametrize("arm", ARMS)
def test_in_an_ample_pool_nothing_is_evicted_or_gives_way(name: str, arm: str) -> None:
    workload = small_workloads()[name]
    machine = arms(ample_pool(workload)).machine(arm)
    result = drive(workload, machine)
    assert machine.scheduler.cache.stats().evicted == 0
    assert sum(record.preemptions for record in result.records) == 0


def test_a_scarce_pool_evicts_and_still_serves() -> None:
    workload = small_workloads()["chat"]
    machine = arms(scarce_pool(workload)).machine("radix")
    drive(workload, machine)
    assert machine.scheduler.cache.stats().evicted > 0


def test_arms_are_named_once_each() -> None:
    assert parse_arms("none, radix") == ("none", "radix")
    with pytest.raises(ConfigError, match="there is no cache 'lru'; the arms are radix"):
        parse_arms("radix,lru")
    with pytest.raises(ConfigError, match="named twice"):
        parse_arms("radix,radix")
