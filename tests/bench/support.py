"""What the tests of the benchmarks share: small workloads, and both machines over every cache."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mainstem.bench.machines import StepSeconds, VirtualMachine, nominal_seconds
from mainstem.bench.run import make_cache
from mainstem.bench.workload import Call, Workload
from mainstem.bench.workloads.agent import TurnRange, agent
from mainstem.bench.workloads.branch import branch
from mainstem.bench.workloads.chat import chat
from mainstem.scheduler import Scheduler
from mainstem.tree import TokenArray

VOCAB_SIZE = 448


def tokens(n: int, seed: int = 0) -> TokenArray:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, n).astype(np.int32)


def workload(calls: Iterable[Call]) -> Workload:
    return Workload(name="test", settings={}, calls=tuple(calls), vocab_size=VOCAB_SIZE)


def virtual(
    arm: str = "radix", capacity: int = 4096, *, budget: int = 64, step_seconds: StepSeconds = nominal_seconds
) -> VirtualMachine:
    scheduler = Scheduler(make_cache(arm, capacity), max_num_batched_tokens=budget, max_num_seqs=16, max_model_len=2048)
    return VirtualMachine(scheduler, vocab_size=VOCAB_SIZE, step_seconds=step_seconds)


def small_workloads() -> dict[str, Workload]:
    """One of each kind, small enough for a tiny model."""
    return {
        "agent": agent(scale=0.04, turns=TurnRange(3, 5), agents=3, vocab_size=VOCAB_SIZE),
        "branch": branch(scale=0.02, branches=3, depth=2, trees=2, vocab_size=VOCAB_SIZE),
        "chat": chat(scale=0.1, sessions=8, system_prompts=4, vocab_size=VOCAB_SIZE),
    }
