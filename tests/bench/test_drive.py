"""Tests of the driver, on the cache alone: who is sent when, and what is recorded."""

from __future__ import annotations

import numpy as np
import pytest

from mainstem.bench.drive import drive, require_fit
from mainstem.bench.machines import num_scheduled
from mainstem.bench.workload import Call
from mainstem.errors import ConfigError
from tests.bench.support import tokens, virtual, workload


def test_a_turn_extends_the_reply_before_it() -> None:
    first = Call(session=0, turn=1, after=None, extends=False, appended=tokens(50), reply_tokens=4)
    second = Call(session=0, turn=2, after=0, extends=True, appended=tokens(10, 1), reply_tokens=3)
    cold, warm = drive(workload([first, second]), virtual()).records
    assert (cold.prompt_tokens, cold.cached_tokens, cold.prefilled_tokens) == (50, 0, 50)
    # All but the reply's last token, which was never put through the model.
    assert (warm.prompt_tokens, warm.cached_tokens, warm.prefilled_tokens) == (64, 53, 11)
    assert [len(cold.reply), len(warm.reply)] == [4, 3]


def test_without_a_cache_everything_is_computed() -> None:
    first = Call(session=0, turn=1, after=None, extends=False, appended=tokens(50), reply_tokens=4)
    second = Call(session=0, turn=2, after=0, extends=True, appended=tokens(10, 1), reply_tokens=3)
    records = drive(workload([first, second]), virtual("none")).records
    assert [record.prefilled_tokens for record in records] == [50, 64]


def test_a_recorded_reply_is_taken() -> None:
    recorded = tokens(6, 9)
    call = Call(session=0, turn=1, after=None, extends=False, appended=tokens(5), reply_tokens=6, reply=recorded)
    assert np.array_equal(drive(workload([call]), virtual()).records[0].reply, recorded)


def test_equal_prompts_get_equal_replies() -> None:
    calls = [
        Call(session=session, turn=1, after=None, extends=False, appended=tokens(20, seed), reply_tokens=8)
        for session, seed in enumerate((0, 0, 1))
    ]
    replies = [record.reply.tolist() for record in drive(workload(calls), virtual()).records]
    assert replies[0] == replies[1] != replies[2]


def test_times_are_those_of_the_virtual_clock() -> None:
    machine = virtual(budget=32, step_seconds=lambda output: 0.5 + num_scheduled(output))
    call = Call(session=0, turn=1, after=None, extends=False, appended=tokens(40), reply_tokens=3, wait=2.0)
    (record,) = drive(workload([call]), machine).records
    assert record.submitted == 2.0
    assert record.ttft == (0.5 + 32) + (0.5 + 8)
    assert record.gaps.tolist() == [1.5, 1.5]


def test_a_call_waits_until_it_is_due() -> None:
    first = Call(session=0, turn=1, after=None, extends=False, appended=tokens(8), reply_tokens=2)
    later = Call(session=0, turn=2, after=0, extends=True, appended=tokens(8, 1), reply_tokens=2, wait=60.0)
    records = drive(workload([first, later]), virtual()).records
    assert records[1].submitted == pytest.approx(records[0].finished + 60.0)


def test_calls_due_together_share_what_one_of_them_computes() -> None:
    head = tokens(100)
    calls = [
        Call(
            session=session,
            turn=1,
            after=None,
            extends=False,
            appended=np.concatenate([head, tokens(9, session + 1)]),
            reply_tokens=20,
        )
        for session in range(3)
    ]
    result = drive(workload(calls), virtual())
    assert [record.cached_tokens for record in result.records] == [0, 100, 100]
    assert max(result.memory.logical) > 3 * 109
    assert max(result.memory.distinct) == max(result.memory.resident) == 100 + 3 * (9 + 18)


def test_memory_without_a_cache_is_one_copy_each() -> None:
    head = tokens(100)
    calls = [
        Call(session=session, turn=1, after=None, extends=False, appended=head, reply_tokens=20) for session in range(3)
    ]
    memory = drive(workload(calls), virtual("none")).memory
    assert list(memory.resident) == list(memory.logical)
    # Equal prompts have equal replies: one copy would do.
    assert max(memory.distinct) == 118


def test_a_workload_that_does_not_fit_is_refused_by_its_longest_call() -> None:
    first = Call(session=0, turn=1, after=None, extends=False, appended=tokens(90), reply_tokens=5)
    second = Call(session=0, turn=2, after=0, extends=True, appended=tokens(10), reply_tokens=5)
    require_fit(workload([first, second]), 110)
    with pytest.raises(ConfigError, match=r"turn 2 of session 0 takes 110 tokens .* room for 109"):
        require_fit(workload([first, second]), 109)
