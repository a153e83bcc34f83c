"""What a benchmark says: figures of every arm and turn, as plain data and as JSON. docs/benchmarks.md defines them.

A measured figure is taken once in every repeat; what is reported is the median of these, their range and their number.
Counts of tokens are the same in every repeat of the same run, and are given as means of a call or as sums.
It knows records of calls, and neither machines nor how anything is drawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from mainstem.bench.distinct import EndlessCache, endless_cache
from mainstem.bench.drive import CallRecord
from mainstem.bench.limits import Limits, ModelCost
from mainstem.bench.run import ArmRun, Difference, first_difference
from mainstem.bench.workload import Workload


class Figure(NamedTuple):
    """A measured figure: the median over the repeats, their range, how many there were."""

    median: float
    min: float
    max: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Sum up one value of each repeat."""
        return cls(median(values), min(values), max(values), len(values))


class Latency(NamedTuple):
    """Seconds, over the calls of a repeat: their median and 99th percentile (of few calls: almost the longest)."""

    median: Figure
    p99: Figure


class Counts(NamedTuple):
    """Tokens of some calls, in sum.

    Attributes:
        calls: how many.
        prompt: in prompts.
        cached: of these, from the cache.
        prefilled: computed to get the replies begun, again after a preemption included.
        new: of the prompts', those that no earlier call had put through the model.
        generated: in replies.
        preemptions: how often a call had to give way.
    """

    calls: int
    prompt: int
    cached: float
    prefilled: float
    new: int
    generated: int
    preemptions: float

    @property
    def amplification(self) -> float:
        """Tokens prefilled for each new one; 1 is the least."""
        return self.prefilled / self.new

    @property
    def hit_ratio(self) -> float:
        """Share of the prompts that came from the cache."""
        return self.cached / self.prompt

    @property
    def hit_ceiling(self) -> float:
        """The share that would have come from an endless cache."""
        return 1 - self.new / self.prompt


class Times(NamedTuple):
    """What the calls of one turn, or of all, took.

    Attributes:
        ttft: from sending to the first token.
        itl: between two tokens of a reply; None where no reply has two.
        prefill_rate: tokens prefilled for a call over its time to the first token, its median over the calls.
        floor: the least that computing what the cache did not have when a call was sent could have taken, in seconds;
            its median over the calls.
        over_floor: time to the first token over that floor, median over the calls.
        over_ideal_floor: the same over the floor of the new tokens alone, which is what a perfect cache leaves to do.
    """

    ttft: Latency
    itl: Latency | None
    prefill_rate: Figure
    floor: Figure | None
    over_floor: Figure | None
    over_ideal_floor: Figure | None


class Memory(NamedTuple):
    """The KV pool while calls ran, in tokens; means are over steps.

    Attributes:
        peak_in_use: most slots that running calls held, reserved ones included.
        mean_in_use: their mean.
        peak_used: most slots that were not free, cached ones included.
        sharing_mean: tokens that the running calls refer to over tokens that are there for them; sums over steps.
        sharing_peak: the largest that this was after any step.
        sharing_ceiling: `sharing_mean` if no token had been there twice.
        slots_per_distinct: slots that running calls held for each different token of theirs; 1 is the least.
        bytes_per_distinct: the same in bytes of KV; None without a model.
    """

    peak_in_use: int
    mean_in_use: float
    peak_used: int
    sharing_mean: float
    sharing_peak: float
    sharing_ceiling: float
    slots_per_distinct: float
    bytes_per_distinct: float | None


class Rates(NamedTuple):
    """A whole run.

    Attributes:
        seconds: from the first call to the last token.
        generated_rate: tokens of replies a second.
        prompt_rate: tokens of prompts a second, cached ones included.
        prefilled_rate: tokens prefilled a second.
        other_cpu_share: CPU time of the engine outside the model over the time of its steps.
        cost_per_task: price of the machine for the run, divided by the sessions; None without a price.
    """

    seconds: Figure
    generated_rate: Figure
    prompt_rate: Figure
    prefilled_rate: Figure
    other_cpu_share: Figure | None
    cost_per_task: Figure | None


class TurnReport(NamedTuple):
    """One turn of all sessions. Memory is that of the steps from which its calls got their first tokens.

    What could not be seen or was not timed is None.
    """

    turn: int
    counts: Counts
    memory: Memory | None
    times: Times | None


class ArmReport(NamedTuple):
    """One arm. What could not be seen or was not timed is None."""

    arm: str
    counts: Counts
    memory: Memory | None
    times: Times | None
    rates: Rates | None
    turns: list[TurnReport]


