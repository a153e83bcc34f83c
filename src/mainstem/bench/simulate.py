"""Agents on a machine that is not here: the real scheduler and caches on a virtual clock, with a roofline's step cost.

Three questions are asked of each arm. How long does a turn wait when agents come one at a time? How long when they come
and go at a steady rate? And what does a task cost when the machine never rests? The answers stand beside figures that
are in circulation for this machine, model and kind of work; `differences` says in words where the two disagree, and
what the arithmetic allows.

It knows workloads, caches and costs, and no terminal.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mainstem.bench.cost import RooflineCost
from mainstem.bench.distinct import endless_cache
from mainstem.bench.drive import CallRecord, drive, require_fit
from mainstem.bench.machines import VirtualMachine
from mainstem.bench.run import make_cache
from mainstem.bench.workload import Workload
from mainstem.bench.workloads.agent import (
    REPLY,
    REPOSITORY,
    SYSTEM_PROMPT,
    TASK,
    TOOL_OUTPUT,
    TOOL_SCHEMAS,
    agent,
)
from mainstem.errors import ConfigError
from mainstem.scheduler import Scheduler

EARLY, LATE = 5, 10
SECONDS_PER_HOUR = 3600.0
# Every arm's pool has whole blocks of any usual size.
POOL_UNIT = 256
# Agents that come so rarely hardly ever meet.
LONE_AGENTS, LONE_RATE = 16, 1e-4
# A sweep begins with about as many.
FEWEST_AGENTS = 16


class Claim(NamedTuple):
    """What is said of one arm, for Llama 3.1 70B on 8 H100 and coding agents of 8 to 15 turns.

    Attributes:
        arm: its name.
        engine: which engine it is said of.
        early_ttft_s: at turn 5.
        late_ttft_s: at turn 10, where the context passes 18,000 tokens.
        reuse: share of memory, taken here as the share of prompt tokens, that was reused.
        task_cost: dollars for a task.
    """

    arm: str
    engine: str
    early_ttft_s: float
    late_ttft_s: float
    reuse: float
    task_cost: float


CLAIMED_MODEL, CLAIMED_HARDWARE = "llama-3.1-70b", "8xh100"
CLAIMS = (
    Claim("none", "vLLM without caching", 0.465, 1.280, 0.0, 0.048),
    Claim("block-hash", "vLLM, prefix caching", 0.068, 0.142, 0.764, 0.016),
    Claim("radix", "SGLang", 0.019, 0.031, 0.882, 0.010),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the machine is run and how its agents behave.

    Attributes:
        max_num_batched_tokens: most tokens a step.
        max_num_seqs: most requests running at once.
        utilization: share of the memory for weights and the KV pool.
        tool_wait_s: mean time between a reply and the next turn; exponential.
        seed: of tokens, lengths, arrivals and waits.
        price_per_hour: of the whole machine, in dollars.
    """

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    utilization: float = 0.9
    tool_wait_s: float = 2.0
    seed: int = 0
    price_per_hour: float = 0.0


class Waits(NamedTuple):
    """Times to the first token at one turn, in seconds."""

    median: float
    p99: float
    calls: int


class LoadResult(NamedTuple):
    """One arm under one load.

    Attributes:
        arm: its name.
        agents: how many there were, each with one task.
        waits: by turn.
        reuse: share of prompt tokens that were cached.
        ceiling: the same for an endless cache.
        amplification: tokens prefilled over tokens never seen before.
        evicted: tokens that were evicted to make room.
        preemptions: of requests, because memory ran out.
        seconds: from the first arrival to the last token.
        busy: share of it in which a step ran.
        task_cost: dollars for a task, the machine paid for from beginning to end.
    """

    arm: str
    agents: int
    waits: dict[int, Waits]
    reuse: float
    ceiling: float
    amplification: float
    evicted: int
    preemptions: int
    seconds: float
    busy: float
    task_cost: float


class ArmResult(NamedTuple):
    """One arm under three loads: agents one at a time, a steady stream of them, and all at once."""

    arm: str
    alone: LoadResult
    steady: LoadResult
    full: LoadResult


OnEnd = Callable[[str, int, int], None]
"""Told what is being run, and how many of how many calls have ended."""


def nobody(stage: str, done: int, total: int) -> None:
    """Tells nobody."""


def agents_at(cost: RooflineCost, setting: Setting, agents: int, rate: float) -> Workload:
    """Coding agents at full scale that come at random times.

    Args:
        cost: of the model.
        setting: how they behave.
        agents: how many.
        rate: arrivals a second, independent of each other (Poisson); infinite for all at once.
    """
    if agents < 1 or not rate > 0:
        raise ConfigError(f"there must be agents, and they must come at some rate; got {agents} at {rate:g} a second")
    workload = agent(scale=1.0, agents=agents, seed=setting.seed, vocab_size=cost.sizes.vocab_size)
    draw = np.random.default_rng([setting.seed, agents])
    gaps = np.zeros(agents) if math.isinf(rate) else draw.exponential(1 / rate, agents)
    arrivals = np.cumsum(gaps) - gaps[0]
    calls = tuple(
        replace(
            call,
            wait=float(arrivals[call.session] if call.after is None else draw.exponential(setting.tool_wait_s)),
        )
        for call in workload.calls
    )
    settings = workload.settings | {"rate": rate if math.isfinite(rate) else None, "tool_wait_s": setting.tool_wait_s}
    return Workload(name=workload.name, settings=settings, calls=calls, vocab_size=workload.vocab_size)


