"""Tests that steps taken at once are steps taken one by one, whatever is asked for."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.bench.cost import RooflineCost
from mainstem.bench.drive import CallRecord, drive
from mainstem.bench.hardware import GPU_EFFICIENCY, hardware
from mainstem.bench.machines import NominalCost, VirtualMachine
from mainstem.bench.run import ARMS, make_cache
from mainstem.bench.shapes import model_sizes
from mainstem.bench.workload import Call, Workload
from mainstem.scheduler import Scheduler
from tests.bench.support import VOCAB_SIZE, small_workloads, tokens, workload

NOMINAL = NominalCost()
ROOFLINE = RooflineCost(model_sizes("llama-3.1-8b"), hardware("2xh100"), GPU_EFFICIENCY)
# (appended tokens, reply tokens, whether it extends the call before, seconds of waiting)
TURN = st.tuples(st.integers(1, 40), st.integers(1, 90), st.booleans(), st.sampled_from([0.0, 0.05, 1.7]))


def machines(arm: str, capacity: int, seqs: int, cost: NominalCost | RooflineCost) -> list[VirtualMachine]:
    """One that takes steps at once, and one that cannot."""
    return [
        VirtualMachine(
            Scheduler(
                make_cache(arm, capacity), max_num_batched_tokens=24, max_num_seqs=seqs, max_model_len=capacity + 1
            ),
            vocab_size=VOCAB_SIZE,
            step_seconds=step_seconds,
        )
        for step_seconds in (cost, lambda output: cost(output))
    ]


def calls_of(turns: list[tuple[int, int, bool, float]]) -> Workload:
    calls: list[Call] = []
    length = 0
    for index, (appended, reply, extends, wait) in enumerate(turns):
        goes_on = extends and index > 0 and length < 400
        length = (length if goes_on else 0) + appended + reply
        calls.append(
            Call(
                session=0,
                turn=index + 1,
                after=index - 1 if goes_on else None,
                extends=goes_on,
                appended=tokens(appended, index % 3),
                reply_tokens=reply,
                wait=wait,
            )
        )
    return workload(calls)


def plain(record: CallRecord) -> CallRecord:
    """Without what cannot be compared at once."""
    return record._replace(token_times=np.empty(0), reply=np.empty(0, np.int32))


@settings(max_examples=50)
@given(
    turns=st.lists(TURN, min_size=1, max_size=12),
    arm=st.sampled_from(ARMS),
    seqs=st.integers(1, 4),
    blocks=st.integers(48, 120),
)
def test_any_calls_in_any_pool(turns: list[tuple[int, int, bool, float]], arm: str, seqs: int, blocks: int) -> None:
    made = calls_of(turns)
    at_once, one_by_one = machines(arm, 16 * blocks, seqs, NOMINAL)
    found, expected = drive(made, at_once), drive(made, one_by_one)
    for record, other in zip(found.records, expected.records, strict=True):
        assert record.token_times.tolist() == other.token_times.tolist()
        assert record.reply.tolist() == other.reply.tolist()
        assert str(plain(record)) == str(plain(other))
    assert (found.steps, found.memory) == (expected.steps, expected.memory)
    assert at_once.scheduler.cache.stats() == one_by_one.scheduler.cache.stats()
    assert at_once.busy_s == one_by_one.busy_s or abs(at_once.busy_s - one_by_one.busy_s) < 1e-9
    at_once.scheduler.check_integrity()


def test_a_rooflines_steps_at_once_take_as_long_as_one_by_one() -> None:
    made = small_workloads()["agent"]
    at_once, one_by_one = machines("radix", 8192, 4, ROOFLINE)
    for record, other in zip(drive(made, at_once).records, drive(made, one_by_one).records, strict=True):
        np.testing.assert_allclose(record.token_times, other.token_times, rtol=1e-9)
        assert record.cached_tokens == other.cached_tokens


def test_memory_that_is_not_watched_changes_nothing_else() -> None:
    made = small_workloads()["chat"]
    watched, unwatched = (
        drive(made, machines("radix", 4096, 4, NOMINAL)[0], watch_memory=watch) for watch in (True, False)
    )
    assert [plain(record)._asdict().keys() for record in watched.records]
    assert list(map(str, map(plain, watched.records))) == list(map(str, map(plain, unwatched.records)))
    assert len(watched.memory.used) == watched.steps
    assert len(unwatched.memory.used) == 0
