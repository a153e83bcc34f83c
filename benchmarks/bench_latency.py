"""What a long prompt does to streams that already run: their inter-token latency before, during and after it.

Eight streams decode on contexts of 300 tokens each; after a while a cold prompt of 6,000 tokens arrives. Chunked
prefill lets the streams go on: each step computes their eight tokens and a chunk of the prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import Stream, client, complete, keep, random_prompt, server

STREAMS, CONTEXT, PROMPT = 8, 300, 6000
SETTLE_S = 6.0
BUDGETS = (128, 512)


async def measure(url: str, seed: int) -> dict[str, Any]:
    """One run: latencies in milliseconds, the long prompt's time to first token in seconds."""
    rng = np.random.default_rng(seed)
    async with client(url) as http:
        await complete(http, random_prompt(rng, 600), 4)
        streams = [Stream() for _ in range(STREAMS)]
        tasks = [
            asyncio.create_task(complete(http, random_prompt(rng, CONTEXT), 2000, into=stream)) for stream in streams
        ]
        await asyncio.sleep(SETTLE_S)
        arrived = time.perf_counter()
        long = await complete(http, random_prompt(rng, PROMPT), 1)
        answered = time.perf_counter()
        await asyncio.sleep(SETTLE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "long prompt ttft s": long.ttft,
        "long prompt cached tokens": long.cached,
        **{
            f"{period} {name}": value
            for period, begin, end in [
                ("before", arrived - SETTLE_S / 3, arrived),
                ("during", arrived, answered),
                ("after", answered, answered + SETTLE_S),
            ]
            for name, value in latencies(streams, begin, end).items()
        },
    }


def latencies(streams: list[Stream], begin: float, end: float) -> dict[str, float]:
    """Gaps between tokens that ended within a period, in milliseconds."""
    gaps = [
        (later - earlier) * 1e3
        for stream in streams
        for earlier, later in zip(stream.token_times, stream.token_times[1:], strict=False)
        if begin <= later < end
    ]
    return {
        "itl median ms": statistics.median(gaps),
        "itl p99 ms": float(np.percentile(gaps, 99)),
        "itl max ms": max(gaps),
        "tokens": len(gaps),
    }


def main() -> None:
    """Measure with each token budget, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, help="values of --max-num-batched-tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()

    figures: dict[str, dict[str, Any]] = {}
    for budget in arguments.budgets:
        with server("--model", arguments.model, "--max-num-batched-tokens", str(budget)) as url:
            figures[f"{budget} tokens a step"] = asyncio.run(measure(url, arguments.seed))
    for budget_name, run in figures.items():
        print(budget_name)
        for name, value in run.items():
            print(f"  {name:30} {value:10.1f}")
    keep(arguments.out, {"workload": __doc__, "figures": figures})


if __name__ == "__main__":
    main()