def simulate_load(
    arm: str, workload: Workload, cost: RooflineCost, setting: Setting, on_end: OnEnd = nobody
) -> LoadResult:
    """Run one arm under one load.

    Raises:
        ConfigError: when the model does not fit the machine, or the longest call does not fit its pool.
    """
    capacity = cost.pool_tokens(setting.utilization)
    capacity -= capacity % POOL_UNIT
    if capacity < POOL_UNIT:
        raise ConfigError(f"{cost.sizes.name} leaves no room for a KV pool on {cost.hardware.name}")
    scheduler = Scheduler(
        make_cache(arm, capacity),
        max_num_batched_tokens=setting.max_num_batched_tokens,
        max_num_seqs=setting.max_num_seqs,
        max_model_len=cost.sizes.max_position,
    )
    require_fit(workload, scheduler.max_model_len)
    ended = 0

    def count(_: int) -> None:
        nonlocal ended
        ended += 1
        on_end(f"{arm}, {workload.num_sessions} agents", ended, len(workload.calls))

    machine = VirtualMachine(scheduler, vocab_size=workload.vocab_size, step_seconds=cost)
    records = drive(workload, machine, count, watch_memory=False).records
    return _load_result(arm, workload, records, machine, setting.price_per_hour)


def _load_result(
    arm: str, workload: Workload, records: Sequence[CallRecord], machine: VirtualMachine, price_per_hour: float
) -> LoadResult:
    seconds = machine.now
    prompt = sum(record.prompt_tokens for record in records)
    new = int(endless_cache(workload, [record.reply for record in records]).new.sum())
    return LoadResult(
        arm=arm,
        agents=workload.num_sessions,
        waits=_waits(workload, records),
        reuse=sum(record.cached_tokens for record in records) / prompt,
        ceiling=1 - new / prompt,
        amplification=sum(record.prefilled_tokens for record in records) / new,
        evicted=machine.scheduler.cache.stats().evicted,
        preemptions=sum(record.preemptions for record in records),
        seconds=seconds,
        busy=machine.busy_s / seconds,
        task_cost=price_per_hour / SECONDS_PER_HOUR * seconds / workload.num_sessions,
    )


def _waits(workload: Workload, records: Sequence[CallRecord]) -> dict[int, Waits]:
    by_turn: dict[int, list[float]] = defaultdict(list)
    for call, record in zip(workload.calls, records, strict=True):
        by_turn[call.turn].append(record.ttft)
    return {
        turn: Waits(float(np.median(seconds)), float(np.percentile(seconds, 99)), len(seconds))
        for turn, seconds in sorted(by_turn.items())
    }


def simulate_arms(
    arms: Sequence[str],
    cost: RooflineCost,
    setting: Setting,
    *,
    agents: int = 64,
    rate: float = 0.05,
    on_end: OnEnd = nobody,
) -> list[ArmResult]:
    """Run each arm under the three loads.

    Args:
        arms: names of caches.
        cost: of the model on the machine.
        setting: how it is run.
        agents: in the steady stream, and all at once.
        rate: of the steady stream, agents a second.
        on_end: told of progress.
    """
    kinds = ((LONE_AGENTS, LONE_RATE), (agents, rate), (agents, math.inf))
    loads = [agents_at(cost, setting, count, speed) for count, speed in kinds]
    return [
        ArmResult(arm, *(simulate_load(arm, workload, cost, setting, on_end) for workload in loads)) for arm in arms
    ]


