"""An agent's session, a second one over the same root, and eight branches of one context, over HTTP with token ids.

Session: a 3,200-token root, ten turns, each with 250 new tokens and 32 generated ones. Then the first turn of another
session over the same root, and turn ten once more with nothing cached. Branches: 8 x 100 tokens on a 3,000-token root,
64 tokens generated each, all at once, on a cold root and on a warm one. Burst: 32 identical prompts of 2,000 tokens,
sent together. Everything is greedy; times are a client's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.measuring import client, complete, complete_all, keep, random_prompt, server, summary

ROOT, TURN, REPLY, TURNS = 3200, 250, 32, 10
BURST, BURST_PROMPT = 32, 2000
BRANCH_ROOT, BRANCH_TAIL, BRANCH_REPLY, BRANCHES = 3000, 100, 64, 8


async def run_session(http: httpx.AsyncClient, rng: np.random.Generator) -> dict[str, float]:
    """One session; seconds, and milliseconds a decoded token."""
    root = random_prompt(rng, ROOT)
    history = [*root, *random_prompt(rng, TURN - 200)]
    figures: dict[str, float] = {}
    for turn in range(1, TURNS + 1):
        stream = await complete(http, history, REPLY)
        figures[f"turn {turn} ttft s"] = stream.ttft
        figures[f"turn {turn} prompt tokens"] = len(history)
        figures[f"turn {turn} new tokens"] = len(history) - stream.cached
        if turn == 1:
            figures["decode ms at 3,250 tokens"] = statistics.median(stream.gaps) * 1e3
        if turn < TURNS:
            history = [*history, *stream.token_ids, *random_prompt(rng, TURN)]
    other = await complete(http, [*root, *random_prompt(rng, TURN - 200)], 1)
    figures["second session, turn 1 ttft s"] = other.ttft
    uncached = await complete(http, history, 1, cache_salt=f"salt {rng.integers(2**60)}")
    assert uncached.cached == 0, "the uncached arm hit the cache"
    figures[f"turn {TURNS} uncached ttft s"] = uncached.ttft
    figures[f"turn {TURNS} speed-up"] = uncached.ttft / figures[f"turn {TURNS} ttft s"]
    return figures


async def run_branches(http: httpx.AsyncClient, rng: np.random.Generator) -> dict[str, float]:
    """Eight branches on a cold root, then eight others on the same root."""
    root = random_prompt(rng, BRANCH_ROOT)
    figures: dict[str, float] = {}
    for state in ("cold", "warm"):
        prompts = [[*root, *random_prompt(rng, BRANCH_TAIL)] for _ in range(BRANCHES)]
        started = time.perf_counter()
        streams = await complete_all(http, prompts, BRANCH_REPLY)
        figures[f"{BRANCHES} branches, {state} root s"] = time.perf_counter() - started
        figures[f"{BRANCHES} branches, {state} root, tokens prefilled"] = sum(
            len(prompt) - stream.cached for prompt, stream in zip(prompts, streams, strict=True)
        )
    return figures


async def run_burst(http: httpx.AsyncClient, rng: np.random.Generator) -> dict[str, float]:
    """Identical prompts at once: how many tokens are computed for each that had never been seen."""
    prompts = [random_prompt(rng, BURST_PROMPT)] * BURST
    streams = await complete_all(http, prompts, 1)
    prefilled = sum(BURST_PROMPT - stream.cached for stream in streams)
    return {
        f"burst of {BURST}, slowest ttft s": max(stream.ttft for stream in streams),
        f"burst of {BURST}, prefill amplification": prefilled / BURST_PROMPT,
    }


async def measure(url: str, repeats: int, seed: int) -> list[dict[str, float]]:
    """All figures, `repeats` times, on fresh tokens each time."""
    rng = np.random.default_rng(seed)
    runs = []
    async with client(url) as http:
        await complete(http, random_prompt(rng, 600), 4)
        for repeat in range(repeats):
            runs.append({**await run_session(http, rng), **await run_branches(http, rng), **await run_burst(http, rng)})
            await http.post("/cache/reset")
            print(f"repeat {repeat + 1} of {repeats} done", flush=True)
    return runs


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base-url", help="a server that already runs, instead of one of our own")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()

    if arguments.base_url:
        runs = asyncio.run(measure(arguments.base_url, arguments.repeats, arguments.seed))
    else:
        with server("--model", arguments.model) as url:
            runs = asyncio.run(measure(url, arguments.repeats, arguments.seed))
    figures: dict[str, Any] = {name: summary([run[name] for run in runs]) for name in runs[0]}
    for name, figure in figures.items():
        print(f"{name:45} {figure['median']:10.3f}   ({figure['min']:.3f} to {figure['max']:.3f})")
    keep(arguments.out, {"workload": __doc__, "figures": figures})


if __name__ == "__main__":
    main()
