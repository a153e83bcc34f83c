"""Tests of the virtual machine: many steps taken at once are the steps taken one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mainstem.bench.drive import DriveResult, drive
from mainstem.bench.machines import NominalCost, VirtualMachine, made_up_reply, nominal_seconds
from mainstem.bench.run import ARMS, VirtualArms, ample_pool, scarce_pool
from mainstem.bench.workload import Call, Workload
from mainstem.config import EngineConfig
from mainstem.scheduler import DECODE_RESERVATION
from tests.bench.support import VOCAB_SIZE, small_workloads, tokens, workload

CONFIG = EngineConfig(max_num_batched_tokens=64, max_num_seqs=4)


def both_ways(given: Workload, arm: str, capacity: int) -> tuple[DriveResult, DriveResult]:
    machines: list[VirtualMachine] = [
        VirtualArms(CONFIG, capacity, VOCAB_SIZE, cost).machine(arm)
        for cost in (nominal_seconds, lambda output: nominal_seconds(output))
    ]
    at_once, one_by_one = (drive(given, machine) for machine in machines)
    for machine in machines:
        machine.scheduler.check_integrity()
    return at_once, one_by_one


def assert_same(at_once: DriveResult, one_by_one: DriveResult) -> None:
    assert at_once.steps == one_by_one.steps
    assert at_once.memory == one_by_one.memory
    for a, b in zip(at_once.records, one_by_one.records, strict=True):
        assert a.token_times.tolist() == b.token_times.tolist()
        assert a.reply.tolist() == b.reply.tolist()
        assert a._replace(token_times=b.token_times, reply=b.reply) == b


@pytest.mark.parametrize("pool", [ample_pool, scarce_pool])
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("name", sorted(small_workloads()))
def test_steps_at_once_are_the_steps_one_by_one(name: str, arm: str, pool: Callable[[Workload], int]) -> None:
    given = small_workloads()[name]
    assert_same(*both_ways(given, arm, pool(given)))


@pytest.mark.parametrize("arm", ARMS)
def test_replies_that_agree_for_a_while_are_counted_once_as_long_as_they_do(arm: str) -> None:
    said = tokens(40, 1)
    differs = said.copy()
    differs[25] += 1
    given = workload(
        Call(session=s, turn=1, after=None, extends=False, appended=tokens(30), reply_tokens=40, reply=reply)
        for s, reply in enumerate((said, differs))
    )
    assert_same(*both_ways(given, arm, 512))


def test_as_many_steps_are_taken_at_once_as_have_slots() -> None:
    machine = VirtualArms(CONFIG, 512, VOCAB_SIZE).machine("radix")
    machine.submit(0, tokens(10), 200, None, due=0.0)
    machine.step()  # the prompt
    assert machine.run_ahead(np.inf) is None
    machine.step()  # reserves slots for the reply
    stretch = machine.run_ahead(np.inf)
    assert stretch is not None
    assert len(stretch.times) == len(stretch.tokens[0]) == DECODE_RESERVATION - 1


def test_no_step_begins_when_a_call_is_due() -> None:
    machine = VirtualArms(CONFIG, 512, VOCAB_SIZE, NominalCost()).machine("radix")
    machine.submit(0, tokens(10), 200, None, due=0.0)
    machine.step()
    machine.step()
    due = machine.now + 0.1
    stretch = machine.run_ahead(due)
    assert stretch is not None
    assert stretch.times[-2] < due <= stretch.times[-1] == machine.now


def test_a_made_up_reply_is_a_function_of_the_prompt() -> None:
    first, again, other = (made_up_reply(tokens(50, seed), 20, VOCAB_SIZE) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()
    assert first.min() >= 0
    assert first.max() < VOCAB_SIZE
