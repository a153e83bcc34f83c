"""One tenant floods a server, another asks now and then: how long its requests wait, and what choosing costs.

No model runs. `flood` and `at_once` are on the virtual clock of `bench_schedule`, where a step takes 20 ms and each of
its tokens 1 ms, so their figures are the same everywhere. `decisions` times the real scheduler with 10,000 requests
queued, of one tenant and of many.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.bench_schedule import BUDGET, NO_LIMIT, decisions
from benchmarks.measuring import keep
from mainstem.params import SamplingParams
from mainstem.scheduler import Request, Scheduler
from mainstem.tree import RadixCache

FLOOD, SMALL = ("tenant", "flood"), ("tenant", "small")
STEP_S, TOKEN_S = 0.020, 0.001
SEATS = 16
ASKED, PAUSE_S = 20, 5.0


class Flood(NamedTuple):
    """What one tenant sends at once: so many requests, of this many tokens; and the length of the other's prompts."""

    requests: int
    shortest: int
    longest: int
    asked: int
    pool: int


FLOODS = [Flood(requests, 500, 2500, 500, 20_000) for requests in (50, 200, 800)]
LONG_PROMPTS = Flood(40, 8000, 8001, 100, 200_000)


def flood(schedule: str, sent: Flood, *, by_tenant: bool) -> dict[str, Any]:
    """Requests of one tenant at once, and of another 20 one after the other, each 5 s after the one before."""
    rng = np.random.default_rng(0)
    scheduler = Scheduler(
        RadixCache(sent.pool, by_tenant=by_tenant),
        max_num_batched_tokens=BUDGET,
        max_num_seqs=SEATS,
        max_model_len=NO_LIMIT,
        schedule=schedule,
        cache_reserve=0.2,
        by_tenant=by_tenant,
    )

    def ask(name: str, prompt: int, reply: int, namespace: tuple[str, str]) -> Request:
        tokens = rng.integers(100, 32_000, prompt).astype(np.int32)
        request = Request(name, tokens, SamplingParams(), max_tokens=reply, namespace=namespace)
        scheduler.add(request)
        return request

    for i in range(sent.requests):
        ask(f"f{i}", int(rng.integers(sent.shortest, sent.longest)), int(rng.integers(100, 300)), FLOOD)
    now = flood_done = 0.0
    due, asked, steps = 1.0, 0, 0
    current: Request | None = None
    began, began_step = 0.0, 0
    waits: list[float] = []
    wait_steps: list[int] = []
    while scheduler.has_work() or asked < ASKED:
        if current is None and asked < ASKED and (now >= due or not scheduler.has_work()):
            now = max(now, due)
            current, began, began_step = ask(f"s{asked}", sent.asked, 50, SMALL), now, steps
            asked += 1
        output = scheduler.schedule()
        now += STEP_S + TOKEN_S * sum(stop - start for _, start, stop in output.scheduled)
        steps += 1
        scheduler.commit(output)
        for request, _, _ in output.sources:
            request.tokens.append(100)
            if request is current and request.num_generated == 1:
                waits.append(now - began)
                wait_steps.append(steps - began_step)
            if request.num_generated >= request.max_tokens:
                scheduler.finish(request)
                if request is current:
                    current, due = None, now + PAUSE_S
                elif request.namespace == FLOOD:
                    flood_done = now
    return {
        "schedule": schedule,
        "by tenant": by_tenant,
        "flood": sent.requests,
        "prompts of the flood": [sent.shortest, sent.longest - 1],
        "prompts of the other": sent.asked,
        "wait s": _spread(waits),
        "wait steps": _spread(wait_steps),
        "flood done s": round(flood_done, 2),
        "preemptions": scheduler.counts.preemptions,
        "prefilled": scheduler.counts.prefilled_tokens,
    }


def at_once(tenants: int, length: int, *, by_tenant: bool) -> dict[str, Any]:
    """Each tenant sends one prompt of this length, all at the same moment: when they have their first tokens."""
    rng = np.random.default_rng(0)
    scheduler = Scheduler(
        RadixCache(2 * tenants * length, by_tenant=by_tenant),
        max_num_batched_tokens=BUDGET,
        max_num_seqs=SEATS,
        max_model_len=NO_LIMIT,
        by_tenant=by_tenant,
    )
    for i in range(tenants):
        tokens = rng.integers(100, 32_000, length).astype(np.int32)
        scheduler.add(Request(f"r{i}", tokens, SamplingParams(), max_tokens=1, namespace=("tenant", f"t{i}")))
    now, waits = 0.0, []
    while scheduler.has_work():
        output = scheduler.schedule()
        now += STEP_S + TOKEN_S * sum(stop - start for _, start, stop in output.scheduled)
        scheduler.commit(output)
        for request, _, _ in output.sources:
            scheduler.finish(request)
            waits.append(now)
    return {
        "tenants": tenants,
        "prompt": length,
        "by tenant": by_tenant,
        "mean wait s": round(float(np.mean(waits)), 2),
        "longest wait s": round(max(waits), 2),
    }


def _spread(values: list[Any]) -> dict[str, float]:
    return {"median": round(float(np.median(values)), 2), "max": round(float(max(values)), 2)}


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--queued", type=int, default=10_000, help="queued requests (default %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="timed steps (default %(default)s)")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"flood": [], "at once": [], "decisions": []}
    for schedule in ("fcfs", "lpm"):
        for by_tenant in (False, True):
            for sent in (*FLOODS, LONG_PROMPTS):
                case = flood(schedule, sent, by_tenant=by_tenant)
                figures["flood"].append(case)
                print(
                    f"{schedule:5} {'by tenant' if by_tenant else 'one queue'} flood of {sent.requests} (up to "
                    f"{sent.longest - 1:,} tokens): the other's prompt of {sent.asked} waits "
                    f"{case['wait s']['median']:.1f} s ({case['wait steps']['median']:.0f} steps), at most "
                    f"{case['wait s']['max']:.1f} s ({case['wait steps']['max']:.0f}); the flood is done after "
                    f"{case['flood done s']:.0f} s, {case['preemptions']} preemptions",
                    flush=True,
                )
    for tenants in (2, 4, 8, 16):
        for by_tenant in (False, True):
            case = at_once(tenants, 4000, by_tenant=by_tenant)
            figures["at once"].append(case)
            print(
                f"{tenants} prompts of 4,000 tokens at once, {'by tenant' if by_tenant else 'one after the other'}: "
                f"first tokens after {case['mean wait s']:.1f} s, the last after {case['longest wait s']:.1f} s",
                flush=True,
            )
    for schedule in ("fcfs", "lpm"):
        for tenants in (1, 2, 100, 1000):
            case = decisions(schedule, arguments.queued, arguments.steps, tenants)
            figures["decisions"].append(case)
            print(
                f"{schedule:5} {arguments.queued:,} queued by {tenants:,}: a choice {case['choice us']['p50']:.0f} us "
                f"(p99 {case['choice us']['p99']:.0f}), the queues' part {case['queue us a step']['p50']:.0f} "
                f"us (p99 {case['queue us a step']['p99']:.0f}), schedule() {case['schedule() us']['p50']:.0f} us "
                f"(p99 {case['schedule() us']['p99']:.0f})",
                flush=True,
            )
    keep(arguments.out, figures)


if __name__ == "__main__":
    main()
