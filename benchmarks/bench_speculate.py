"""Speculative decoding on and off: recorded sessions of agents, the same session again, and text that nobody can guess.

One model in this process. For each task, an engine without drafts and one with them run the same requests from an empty
cache, one after the other, and take turns in going first; both must give the same tokens. What is compared is the time
of decoding: from a reply's first token to its last.

Recorded sessions are replayed with their own replies, written by much larger models: every step is computed as if this
model had said them, and drafts are held against them. So the figures say how predictable what real agents say is, and
what this engine makes of it, not what this model would have said. The `own` tasks let the model say what it says.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measuring import keep, summary
from mainstem.bench.recordings import read_recordings
from mainstem.bench.workloads.trajectories import Session, tokenize
from mainstem.config import EngineConfig
from mainstem.engine.build import build_engine
from mainstem.engine.core import EngineCore
from mainstem.engine.outputs import RequestOutput
from mainstem.engine.speculation import Speculation
from mainstem.errors import MainstemError
from mainstem.params import SamplingParams
from mainstem.scheduler import Scheduler
from mainstem.tree import RadixCache, TokenArray

ARMS = ("off", "on")
STORIES = (
    "Tell me a long story about a lighthouse keeper who finds a map.",
    "Describe a city that floats on the sea, and the people who live there.",
    "What might a letter say that was written a hundred years from now?",
    "Invent an animal, and say how it lives through the year.",
)


class Ask(NamedTuple):
    """Replies asked for at once: a prompt each, and what it is to say if it is given."""

    prompts: list[TokenArray]
    recorded: list[TokenArray | None]
    params: SamplingParams


class Ran(NamedTuple):
    """What one arm made of a task."""

    replies: list[list[int]]
    decode_s: float
    tokens: int
    steps: int
    drafted: int
    accepted: int


class Arm:
    """An engine from an empty cache, over a model that arms share."""

    def __init__(self, core: EngineCore, config: EngineConfig) -> None:
        cache = RadixCache(core.cache.capacity)
        scheduler = Scheduler(
            cache,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            max_model_len=core.max_model_len,
        )
        self._core = EngineCore(
            core.runner, core.tokenizer, cache, scheduler, speculation=Speculation.of(config, scheduler)
        )

    def run(self, asks: Sequence[Ask]) -> Ran:
        """Ask one after the other."""
        core, before = self._core, self._core.stats()
        replies: list[list[int]] = []
        decode_s, tokens = 0.0, 0
        for ask in asks:
            spans: list[list[float]] = []
            for prompt, recorded in zip(ask.prompts, ask.recorded, strict=True):
                replies.append([])
                spans.append([])
                core.submit(prompt, ask.params, self._taker(replies[-1], spans[-1]), recorded=recorded)
            while core.has_work():
                core.step()
            decode_s += max(times[-1] for times in spans) - max(times[0] for times in spans)
            tokens += sum(len(reply) - 1 for reply in replies[-len(spans) :])
        after = core.stats()
        return Ran(
            replies,
            decode_s,
            tokens,
            after.steps - before.steps,
            after.drafted_tokens - before.drafted_tokens,
            after.accepted_tokens - before.accepted_tokens,
        )

    @staticmethod
    def _taker(reply: list[int], times: list[float]) -> Callable[[RequestOutput | MainstemError], None]:
        def take(news: RequestOutput | MainstemError) -> None:
            if isinstance(news, MainstemError):
                raise news
            reply.extend(news.token_ids)
            times.append(time.perf_counter())

        return take


def recorded_asks(session: Session) -> list[Ask]:
    """A recorded session, turn by turn."""
    asks: list[Ask] = []
    context: TokenArray = np.empty(0, np.int32)
    for turn in session.turns:
        prompt = np.concatenate([context, turn.appended]) if turn.extends else turn.appended
        asks.append(Ask([prompt], [turn.reply], SamplingParams(max_tokens=len(turn.reply), temperature=0)))
        context = np.concatenate([prompt, turn.reply])
    return asks


def own_asks(asks: Sequence[Ask], max_tokens: int) -> list[Ask]:
    """The same prompts, to be answered by the model."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return [Ask(ask.prompts, [None] * len(ask.prompts), params) for ask in asks]


def story_asks(core: EngineCore, at_once: int, max_tokens: int) -> list[Ask]:
    """Stories told at temperature 1, each with its own seed."""
    tokenizer = core.tokenizer
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in STORIES]
    asks = []
    for first in range(0, len(prompts), 1 if at_once == 1 else len(prompts)):
        some = [prompts[(first + number) % len(prompts)] for number in range(at_once)]
        params = SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=first, ignore_eos=True)
        asks.append(Ask(some, [None] * at_once, params))
    return asks


