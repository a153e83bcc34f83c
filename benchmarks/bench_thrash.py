"""More agents at work on the embedded model than its pool holds, with the anti-thrash switch off and on.

A real engine in this process, measured by the clock on the wall: each agent works on one task after the other, and
every turn brings its history and, after a pause, a tool's output. The pool holds three conversations of full length.
Only pauses in which nobody has anything to compute are skipped. `bench_schedule` asks the same of many more agents, on
a virtual clock.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_schedule import with_agents
from benchmarks.measuring import keep
from mainstem.bench.drive import drive
from mainstem.bench.machines import EngineMachine, ObservedScheduler
from mainstem.bench.workload import Call, Workload
from mainstem.bench.workloads.drawing import Drawing
from mainstem.config import EngineConfig
from mainstem.engine.build import build_engine
from mainstem.engine.core import EngineCore
from mainstem.tree import RadixCache

HELD = 3
TASKS, TURNS = 12, 5
HEAD, TASK, TOOL_OUTPUT, REPLY = 200, 40, (80, 120), 6
PAUSE_S = 0.3


class WallMachine(EngineMachine):
    """An engine on the wall's clock, but for pauses in which nothing runs."""

    def __init__(self, core: EngineCore) -> None:
        super().__init__(core)
        self._skipped = -time.perf_counter()
        core.scheduler.clock = lambda: self.now

    @property
    def now(self) -> float:
        return time.perf_counter() + self._skipped

    def wait_until(self, when: float) -> None:
        self._skipped += max(when - self.now, 0.0)


def conversations(vocab_size: int, seed: int = 0) -> Workload:
    """Tasks of some turns each, all with the same beginning."""
    draw = Drawing(seed, vocab_size)
    head = draw.tokens(HEAD)
    calls: list[Call] = []
    for session in range(TASKS):
        for turn in range(1, TURNS + 1):
            first = turn == 1
            appended = np.concatenate([head, draw.tokens(TASK)]) if first else draw.tokens(draw.length(*TOOL_OUTPUT))
            calls.append(
                Call(
                    session=session,
                    turn=turn,
                    after=None if first else len(calls) - 1,
                    extends=not first,
                    appended=appended,
                    reply_tokens=REPLY,
                )
            )
    return Workload(name="conversations", settings={"seed": seed}, calls=tuple(calls), vocab_size=vocab_size)


def measure(core: EngineCore, config: EngineConfig, workload: Workload, *, anti_thrash: bool) -> dict[str, Any]:
    """One run, from an empty pool."""
    lengths = workload.prompt_lengths
    pool = HEAD + HELD * (max(lengths) + REPLY - HEAD)
    cache = RadixCache(pool)
    scheduler = ObservedScheduler(
        cache,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=core.max_model_len,
        schedule="lpm",
        anti_thrash=anti_thrash,
    )
    machine = WallMachine(EngineCore(core.runner, core.tokenizer, cache, scheduler))
    records = drive(workload, machine, watch_memory=False).records
    seconds = machine.now
    waits = [record.ttft for record in records]
    return {
        "pool": pool,
        "anti-thrash": anti_thrash,
        "turns": len(records),
        "seconds": seconds,
        "turns a second": len(records) / seconds,
        "hit ratio": sum(record.cached_tokens for record in records) / sum(lengths),
        "prefilled": sum(record.prefilled_tokens for record in records),
        "median wait s": float(np.median(waits)),
        "longest wait s": max(waits),
    }


def main() -> None:
    """Measure each number of agents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    arguments = parser.parse_args()
    config = EngineConfig(kv_memory="1GiB")
    core = build_engine(config).core
    tasks = conversations(core.runner.shape.vocab_size)
    measure(core, config, replace(tasks, calls=tasks.calls[:2]), anti_thrash=False)  # what happens once
    cases = []
    for times in (1, 2, 4):
        workload = with_agents(tasks, times * HELD, PAUSE_S)
        for anti_thrash in (False, True):
            case = {"times what the pool holds": times, "agents": times * HELD}
            case |= measure(core, config, workload, anti_thrash=anti_thrash)
            cases.append(case)
            print(
                f"{times}x {case['agents']:2} agents, anti-thrash {'on ' if anti_thrash else 'off'}: "
                f"{case['turns a second']:.2f} turns/s, hit ratio {case['hit ratio']:.3f}, {case['prefilled']:,} "
                f"tokens prefilled, median wait {case['median wait s']:.2f} s, longest {case['longest wait s']:.1f} s",
                flush=True,
            )
    keep(arguments.out, {"compute": core.runner.compute, "cases": cases})


if __name__ == "__main__":
    main()