def sweep(
    arms: Sequence[str],
    cost: RooflineCost,
    setting: Setting,
    *,
    most_agents: int,
    rate: float,
    fewest: int = FEWEST_AGENTS,
    on_end: OnEnd = nobody,
) -> Iterator[LoadResult]:
    """Run each arm with more and more agents, to see where the pool no longer holds them.

    Args:
        arms: names of caches.
        cost: of the model on the machine.
        setting: how it is run.
        most_agents: in the last run; half as many in the one before it, and so on.
        rate: at which they come, agents a second.
        fewest: the first run has at least so many, if the last has.
        on_end: told of progress.
    """
    counts = [most_agents]
    while counts[0] >= 2 * fewest:
        counts.insert(0, counts[0] // 2)
    for count in counts:
        workload = agents_at(cost, setting, count, rate)
        for arm in arms:
            yield simulate_load(arm, workload, cost, setting, on_end)


# -- what the arithmetic allows ---------------------------------------------------------------------------------------


class TurnSize(NamedTuple):
    """A turn of an agent of average lengths: tokens that an endless tree has cached, and tokens that are new."""

    cached: int
    new: int


class Floor(NamedTuple):
    """How soon a turn's first token can come, in seconds.

    Attributes:
        peak: at the data sheet's figures, with free links and no overhead.
        modelled: at the stated efficiencies, for one agent alone.
        uncached: the same with nothing cached.
    """

    turn: int
    size: TurnSize
    peak: float
    modelled: float
    uncached: float


def turn_size(turn: int) -> TurnSize:
    """What a turn computes at least: its tool output, and the last token of the reply before, which has no KV."""
    tool_output, reply = sum(TOOL_OUTPUT) // 2, sum(REPLY) // 2
    prompt = SYSTEM_PROMPT + TOOL_SCHEMAS + REPOSITORY + TASK + (turn - 1) * (reply + tool_output)
    new = prompt if turn == 1 else tool_output + 1
    return TurnSize(prompt - new, new)


def floor_of(cost: RooflineCost, turn: int) -> Floor:
    """The floors of a turn, everything cached that can be."""
    size = turn_size(turn)
    modelled = float(cost.prefill(*size).total)
    return Floor(turn, size, cost.floor(*size), modelled, float(cost.prefill(0, sum(size)).total))


def differences(results: Sequence[ArmResult], cost: RooflineCost, block_size: int = 16) -> list[str]:
    """Where the claims and the simulation differ, in sentences that a reader can check with the printed figures."""
    by_arm = {result.arm: result for result in results}
    claims = {claim.arm: claim for claim in CLAIMS}
    early, late = floor_of(cost, EARLY), floor_of(cost, LATE)
    return [
        _of_floor(early, claims["radix"].early_ttft_s),
        _of_floor(late, claims["radix"].late_ttft_s),
        _of_blocks(cost, late, claims, block_size),
        _of_growth(early, late, claims["none"]),
        *_of_reuse(by_arm, claims, block_size),
        *_of_costs(by_arm, claims),
    ]


def _of_floor(floor: Floor, claimed: float) -> str:
    if claimed < floor.peak:
        verdict = "cannot be reached: it is below what the arithmetic alone takes at the peak"
    elif claimed < floor.modelled:
        verdict = "would need more of the peak than is assumed here, even for an agent that has the machine to itself"
    else:
        verdict = "is within reach of an agent that has the machine to itself"
    return (
        f"Turn {floor.turn}: {floor.size.new:,} new tokens over {floor.size.cached:,} cached ones take at least "
        f"{_ms(floor.peak)} at the machine's peak, and {_ms(floor.modelled)} at the stated efficiencies. "
        f"The claimed {_ms(claimed)} {verdict}."
    )


def _of_blocks(cost: RooflineCost, late: Floor, claims: Mapping[str, Claim], block_size: int) -> str:
    lost = block_size - 1
    worst = float(cost.prefill(late.size.cached - lost, late.size.new + lost).total)
    claimed = claims["block-hash"].late_ttft_s / claims["radix"].late_ttft_s
    return (
        f"Tree against block hashes: at turn {late.turn}, blocks of {block_size} cost at most {lost} more tokens, "
        f"{_ms(worst)} instead of {_ms(late.modelled)}, which is {worst / late.modelled - 1:.1%} more. "
        f"That the claimed time is {claimed:.1f} times as long cannot come from the size of blocks."
    )


def _of_growth(early: Floor, late: Floor, claim: Claim) -> str:
    first, second = sum(early.size), sum(late.size)
    longer, slower = second / first, late.uncached / early.uncached
    return (
        f"No cache: from turn {early.turn} to turn {late.turn} the prompt grows from {first:,} to {second:,} tokens, "
        f"{longer:.2f} times, and its time {slower:.2f} times; were all of it attention, {longer**2:.2f} times. "
        f"The claimed times grow {claim.late_ttft_s / claim.early_ttft_s:.2f} times: there is something else in them, "
        "such as waiting for others."
    )


def _of_reuse(by_arm: Mapping[str, ArmResult], claims: Mapping[str, Claim], block_size: int) -> list[str]:
    if not {"radix", "block-hash"} <= by_arm.keys():
        return []
    radix, blocks = by_arm["radix"].steady, by_arm["block-hash"].steady
    return [
        f"Reuse: {radix.reuse:.2%} of the prompts' tokens were cached for the tree and {blocks.reuse:.2%} for block "
        f"hashes, of {radix.ceiling:.2%} that could be. The claimed {claims['radix'].reuse:.1%} and "
        f"{claims['block-hash'].reuse:.1%} are further apart than blocks of {block_size} tokens explain; "
        "a pool that is too small, or agents that share less, lower both alike."
    ]


def _of_costs(by_arm: Mapping[str, ArmResult], claims: Mapping[str, Claim]) -> list[str]:
    if "none" not in by_arm or len(by_arm) == 1 or not by_arm["none"].full.task_cost:
        return []
    base, claimed = by_arm["none"].full.task_cost, claims["none"].task_cost
    saved = ", ".join(
        f"{arm} {1 - result.full.task_cost / base:.0%} (claimed {1 - claims[arm].task_cost / claimed:.0%})"
        for arm, result in by_arm.items()
        if arm != "none"
    )
    return [
        f"Cost of a task while the machine never rests, saved: {saved}. No cache saves decoding, which is most of what "
        "is left; the dollars follow from the price, the shares do not."
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
