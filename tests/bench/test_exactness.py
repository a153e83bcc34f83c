"""Tests that a cache alone gives exactly the counts that a real engine gives, on every workload and arm.

And that the engine says the same on every arm.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from mainstem.bench.drive import drive
from mainstem.bench.machines import Machine
from mainstem.bench.run import ARMS, EngineArms, VirtualArms, ample_pool, scarce_pool
from mainstem.bench.workload import Workload
from mainstem.config import EngineConfig
from mainstem.engine.build import build_engine
from tests.bench.support import VOCAB_SIZE, small_workloads
from tests.engine.support import kv_memory_for

BUDGET = 64


class Run(NamedTuple):
    """What must be equal, and what the calls replied."""

    counts: Counts
    replies: list[list[int]]


class Counts(NamedTuple):
    calls: list[tuple[int, int, int, int]]
    memory: list[tuple[int, int, int, int, int]]
    steps: int


def run(workload: Workload, machine: Machine) -> Run:
    result = drive(workload, machine)
    log = result.memory
    counts = Counts(
        [(r.prompt_tokens, r.cached_tokens, r.prefilled_tokens, r.preemptions) for r in result.records],
        list(zip(log.used, log.in_use, log.resident, log.logical, log.distinct, strict=True)),
        result.steps,
    )
    return Run(counts, [record.reply.tolist() for record in result.records])


@pytest.mark.parametrize("pool", [ample_pool, scarce_pool])
@pytest.mark.parametrize("name", sorted(small_workloads()))
def test_the_cache_alone_counts_what_the_engine_counts(
    tiny_model: Path, name: str, pool: Callable[[Workload], int]
) -> None:
    workload = small_workloads()[name]
    capacity = pool(workload)
    config = EngineConfig(
        model=str(tiny_model),
        kv_memory=kv_memory_for(capacity),
        kv_dtype="float32",
        max_num_batched_tokens=BUDGET,
        max_num_seqs=8,
    )
    engines = EngineArms(build_engine(config), config, capacity)
    caches = VirtualArms(config, capacity, VOCAB_SIZE)
    said = []
    for arm in ARMS:
        machine = engines.machine(arm)
        real = run(workload, machine)
        assert run(workload, caches.machine(arm)).counts == real.counts
        machine.core.check_integrity()
        hits = sum(cached for _, cached, _, _ in real.counts.calls)
        assert (hits > 0) == (arm != "none")
        said.append(real.replies)
    assert all(replies == said[0] for replies in said)
