"""The race: mainstem and every peer that is installed, one at a time, on the same token ids, timed by the same client.

Each repeat starts every engine afresh, another one first, and each run begins with tokens that it has not seen:
- a session: a root of 3,200 tokens and 50 of its own, then nine turns that add the reply and 250 tokens
- another session's first turn over the same root
- 8 branches of 100 tokens on a root of 3,000, 64 tokens generated on each, all at once: on the cold root, then 8 others
- 32 branches of 50 tokens on the session, filled up to 6,000 tokens and computed before, 32 tokens generated on each
and ends with the memory that the engine holds. mainstem runs the last workload once more with --cascade off, where
attention reads the shared prefix for every branch. Everything is greedy. The variable PEERS names the folder with the
peers (docs/peers.md); those that are not there are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np

from benchmarks.measuring import keep, random_prompt, summary
from benchmarks.peers.engines import Engine, Server, engines, peers_folder, started
from benchmarks.peers.race import UNSHARED, table
from mainstem.bench.http import Completion, CompletionsClient
from mainstem.errors import MainstemError

ENGINES = ("mainstem", "openvino", "vllm", UNSHARED)
START_TIMEOUT_S, SILENCE_S = 300.0, 300.0
_POLL_S = 0.02
_CONNECTIONS = 64
_WARM_UP, _WARM_UP_REPLY = 600, 4

Figures = dict[str, float]


class Sizes(NamedTuple):
    """How large the workloads are, in tokens."""

    root: int = 3200
    own: int = 50
    turn: int = 250
    reply: int = 32
    turns: int = 10
    branch_root: int = 3000
    branch_tail: int = 100
    branch_reply: int = 64
    branches: int = 8
    many_root: int = 6000
    many_tail: int = 50
    many_reply: int = 32
    many: int = 32


QUICK = Sizes(root=300, turn=40, reply=8, turns=3, branch_root=300, branch_tail=20, branch_reply=8, many_root=600,
              many_tail=10, many_reply=12)  # fmt: skip


class Measured(NamedTuple):
    """What one run gave: its figures, and the tokens of its first reply, which every engine should agree on."""

    figures: Figures
    first_reply: list[int]


class Failed(Exception):
    """An engine did not run to its end; the message says why."""


class Session(NamedTuple):
    """What a session gave, and its tokens, the last reply included."""

    figures: Figures
    first_reply: list[int]
    history: list[int]


async def run_session(client: CompletionsClient, rng: np.random.Generator, sizes: Sizes) -> Session:
    """All turns, and another session over the same root."""
    root = random_prompt(rng, sizes.root)
    history = [*root, *random_prompt(rng, sizes.own)]
    first = reply = await client.complete(history, sizes.reply)
    if first.cached_tokens:
        raise Failed(f"the first turn was not cold: {first.cached_tokens} tokens were cached")
    history += first.token_ids
    for _ in range(1, sizes.turns):
        history += random_prompt(rng, sizes.turn)
        reply = await client.complete(history, sizes.reply)
        history += reply.token_ids
    other = await client.complete([*root, *random_prompt(rng, sizes.own)], 1)
    figures = {
        "turn 1 s": first.ttft,
        "decode ms": 1e3 * (first.seconds_per_token or 0.0),
        "turn last s": reply.ttft,
        "second session s": other.ttft,
        **_cached("turn last", reply),
        **_cached("second session", other),
    }
    return Session(figures, first.token_ids, history)


async def run_branches(client: CompletionsClient, rng: np.random.Generator, sizes: Sizes) -> Figures:
    """Branches on a cold root, then others on the same root."""
    root = random_prompt(rng, sizes.branch_root)
    figures: Figures = {}
    for state in ("cold", "warm"):
        prompts = [[*root, *random_prompt(rng, sizes.branch_tail)] for _ in range(sizes.branches)]
        begin = time.perf_counter()
        await _complete_all(client, prompts, sizes.branch_reply)
        figures[f"branches, {state} root s"] = time.perf_counter() - begin
    return figures


async def run_many(
    client: CompletionsClient, rng: np.random.Generator, sizes: Sizes, history: Sequence[int]
) -> Figures:
    """Many branches on a root that begins with `history` and is cached."""
    root = [*history, *random_prompt(rng, max(0, sizes.many_root - len(history)))][: sizes.many_root]
    await client.complete(root, 1)
    prompts = [[*root, *random_prompt(rng, sizes.many_tail)] for _ in range(sizes.many)]
    begin = time.perf_counter()
    replies = await _complete_all(client, prompts, sizes.many_reply)
    figures = {"many branches s": time.perf_counter() - begin, **_cached("many branches", replies[0])}
    step = common_step_s(replies)
    return figures if step is None else {**figures, "many branches, step ms": 1e3 * step}


async def _complete_all(client: CompletionsClient, prompts: Sequence[list[int]], max_tokens: int) -> list[Completion]:
    return list(await asyncio.gather(*(client.complete(prompt, max_tokens) for prompt in prompts)))


def common_step_s(replies: Sequence[Completion]) -> float | None:
    """Seconds between tokens while all replies are generated: from the latest first token to the earliest last one.

    None if that holds fewer than three tokens of the median reply: the engine did not run them together.
    """
    begin = max(reply.token_times[0] for reply in replies)
    end = min(reply.token_times[-1] for reply in replies)
    tokens = statistics.median(sum(begin < at <= end for at in reply.token_times) for reply in replies)
    return (end - begin) / tokens if tokens >= 3 else None


def _cached(name: str, reply: Completion) -> Figures:
    """How much was cached, from servers that say it."""
    return {} if reply.cached_tokens is None else {f"{name}, cached tokens": reply.cached_tokens}


async def measure(url: str, sizes: Sizes, *, seed: Sequence[int], only_many: bool) -> Measured:
    """Everything of one run against a server that is ready.

    Raises:
        Failed: when something was cached that should not have been.
        MainstemError: when the server refuses or stops answering.
    """
    rng, own = np.random.default_rng(seed), np.random.default_rng([*seed, 1])
    asked = CompletionsClient(url, model=None, api_key=None, connections=_CONNECTIONS, silence_s=SILENCE_S)
    async with asked as client:
        if not client.dialect.token_ids:
            raise Failed("it takes no token ids, so its tokens would not be those of the others")
        warm_up = [random_prompt(own, _WARM_UP) for _ in range(2)]
        await _complete_all(client, warm_up, _WARM_UP_REPLY)
        if only_many:
            return Measured(await run_many(client, rng, sizes, []), [])
        session = await run_session(client, rng, sizes)
        many = await run_many(client, rng, sizes, session.history)
        branches = await run_branches(client, rng, sizes)
        return Measured({**session.figures, **many, **branches}, session.first_reply)


def wait_for_first_token(server: Server) -> float:
    """Ask until a token comes; gives the seconds since the server was started.

    Raises:
        Failed: when the server ends, or says nothing for too long.
    """
    with httpx.Client(base_url=server.url, trust_env=False, timeout=START_TIMEOUT_S) as http:
        while server.process.poll() is None and time.perf_counter() - server.started < START_TIMEOUT_S:
            try:
                model = http.get("/models").raise_for_status().json()["data"][0]["id"]
                body = {"model": model, "prompt": [64] * 8, "max_tokens": 1, "temperature": 0, "stream": True}
                with http.stream("POST", "/completions", json=body) as response:
                    response.raise_for_status()
                    if any(line.startswith("data: {") for line in response.iter_lines()):
                        return time.perf_counter() - server.started
            except httpx.HTTPError:
                time.sleep(_POLL_S)
    raise Failed(f"it did not start:\n{server.said()}")


def run_engine(engine: Engine, peers: Path, sizes: Sizes, seed: Sequence[int]) -> dict[str, Any]:
    """Start, measure, stop; gives the figures, and what mainstem says it computes with.

    Raises:
        Failed: when the engine did not run to the end of it.
    """
    with started(engine, peers) as server:
        start_s = wait_for_first_token(server)
        try:
            measured = asyncio.run(measure(server.url, sizes, seed=seed, only_many=engine.name == UNSHARED))
        except MainstemError as error:
            raise Failed(f"{error}\n{server.said()}") from None
        start_and_end = {"start-up s": start_s, "memory MiB": server.memory_bytes() / 2**20}
        compute = [line.split(None, 1)[1] for line in server.said(200).splitlines() if line.startswith("Compute ")]
        return {
            "figures": {**measured.figures, **start_and_end},
            "first_reply": measured.first_reply,
            "compute": compute[0] if compute else None,
        }


def order(names: Sequence[str], repeat: int) -> list[str]:
    """The engines in the order of this repeat: another one begins each time."""
    first = repeat % len(names)
    return [*names[first:], *names[:first]]


def race(chosen: Sequence[Engine], peers: Path, sizes: Sizes, repeats: int, seed: int) -> dict[str, Any]:
    """Run everything; gives the result as it is written, without its origin. Ctrl-C keeps the runs that are done."""
    runs: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in chosen}
    by_name = {engine.name: engine for engine in chosen}
    turns = [(repeat, name) for repeat in range(repeats) for name in order(list(by_name), repeat)]
    try:
        for repeat, name in turns:
            begin = time.perf_counter()
            try:
                run = run_engine(by_name[name], peers, sizes, [seed, repeat])
            except Failed as failed:
                print(f"repeat {repeat + 1}: {name} failed: {failed}", file=sys.stderr, flush=True)
                continue
            runs[name].append({"repeat": repeat, **run})
            took = time.perf_counter() - begin
            print(f"repeat {repeat + 1} of {repeats}: {name} in {took:.0f} s", flush=True)
    except KeyboardInterrupt:
        print("interrupted: the runs that are done are kept", file=sys.stderr, flush=True)
    results = {
        name: {
            "title": by_name[name].title,
            "version": by_name[name].version(peers),
            "precision": by_name[name].precision,
            "command": by_name[name].shown(),
            "figures": _summaries([run["figures"] for run in its_runs]),
            "runs": its_runs,
        }
        for name, its_runs in runs.items()
        if its_runs
    }
    return {"workload": __doc__, "sizes": sizes._asdict(), "quick": sizes == QUICK, "engines": results}


def _summaries(runs: Sequence[Figures]) -> dict[str, Any]:
    """Median and range of each figure that every run has."""
    return {name: summary([run[name] for run in runs]) for name in runs[0] if all(name in run for run in runs)}


def main() -> None:
    """Race, print the table, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engines", default=",".join(ENGINES), metavar="LIST", help="which of them [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="small workloads, once: to see whether everything runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mainstem", default="", metavar="FLAGS", help="flags of mainstem serve, all in one word")
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    arguments = parser.parse_args()
    # Whoever ends this ends the engines that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    known, peers = engines(shlex.split(arguments.mainstem)), peers_folder()
    chosen = []
    for name in arguments.engines.split(","):
        if name not in known:
            parser.error(f"there is no engine '{name}'; there are {', '.join(known)}")
        missing = known[name].lacks(peers)
        if missing is None:
            chosen.append(known[name])
        else:
            print(f"{known[name].title} is left out: there is no {missing}; see docs/peers.md", flush=True)
    sizes = QUICK if arguments.quick else Sizes()
    result = race(chosen, peers, sizes, 1 if arguments.quick else arguments.repeats, arguments.seed)
    keep(arguments.out, result)
    # As it is read from a file, so that nothing depends on where it came from.
    print("\n".join(table(json.loads(json.dumps(result)))))


if __name__ == "__main__":
    main()
