"""Tests of the figures, on machines whose clock is known."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from mainstem.bench.distinct import endless_cache
from mainstem.bench.drive import CallRecord, MemoryLog
from mainstem.bench.limits import Limits, ModelCost
from mainstem.bench.machines import Holding, MemoryUse
from mainstem.bench.report import ArmReport, Figure, Pricing, Report, TurnReport, as_json, make_report
from mainstem.bench.run import ArmRun
from mainstem.bench.tables import notes, turns_table
from mainstem.bench.workload import Call, Workload
from tests.bench.support import tokens, workload

COST = ModelCost(num_active=1000, num_layers=1, query_width=1, weight_bytes=0, kv_bytes_per_token=8)
LIMITS = Limits(flops_per_s=2000.0, bytes_per_s=1e12)


def two_turns() -> Workload:
    """A prompt of 10 tokens and a reply of 3, then 5 more tokens: 6 of the second prompt's 18 are new."""
    first = Call(session=0, turn=1, after=None, extends=False, appended=tokens(10), reply_tokens=3)
    second = Call(session=0, turn=2, after=0, extends=True, appended=tokens(5, 1), reply_tokens=2)
    return workload([first, second])


def record(call: int, submitted: float, times: Sequence[float], prompt: int, cached: int) -> CallRecord:
    return CallRecord(
        call=call,
        submitted=submitted,
        token_times=np.array(times),
        reply=np.arange(len(times), dtype=np.int32),
        first_step=call,
        prompt_tokens=prompt,
        found_tokens=cached,
        cached_tokens=cached,
        prefilled_tokens=prompt - cached,
        preemptions=0,
    )


def runs() -> list[ArmRun]:
    """Two arms, twice each: one finds the first turn again, the other finds nothing and is slower."""
    log = MemoryLog()
    log.add(MemoryUse(used=12, in_use=12, unfilled=2, holdings=[Holding(0, 10)]), distinct=10)
    log.add(MemoryUse(used=30, in_use=20, unfilled=0, holdings=[Holding(0, 20), Holding(1, 20)]), distinct=16)
    return [
        ArmRun(
            arm,
            repeat,
            [
                record(0, 0.0, [10.0 * slower, 11.0 * slower, 13.0 * slower], 10, 0),
                record(1, 13.0 * slower, [13.0 * slower + wait, 14.0 * slower + wait], 18, cached),
            ],
            log,
        )
        for repeat, slower in enumerate((1.0, 2.0))
        for arm, cached, wait in (("radix", 12, 6.0), ("none", 0, 18.0))
    ]


@pytest.fixture
def report() -> Report:
    return make_report(two_turns(), runs(), cost=COST, limits=LIMITS, pricing=Pricing(36.0))


@pytest.fixture
def radix(report: Report) -> ArmReport:
    return report.arms[0]


def test_new_tokens_are_those_no_earlier_call_computed() -> None:
    endless = endless_cache(two_turns(), [np.zeros(3, np.int32), np.zeros(2, np.int32)])
    # The reply's last token was never put through the model.
    assert endless.new.tolist() == [10, 6]
    assert endless.distinct == 19
    assert endless.hit_ceiling(two_turns()) == pytest.approx(12 / 28)


def test_a_token_that_several_calls_need_is_new_once() -> None:
    head = tokens(20)
    calls = [
        Call(session=0, turn=1, after=None, extends=False, appended=np.append(head, last), reply_tokens=1)
        for last in np.array([1, 2, 2], np.int32)
    ]
    assert endless_cache(workload(calls), [np.zeros(1, np.int32)] * 3).new.tolist() == [21, 1, 0]


def test_amplification_and_hits_are_measured_against_the_endless_cache(report: Report) -> None:
    radix, none = report.arms
    assert radix.counts.amplification == 1.0
    assert none.counts.amplification == 28 / 16
    assert (radix.counts.hit_ratio, none.counts.hit_ratio) == (12 / 28, 0.0)
    assert radix.counts.hit_ceiling == none.counts.hit_ceiling == pytest.approx(12 / 28)


def test_turns_are_counted_apart(radix: ArmReport) -> None:
    assert [(turn.turn, turn.counts.prompt, turn.counts.prefilled) for turn in radix.turns] == [(1, 10, 10), (2, 18, 6)]


def test_a_figure_is_the_median_of_the_repeats_with_their_range(radix: ArmReport) -> None:
    times = radix.turns[0].times
    assert times is not None
    assert times.itl is not None
    assert times.ttft.median == Figure(15.0, 10.0, 20.0, 2)
    assert times.itl.median == Figure(2.25, 1.5, 3.0, 2)