def tasks(core: EngineCore, sessions: Sequence[Session], tokens: int) -> Iterator[tuple[str, list[list[Ask]]]]:
    """Every task by its name: passes, each of which begins with the cache that the one before it left."""
    for session in sessions:
        asks = recorded_asks(session)
        yield f"recorded {session.source} {session.name}", [asks, asks]
    if sessions:
        own = own_asks(recorded_asks(sessions[0])[:4], tokens)
        yield "own replies", [own, own]
    yield "stories, one at a time", [story_asks(core, 1, tokens)]
    yield "stories, eight at once", [story_asks(core, 8, tokens)]


def measure(core: EngineCore, configs: dict[str, EngineConfig], passes: list[list[Ask]], repeats: int) -> list[Any]:
    """Both arms, in turns; a row for each pass."""
    runs: dict[str, list[list[Ran]]] = {arm: [] for arm in ARMS}
    for repeat in range(repeats):
        for arm in ARMS if repeat % 2 else ARMS[::-1]:
            engine = Arm(core, configs[arm])
            runs[arm].append([engine.run(asks) for asks in passes])
    rows = []
    for index in range(len(passes)):
        off, on = ([run[index] for run in runs[arm]] for arm in ARMS)
        if any(ran.replies != off[0].replies for ran in (*off, *on)):
            raise RuntimeError("drafts have changed a reply")
        rows.append(
            {
                "tokens": off[0].tokens,
                "off ms a token": summary([1e3 * ran.decode_s / ran.tokens for ran in off]),
                "on ms a token": summary([1e3 * ran.decode_s / ran.tokens for ran in on]),
                "speed-up": summary([a.decode_s / b.decode_s for a, b in zip(off, on, strict=True)]),
                "steps off": off[0].steps,
                "steps on": summary([ran.steps for ran in on]),
                "drafted": summary([ran.drafted for ran in on]),
                "accepted": summary([ran.accepted for ran in on]),
            }
        )
    return rows


def main() -> None:
    """Measure every task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", type=Path, help="files of recorded sessions (see docs/simulation.md)")
    parser.add_argument("--speculate", default="tree,ngram", help="where drafts come from (default %(default)s)")
    parser.add_argument("--max-draft", type=int, default=8, help="most drafts a request a step (default %(default)s)")
    parser.add_argument("--turns", type=int, default=6, help="most turns of a session (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each other reply (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="rounds of both arms (default %(default)s)")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    arguments = parser.parse_args()
    configs = {
        "off": EngineConfig(kv_memory="1GiB"),
        "on": EngineConfig(kv_memory="1GiB", speculate=arguments.speculate, max_draft=arguments.max_draft),
    }
    core = build_engine(configs["on"]).core
    sessions = [
        session._replace(turns=session.turns[: arguments.turns])
        for session in tokenize(read_recordings(arguments.recordings).recordings, core.tokenizer).sessions
    ]
    Arm(core, configs["on"]).run(story_asks(core, 8, 16))  # what happens once
    results: dict[str, list[Any]] = {}
    print(f"{'task':44} {'tokens':>6} {'off':>8} {'on':>8} {'speed-up':>8} {'accepted':>15}")
    for name, passes in tasks(core, sessions, arguments.tokens):
        results[name] = measure(core, configs, passes, arguments.repeats)
        for number, row in enumerate(results[name]):
            print(
                f"{(name if not number else '  again')[:44]:44} {row['tokens']:6} "
                f"{row['off ms a token']['median']:5.1f} ms {row['on ms a token']['median']:5.1f} ms "
                f"{row['speed-up']['median']:7.2f}x "
                f"{row['accepted']['median']:6.0f} of {row['drafted']['median']:5.0f}",
                flush=True,
            )
    first = [rows[0]["speed-up"]["median"] for name, rows in results.items() if name.startswith("recorded")]
    again = [rows[1]["speed-up"]["median"] for name, rows in results.items() if name.startswith("recorded")]
    keep(
        arguments.out,
        {
            "compute": core.runner.compute,
            "speculate": arguments.speculate,
            "max draft": arguments.max_draft,
            "recorded, median speed-up": statistics.median(first) if first else None,
            "recorded again, median speed-up": statistics.median(again) if again else None,
            "tasks": results,
        },
    )


if __name__ == "__main__":
    main()
