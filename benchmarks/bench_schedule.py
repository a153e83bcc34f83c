"""The waiting queue: what a decision costs, what each order hits and whom it makes wait, and pools that are too small.

No model runs. `decisions` times the real scheduler over the real tree with 10,000 requests queued. The other parts run
on the virtual clock, where a step takes 20 ms and each of its tokens 1 ms, so their figures are the same everywhere:
`orders` asks all calls of a workload at once in a random order, in a pool that holds a part of what is distinct in
them, and compares each wait with the time at which all that came no later have a first token in order of arrival;
`concurrency` lets more and more agents work at the same time than the pool holds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.measuring import keep
from mainstem.bench.distinct import endless_cache
from mainstem.bench.drive import CallRecord, drive
from mainstem.bench.machines import Seconds, VirtualMachine, made_up_reply
from mainstem.bench.plots import save_picture
from mainstem.bench.workload import Call, Workload
from mainstem.bench.workloads.agent import agent
from mainstem.bench.workloads.branch import branch
from mainstem.bench.workloads.chat import chat
from mainstem.params import SamplingParams
from mainstem.scheduler import Request, Scheduler
from mainstem.tree import RadixCache, TokenArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VOCAB = 32_000
BUDGET, SEATS = 512, 16
FEW = 100  # queued, to compare with many
NO_LIMIT = 1_000_000
UNFAIR = float("inf")


# -- what a decision costs --------------------------------------------------------------------------------------------


class Timed:
    """Nanoseconds spent in some calls, in total since `reset`."""

    def __init__(self) -> None:
        self.total = 0
        self.each: list[int] = []

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, timed."""

        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter_ns()
            result = call(*arguments, **named)
            self.each.append(time.perf_counter_ns() - begin)
            self.total += self.each[-1]
            return result

        return timed


def decisions(schedule: str, queued: int, steps: int, tenants: int = 1) -> dict[str, Any]:
    """Microseconds of the queue's part of a step, and of whole steps, while the queue stays as long as it is.

    100 system prompts of 500 to 2,500 tokens, the most popular asked most; 20 to 300 tokens of each request's own, and
    20 to 60 of reply, in a pool of 60,000 slots: three admissions and five evictions in two steps. Several tenants ask
    for the same, and share nothing.
    """
    rng = np.random.default_rng(0)
    heads = [_tokens(rng, int(rng.integers(500, 2500))) for _ in range(100)]
    scheduler = Scheduler(
        RadixCache(60_000, by_tenant=True),
        max_num_batched_tokens=BUDGET,
        max_num_seqs=64,
        max_model_len=NO_LIMIT,
        schedule=schedule,
        by_tenant=True,
    )
    queue, choices, admissions = Timed(), Timed(), Timed()
    waiting = scheduler.waiting
    for name in ("add", "remove", "hide", "show_all", "charge", "released", "computed", "favour"):
        setattr(waiting, name, queue.wrap(getattr(waiting, name)))
    waiting.admitted = queue.wrap(admissions.wrap(waiting.admitted))  # type: ignore[method-assign]
    waiting.next = queue.wrap(choices.wrap(waiting.next))  # type: ignore[method-assign]
    assert isinstance(scheduler.cache, RadixCache)
    if scheduler.cache.wanted is not None:
        scheduler.cache.wanted = queue.wrap(scheduler.cache.wanted)
    # Of those who are told what leaves the tree, only the queue is timed.
    scheduler.cache.on_evict[:] = [
        queue.wrap(listener) if getattr(listener, "__self__", None) is waiting else listener
        for listener in scheduler.cache.on_evict
    ]

    def ask(number: int) -> None:
        head = heads[int(len(heads) * rng.random() ** 2)]
        prompt = np.concatenate([head, _tokens(rng, int(rng.integers(20, 300)))])
        most = int(rng.integers(20, 60))
        namespace = ("tenant", f"t{number % tenants}")
        scheduler.add(Request(f"r{number}", prompt, SamplingParams(), max_tokens=most, namespace=namespace))

    for number in range(queued):
        ask(number)
    asked, whole, parts, each = queued, [], [], []
    for _ in range(steps):
        queue.total = 0
        before = len(admissions.each)
        begin = time.perf_counter_ns()
        output = scheduler.schedule()
        whole.append(time.perf_counter_ns() - begin)
        scheduler.commit(output)
        for request, _, _ in output.sources:
            request.tokens.append(100)
            if request.num_generated >= request.max_tokens:
                scheduler.finish(request)
                ask(asked)
                asked += 1
        parts.append(queue.total)
        if len(admissions.each) > before:
            each.append(queue.total / (len(admissions.each) - before))
    return {
        "schedule": schedule,
        "tenants": tenants,
        "queued": queued,
        "steps": steps,
        "admitted": asked - queued,
        "evicted": scheduler.cache.stats().evicted,
        "choice us": _percentiles(choices.each),
        "queue us a step": _percentiles(parts),
        "queue us a step for each let in": _percentiles(each),
        "schedule() us": _percentiles(whole),
    }