class Report(NamedTuple):
    """A benchmark's result.

    Attributes:
        arms: in the order in which they were asked for.
        repeats: how often each was run.
        endless: what a cache without limits would do.
        difference: the first call that did not get the same reply from all arms; None if there is none.
    """

    workload: Workload
    arms: list[ArmReport]
    repeats: int
    endless: EndlessCache
    difference: Difference | None


class Pricing(NamedTuple):
    """What a machine costs, in dollars an hour."""

    per_hour: float

    def cost(self, seconds: float) -> float:
        """Dollars for some time of it."""
        return self.per_hour * seconds / 3600


def make_report(
    workload: Workload,
    runs: Sequence[ArmRun],
    *,
    timed: bool = True,
    cost: ModelCost | None = None,
    limits: Limits | None = None,
    pricing: Pricing | None = None,
) -> Report:
    """Sum up runs of one workload.

    Args:
        workload: that was run.
        runs: of every arm, equally many each.
        timed: whether their times mean anything; they do not on a nominal clock.
        cost: of the model that ran.
        limits: of the machine; with `cost`, times are compared with their floors.
        pricing: of the machine.
    """
    endless = endless_cache(workload, [record.reply for record in runs[0].records])
    by_arm: dict[str, list[ArmRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.repeat):
        by_arm[run.arm].append(run)
    order = list(dict.fromkeys(run.arm for run in runs if run.repeat == 0))
    maker = _Maker(workload, endless, timed, cost, limits, pricing)
    return Report(
        workload=workload,
        arms=[maker.arm(by_arm[arm]) for arm in order],
        repeats=max(map(len, by_arm.values())),
        endless=endless,
        difference=first_difference(runs),
    )


class _Maker:
    """What all figures of one report are made of."""

    def __init__(
        self,
        workload: Workload,
        endless: EndlessCache,
        timed: bool,
        cost: ModelCost | None,
        limits: Limits | None,
        pricing: Pricing | None,
    ) -> None:
        self._workload = workload
        self._new = endless.new
        self._timed = timed
        self._cost = cost
        self._limits = limits
        self._pricing = pricing

    def arm(self, runs: Sequence[ArmRun]) -> ArmReport:
        calls = self._workload.calls
        return ArmReport(
            arm=runs[0].arm,
            counts=self._counts(runs, range(len(calls))),
            memory=self._memory(runs, None),
            times=self._times(runs, range(len(calls))),
            rates=self._rates(runs),
            turns=[
                TurnReport(turn, self._counts(runs, members), self._memory(runs, members), self._times(runs, members))
                for turn, members in _by_turn(self._workload).items()
            ],
        )

    def _counts(self, runs: Sequence[ArmRun], members: Iterable[int]) -> Counts:
        members = list(members)

        def total(value: Callable[[CallRecord], int]) -> float:
            return mean(sum(value(run.records[index]) for index in members) for run in runs)

        return Counts(
            calls=len(members),
            prompt=sum(self._workload.prompt_lengths[index] for index in members),
            cached=total(lambda record: record.cached_tokens),
            prefilled=total(lambda record: record.prefilled_tokens),
            new=int(sum(self._new[index] for index in members)),
            generated=sum(self._workload.calls[index].reply_tokens for index in members),
            preemptions=total(lambda record: record.preemptions),
        )

    def _times(self, runs: Sequence[ArmRun], members: Iterable[int]) -> Times | None:
        if not self._timed:
            return None
        per_repeat = [[run.records[index] for index in members] for run in runs]
        gaps = [np.concatenate([record.gaps for record in records]) for records in per_repeat]

        def typical(value: Callable[[CallRecord], float]) -> Figure:
            return Figure.of([median(map(value, records)) for records in per_repeat])

        has_floor = self._cost is not None and self._limits is not None
        return Times(
            ttft=_latency([[record.ttft for record in records] for records in per_repeat]),
            itl=_latency(gaps) if all(map(len, gaps)) else None,
            prefill_rate=typical(lambda record: record.prefilled_tokens / record.ttft),
            floor=typical(self._floor) if has_floor else None,
            over_floor=typical(lambda record: record.ttft / self._floor(record)) if has_floor else None,
            over_ideal_floor=typical(lambda record: record.ttft / self._ideal_floor(record)) if has_floor else None,
        )

    def _floor(self, record: CallRecord) -> float:
        return self._floor_of(record.prompt_tokens, record.prompt_tokens - record.found_tokens)

    def _ideal_floor(self, record: CallRecord) -> float:
        # The last token is computed even if nothing is new.
        return self._floor_of(record.prompt_tokens, max(int(self._new[record.call]), 1))

    def _floor_of(self, prompt: int, computed: int) -> float:
        assert self._cost is not None
        assert self._limits is not None
        return self._limits.ttft_floor(self._cost, prompt - computed, computed)

    def _memory(self, runs: Sequence[ArmRun], members: Sequence[int] | None) -> Memory | None:
        """Over the steps that gave the members their first tokens, or over all."""
        log = runs[0].memory
        if log is None:
            return None
        steps = slice(None) if members is None else [runs[0].records[index].first_step for index in members]
        used, in_use, resident, logical, distinct = (
            np.array(values, np.float64)[steps]
            for values in (log.used, log.in_use, log.resident, log.logical, log.distinct)
        )
        # After a step that ends every reply nothing is held.
        held = resident > 0
        if not held.any():
            return None
        slots_per_distinct = float(in_use.sum() / distinct.sum())
        return Memory(
            peak_in_use=int(in_use.max()),
            mean_in_use=float(in_use.mean()),
            peak_used=int(used.max()),
            sharing_mean=float(logical.sum() / resident.sum()),
            sharing_peak=float((logical[held] / resident[held]).max()),
            sharing_ceiling=float(logical.sum() / distinct.sum()),
            slots_per_distinct=slots_per_distinct,
            bytes_per_distinct=slots_per_distinct * self._cost.kv_bytes_per_token if self._cost else None,
        )

    def _rates(self, runs: Sequence[ArmRun]) -> Rates | None:
        if not self._timed:
            return None
        prompt = sum(self._workload.prompt_lengths)
        generated = sum(call.reply_tokens for call in self._workload.calls)
        shares = [run.times.other_cpu_s / run.times.step_s for run in runs if run.times is not None]
        pricing, sessions = self._pricing, self._workload.num_sessions
        return Rates(
            seconds=Figure.of([run.seconds for run in runs]),
            generated_rate=Figure.of([generated / run.seconds for run in runs]),
            prompt_rate=Figure.of([prompt / run.seconds for run in runs]),
            prefilled_rate=Figure.of([sum(r.prefilled_tokens for r in run.records) / run.seconds for run in runs]),
            other_cpu_share=Figure.of(shares) if shares else None,
            cost_per_task=Figure.of([pricing.cost(run.seconds) / sessions for run in runs]) if pricing else None,
        )


def _by_turn(workload: Workload) -> dict[int, list[int]]:
    members: dict[int, list[int]] = defaultdict(list)
    for index, call in enumerate(workload.calls):
        members[call.turn].append(index)
    return dict(sorted(members.items()))


def _latency(per_repeat: Sequence[Sequence[float] | np.ndarray[Any, Any]]) -> Latency:
    return Latency(
        Figure.of([float(np.median(values)) for values in per_repeat]),
        Figure.of([float(np.percentile(values, 99)) for values in per_repeat]),
    )


def as_json(report: Report) -> dict[str, Any]:
    """Every figure."""
    workload = report.workload
    return {
        "workload": {
            "name": workload.name,
            "settings": workload.settings,
            "calls": len(workload.calls),
            "sessions": workload.num_sessions,
            "prompt_tokens": sum(workload.prompt_lengths),
            "longest_prompt": max(workload.prompt_lengths),
            "new_tokens": int(report.endless.new.sum()),
            "hit_ceiling": report.endless.hit_ceiling(workload),
        },
        "repeats": report.repeats,
        "same_text": report.difference is None,
        "first_difference": None if report.difference is None else report.difference._asdict(),
        "arms": {arm.arm: _arm_json(arm) for arm in report.arms},
    }


def _arm_json(arm: ArmReport) -> dict[str, Any]:
    turns = [
        {
            "turn": turn.turn,
            "counts": _counts_json(turn.counts),
            "memory": _plain(turn.memory),
            "times": _plain(turn.times),
        }
        for turn in arm.turns
    ]
    return {
        "counts": _counts_json(arm.counts),
        "memory": _plain(arm.memory),
        "times": _plain(arm.times),
        "rates": _plain(arm.rates),
        "turns": turns,
    }


def _counts_json(counts: Counts) -> dict[str, Any]:
    return {
        **counts._asdict(),
        "amplification": counts.amplification,
        "hit_ratio": counts.hit_ratio,
        "hit_ceiling": counts.hit_ceiling,
    }


def _plain(value: Any) -> Any:
    """Named tuples as objects, all the way down."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return value
