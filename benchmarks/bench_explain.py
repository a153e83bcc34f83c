"""What the records of requests cost: their share of an engine's steps, and microseconds a request by its length.

The first part runs the embedded model through four kinds of work and times every call of the recorder within the steps.
The second runs the scheduler without a model, on prompts longer than the model's context.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import keep, median_us, random_prompt
from mainstem.config import EngineConfig
from mainstem.engine.build import build_engine
from mainstem.engine.core import EngineCore
from mainstem.explain import Recorder
from mainstem.params import SamplingParams
from mainstem.scheduler import Request, Scheduler, SchedulerOutput
from mainstem.tree import PrefixCache, RadixCache

ROOT, TURNS, NEW, REPLY = 3200, 8, 250, 32
LENGTHS = (3_000, 25_000, 100_000)
RECORDS = 1000
TokenList = list[int]


class TimedRecorder(Recorder):
    """A recorder that adds up its own time.

    Attributes:
        seconds: of all calls.
        admissions: nanoseconds of each call of `admitted`.
        endings: nanoseconds of each call of `finished`.
    """

    def __init__(self, cache: PrefixCache, limit: int) -> None:
        super().__init__(cache, limit)
        self.seconds = 0.0
        self.admissions: list[int] = []
        self.endings: list[int] = []
        self.burials: list[int] = []
        if isinstance(cache, RadixCache):
            note = cache.on_evict.pop()
            cache.on_evict.append(lambda *args: self._timed(self.burials, note, *args))

    def needs_room(self, request: Request) -> None:
        self._timed([], super().needs_room, request)

    def admitted(self, request: Request, running: Sequence[Request]) -> None:
        self._timed(self.admissions, super().admitted, request, running)

    def finished(self, request: Request) -> None:
        self._timed(self.endings, super().finished, request)

    def stepped(self, output: SchedulerOutput, seconds: float) -> None:
        self._timed([], super().stepped, output, seconds)

    def _timed(self, into: list[int], call: Callable[..., None], *args: Any) -> None:
        begin = time.perf_counter_ns()
        call(*args)
        spent = time.perf_counter_ns() - begin
        into.append(spent)
        self.seconds += spent / 1e9


# -- with the model -------------------------------------------------------------------------------------------------


def run(core: EngineCore, prompts: Sequence[TokenList], max_tokens: int) -> None:
    """Generate replies to prompts, all at once."""
    for prompt in prompts:
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        core.submit(np.array(prompt, np.int32), params, lambda _: None)
    while core.has_work():
        core.step()


def session(core: EngineCore, rng: np.random.Generator) -> None:
    """A conversation that grows."""
    prompt = random_prompt(rng, ROOT)
    for _ in range(TURNS):
        run(core, [prompt], REPLY)
        prompt = prompt + random_prompt(rng, NEW)


def rewritten(core: EngineCore, rng: np.random.Generator) -> None:
    """A conversation with a clock at its head."""
    prompt = random_prompt(rng, ROOT)
    for _ in range(3):
        run(core, [random_prompt(rng, 8) + prompt], REPLY)
        prompt = prompt + random_prompt(rng, NEW)


def thrashing(core: EngineCore, rng: np.random.Generator) -> None:
    """Two conversations in turn, of which the pool holds one."""
    pair = [random_prompt(rng, ROOT), random_prompt(rng, ROOT)]
    for prompt in (*pair, *pair):
        run(core, [prompt], REPLY)


def streams(core: EngineCore, rng: np.random.Generator) -> None:
    """Sixteen requests on one root, decoding side by side."""
    root = random_prompt(rng, 1000)
    run(core, [root + random_prompt(rng, 20) for _ in range(16)], 64)


WORK = {"session": session, "rewritten": rewritten, "thrashing": thrashing, "streams": streams}


def share_of_steps(core: EngineCore, work: Callable[[EngineCore, np.random.Generator], None]) -> dict[str, Any]:
    """Seconds of the recorder and of the steps that it was called in."""
    recorder = TimedRecorder(core.cache, RECORDS)
    core.recorder = core.scheduler.observer = recorder
    before = core.times.step_s
    work(core, np.random.default_rng(0))
    step_s = core.times.step_s - before
    return {
        "requests": len(recorder.admissions),
        "step s": step_s,
        "recorder s": recorder.seconds,
        "share": recorder.seconds / step_s,
        "misses": {cause.value: tokens for cause, tokens in recorder.counts.items() if tokens},
    }


# -- without one ----------------------------------------------------------------------------------------------------


def microseconds(length: int) -> dict[str, float]:
    """What a request of this length costs, by what becomes of it; and an eviction."""
    rng = np.random.default_rng(length)
    cache = RadixCache(4 * length)
    scheduler = Scheduler(cache, max_num_batched_tokens=2 * length, max_num_seqs=4, max_model_len=2 * length)
    recorder = TimedRecorder(cache, RECORDS)
    scheduler.observer = recorder
    prompt = random_prompt(rng, length)
    costs: dict[str, list[int]] = {"appended": [], "repeated": [], "rewritten": [], "evicted": []}

    def ask(tokens: TokenList) -> int:
        request = Request(str(len(recorder.admissions)), np.array(tokens, np.int32), SamplingParams(), max_tokens=1)
        scheduler.add(request)
        while request.num_computed < request.num_prompt:
            scheduler.commit(scheduler.schedule())
        scheduler.finish(request)
        return recorder.admissions[-1] + recorder.endings[-1]

    ask(prompt)
    for _ in range(9):
        prompt = prompt + random_prompt(rng, 250)
        costs["appended"].append(ask(prompt))
        costs["repeated"].append(ask(prompt))
        costs["rewritten"].append(ask(random_prompt(rng, 8) + prompt))
        cache.evict(len(prompt) * 2)
        costs["evicted"].append(ask(prompt))
    return {**{name: median_us(times) for name, times in costs.items()}, "eviction": median_us(recorder.burials)}


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file for the figures")
    parser.add_argument("--work", default=",".join(WORK), help="which kinds of work, separated by commas")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"us a request": {str(length): microseconds(length) for length in LENGTHS}}
    for length, costs in figures["us a request"].items():
        print(f"{length:>7} tokens  " + "  ".join(f"{name} {cost:.0f} us" for name, cost in costs.items()))
    names = [name for name in arguments.work.split(",") if name]
    if names:
        config = EngineConfig(kv_memory=f"{6000 * 46080}b", explain_records=0)
        core = build_engine(config).core
        run(core, [random_prompt(np.random.default_rng(1), 200)], 8)
        figures["share of steps"] = {}
        for name in names:
            core.reset_cache()
            found = figures["share of steps"][name] = share_of_steps(core, WORK[name])
            print(f"{name:<10} {found['recorder s'] * 1e3:.1f} ms of {found['step s']:.1f} s: {found['share']:.3%}")
    keep(arguments.out, figures)


if __name__ == "__main__":
    main()