def _tokens(rng: np.random.Generator, n: int) -> TokenArray:
    return rng.integers(100, VOCAB, n).astype(np.int32)


def _percentiles(nanoseconds: Sequence[float]) -> dict[str, float]:
    return {f"p{p}": round(float(np.percentile(nanoseconds, p)) / 1e3, 1) for p in (50, 99)}


# -- what an order hits, and whom it makes wait -----------------------------------------------------------------------


def at_once(workload: Workload, seed: int = 0) -> Workload:
    """All calls of a workload at the same moment, in a random order."""
    contexts: list[TokenArray] = []
    calls: list[Call] = []
    for call in workload.calls:
        prompt = call.appended
        if call.extends:
            assert call.after is not None
            prompt = np.concatenate([contexts[call.after], prompt])
        contexts.append(np.concatenate([prompt, made_up_reply(prompt, call.reply_tokens, VOCAB)]))
        calls.append(replace(call, after=None, extends=False, appended=prompt, wait=0.0))
    order = np.random.default_rng(seed).permutation(len(calls))
    return replace(workload, calls=tuple(calls[index] for index in order))


class Order(NamedTuple):
    """One way to let requests in; `lenience` as of `Fairness`."""

    schedule: str
    lenience: float

    @property
    def name(self) -> str:
        return self.schedule + (", unbounded" if self.lenience == UNFAIR else "")


ORDERS = (Order("fcfs", 1.0), Order("dfs", UNFAIR), Order("lpm", UNFAIR), Order("dfs", 1.0), Order("lpm", 1.0))


def orders(workload: Workload, share: float) -> list[dict[str, Any]]:
    """Every order over the same requests, in a pool for a share of their distinct tokens."""
    lengths = [n + call.reply_tokens for n, call in zip(workload.prompt_lengths, workload.calls, strict=True)]
    distinct = endless_cache(workload, [np.zeros(call.reply_tokens, np.int32) for call in workload.calls]).distinct
    pool = int(max(share * distinct, 1.5 * max(lengths)))
    cases: list[dict[str, Any]] = []
    waits: dict[str, Any] = {}
    for order in ORDERS:
        scheduler = Scheduler(
            RadixCache(pool),
            max_num_batched_tokens=BUDGET,
            max_num_seqs=SEATS,
            max_model_len=NO_LIMIT,
            schedule=order.schedule,
            lenience=order.lenience,
        )
        records = drive(workload, VirtualMachine(scheduler, vocab_size=VOCAB), watch_memory=False).records
        waits[order.name] = np.array([record.ttft for record in records])
        # In order of arrival, one that needs only what another computes may be carried along before its turn comes.
        over_fcfs = waits[order.name] / np.maximum.accumulate(waits["fcfs"])
        cases.append(
            {
                "workload": workload.name,
                "share of the distinct tokens": share,
                "pool": pool,
                "requests": len(records),
                "order": order.name,
                "hit ratio": _hits(workload, records),
                "prefilled": sum(record.prefilled_tokens for record in records),
                "mean wait s": float(waits[order.name].mean()),
                "wait over fcfs": {"p99": float(np.percentile(over_fcfs, 99)), "max": float(over_fcfs.max())},
                "waited more than twice as long": int((over_fcfs > 2).sum()),
            }
        )
    reference = next(case["hit ratio"] for case in cases if case["order"] == "dfs, unbounded")
    for case in cases:
        case["hit ratio over depth first"] = case["hit ratio"] / reference
    return cases


def _hits(workload: Workload, records: Sequence[CallRecord]) -> float:
    return sum(record.cached_tokens for record in records) / sum(workload.prompt_lengths)


# -- more agents than the pool holds ----------------------------------------------------------------------------------

HELD, TASKS, TOOL_WAIT_S = 8, 128, 1.0


def with_agents(workload: Workload, agents: int, pause_s: float, seed: int = 0) -> Workload:
    """So many agents at work at the same time, each on one session after the other, with a pause before each turn."""
    last = {call.session: index for index, call in enumerate(workload.calls)}
    rng = np.random.default_rng(seed)
    calls = []
    for call in workload.calls:
        after = call.after if call.turn > 1 else last.get(call.session - agents)
        wait = float(rng.exponential(pause_s)) if after is not None else 0.0
        calls.append(replace(call, after=after, wait=wait))
    return replace(workload, calls=tuple(calls))