def test_the_99th_percentile_is_near_the_longest(radix: ArmReport) -> None:
    assert radix.times is not None
    assert radix.times.ttft.p99.min == pytest.approx(6.0 + 0.99 * 4.0)


def test_a_time_is_compared_with_the_floor_of_what_was_not_cached(report: Report) -> None:
    radix, none = (arm.turns[1].times for arm in report.arms)
    assert radix is not None
    assert none is not None
    floor = COST.flops(12, 6) / LIMITS.flops_per_s
    assert radix.floor == Figure(floor, floor, floor, 2)
    assert radix.over_floor == radix.over_ideal_floor == Figure(6.0 / floor, 6.0 / floor, 6.0 / floor, 2)
    assert none.over_floor is not None
    assert none.over_ideal_floor is not None
    assert none.over_floor.median == 18.0 / (COST.flops(0, 18) / LIMITS.flops_per_s)
    assert none.over_ideal_floor.median == 18.0 / floor


def test_sharing_is_what_calls_refer_to_over_what_is_there(radix: ArmReport) -> None:
    memory = radix.memory
    assert memory is not None
    assert memory.sharing_mean == 50 / 30
    assert memory.sharing_peak == 2.0
    assert memory.sharing_ceiling == 50 / 26
    assert memory.slots_per_distinct == 32 / 26
    assert memory.bytes_per_distinct == 8 * 32 / 26
    assert (memory.peak_in_use, memory.mean_in_use, memory.peak_used) == (20, 16.0, 30)


def test_memory_of_a_turn_is_that_of_its_first_tokens(radix: ArmReport) -> None:
    memory = radix.turns[1].memory
    assert memory is not None
    assert (memory.sharing_mean, memory.peak_in_use) == (2.0, 20)


def test_a_task_costs_its_share_of_the_machine(radix: ArmReport) -> None:
    rates = radix.rates
    assert rates is not None
    assert rates.seconds == Figure(27.0, 20.0, 34.0, 2)
    # 36 dollars an hour are a cent a second.
    assert rates.cost_per_task == pytest.approx((0.27, 0.20, 0.34, 2))
    assert rates.generated_rate.max == 5 / 20


def test_without_times_and_a_model_there_are_counts() -> None:
    report = make_report(two_turns(), [run._replace(memory=None) for run in runs()], timed=False)
    for arm in report.arms:
        assert (arm.times, arm.rates, arm.memory) == (None, None, None)
        assert arm.counts.new == 16


def test_the_result_is_json(report: Report) -> None:
    document = json.loads(json.dumps(as_json(report)))
    assert document["repeats"] == 2
    assert document["same_text"] is True
    assert document["workload"]["new_tokens"] == 16
    turn = document["arms"]["none"]["turns"][1]
    assert turn["counts"]["amplification"] == 3.0
    assert turn["times"]["ttft"]["median"] == {"median": 18.0, "min": 18.0, "max": 18.0, "repeats": 2}


def test_a_different_reply_is_found(report: Report) -> None:
    changed = runs()
    other = changed[2].records[1]
    changed[2] = changed[2]._replace(records=[changed[2].records[0], other._replace(reply=np.array([0, 9], np.int32))])
    assert report.difference is None
    found = make_report(two_turns(), changed).difference
    assert found is not None
    assert (found.call, found.token, found.other_arm, found.other_repeat) == (1, 1, "radix", 1)


@pytest.mark.parametrize(("over", "busy"), [(0.9, True), (1.1, False)])
def test_a_time_below_its_floor_is_called_a_busy_machine(report: Report, over: float, busy: bool) -> None:
    def with_floor(turn: TurnReport) -> TurnReport:
        assert turn.times is not None
        return turn._replace(times=turn.times._replace(over_floor=Figure(over, over, over, 3)))

    arms = [arm._replace(turns=[with_floor(turn) for turn in arm.turns]) for arm in report.arms]
    assert any("busy" in note for note in notes(report._replace(arms=arms))) == busy


def test_one_run_is_called_one(report: Report) -> None:
    assert not any("ran once" in note for note in notes(report))
    assert any("ran once" in note for note in notes(report._replace(repeats=1)))


def test_a_narrow_terminal_gets_no_floors_and_a_table_that_fits(report: Report) -> None:
    wide, narrow = turns_table(report), turns_table(report, 80)
    assert len(wide.columns) - len(narrow.columns) == len(report.arms)