def concurrency(times: int, schedule: str, *, anti_thrash: bool) -> dict[str, Any]:
    """So many times as many agents at once as the pool holds conversations of full length."""
    workload = with_agents(agent(agents=TASKS, vocab_size=VOCAB), times * HELD, TOOL_WAIT_S)
    ends: dict[int, int] = {}
    for call, length in zip(workload.calls, workload.prompt_lengths, strict=True):
        ends[call.session] = length + call.reply_tokens
    head = len(workload.calls[0].appended)
    pool = int(head + HELD * (np.mean(list(ends.values())) - head))
    scheduler = Scheduler(
        RadixCache(pool),
        max_num_batched_tokens=BUDGET,
        max_num_seqs=64,
        max_model_len=NO_LIMIT,
        schedule=schedule,
        anti_thrash=anti_thrash,
    )
    machine = VirtualMachine(scheduler, vocab_size=VOCAB)
    records = drive(workload, machine, watch_memory=False).records
    finished = np.array([record.finished for record in records])
    begin, end = _steady(workload, finished, times * HELD)
    return {
        "times what the pool holds": times,
        "agents": times * HELD,
        "pool": pool,
        "schedule": schedule,
        "anti-thrash": anti_thrash,
        "turns a second": len(records) / machine.now,
        "turns a second, all at work": int(((finished > begin) & (finished <= end)).sum()) / (end - begin),
        "hit ratio": _hits(workload, records),
        "prefilled": sum(record.prefilled_tokens for record in records),
        "median wait s": float(np.median([record.ttft for record in records])),
        "longest wait s": float(max(record.ttft for record in records)),
    }


def _steady(workload: Workload, finished: Seconds, agents: int) -> tuple[float, float]:
    """From the end of the first task to when the first agent has no task left."""
    ends: dict[int, float] = {}
    for call, at in zip(workload.calls, finished, strict=True):
        ends[call.session] = max(ends.get(call.session, 0.0), float(at))
    return min(ends.values()), min(max(ends[task] for task in range(a, TASKS, agents)) for a in range(agents))


def draw(cases: Sequence[dict[str, Any]], out: Path) -> None:
    """Turns a second against the number of agents, with the switch off and on."""

    def fill(axes: Axes) -> None:
        for anti_thrash, color in ((True, "tab:blue"), (False, "tab:orange")):
            for schedule, style in (("lpm", "-"), ("fcfs", "--")):
                points = [c for c in cases if c["schedule"] == schedule and c["anti-thrash"] == anti_thrash]
                axes.plot(
                    [point["times what the pool holds"] for point in points],
                    [point["turns a second"] for point in points],
                    color=color,
                    linestyle=style,
                    marker="o",
                    markersize=4,
                    label=f"{schedule}, anti-thrash {'on' if anti_thrash else 'off'}",
                )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}×")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("agents at once, over what the pool holds")
        axes.set_ylabel("turns a second")

    save_picture(out, "More agents than the pool holds", fill)


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file, and a picture beside it")
    parser.add_argument("--parts", default="decisions,orders,concurrency", help="which (default %(default)s)")
    parser.add_argument("--queued", type=int, default=10_000, help="queued requests (default %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="timed steps (default %(default)s)")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    figures: dict[str, Any] = {}
    if "decisions" in parts:
        figures["decisions"] = []
        for schedule, queued in (*((one, arguments.queued) for one in ("fcfs", "lpm", "dfs")), ("lpm", FEW)):
            case = decisions(schedule, queued, arguments.steps)
            figures["decisions"].append(case)
            print(
                f"{schedule:5} {case['queued']:,} queued: a choice {case['choice us']['p50']:.0f} us (p99 "
                f"{case['choice us']['p99']:.0f}), the queue's part of a step {case['queue us a step']['p50']:.0f} us "
                f"(p99 {case['queue us a step']['p99']:.0f}; for each "
                f"let in {case['queue us a step for each let in']['p50']:.0f}, p99 "
                f"{case['queue us a step for each let in']['p99']:.0f}), "
                f"schedule() {case['schedule() us']['p50']:.0f} us (p99 {case['schedule() us']['p99']:.0f})",
                flush=True,
            )
    if "orders" in parts:
        figures["orders"] = []
        for workload in (branch(trees=24, vocab_size=VOCAB), chat(sessions=200, vocab_size=VOCAB)):
            batch = at_once(workload)
            for share in (0.1, 0.3, 0.5):
                for case in orders(batch, share):
                    figures["orders"].append(case)
                    longer = case["wait over fcfs"]
                    print(
                        f"{case['workload']:6} pool {share:.0%} {case['order']:14} hit ratio {case['hit ratio']:.4f} "
                        f"({case['hit ratio over depth first']:.2%}) wait {case['mean wait s']:6.1f} s, over that of "
                        f"fcfs: p99 {longer['p99']:.2f}, max {longer['max']:.2f}",
                        flush=True,
                    )
    if "concurrency" in parts:
        figures["concurrency"] = []
        for schedule in ("lpm", "fcfs"):
            for anti_thrash in (False, True):
                for times in (1, 2, 4, 8):
                    case = concurrency(times, schedule, anti_thrash=anti_thrash)
                    figures["concurrency"].append(case)
                    switch = "on " if anti_thrash else "off"
                    print(
                        f"{schedule:5} anti-thrash {switch} {times}x {case['agents']:3} agents: "
                        f"{case['turns a second']:.3f} turns/s ({case['turns a second, all at work']:.3f} while all "
                        f"are at work), hit ratio {case['hit ratio']:.4f}, median wait "
                        f"{case['median wait s']:.2f} s, longest {case['longest wait s']:.0f} s",
                        flush=True,
                    )
        if arguments.out:
            draw(figures["concurrency"], arguments.out.with_suffix(""))
    keep(arguments.out, figures)


if __name__ == "__main__":
    main()
