"""Branches of one context: what a fork costs, and what many of them keep in memory.

A context is computed; it is forked many times, timed alone; then branches get a tail each, generate together, and the
pool's protected tokens are compared with the root and the tails, counted from the branches' own tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.measuring import keep, random_prompt
from mainstem import LLM, SamplingParams

FORKS = 1000


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8000, help="length of the context")
    parser.add_argument("--branches", type=int, default=64)
    parser.add_argument("--tail", type=int, default=20, help="tokens appended to each branch")
    parser.add_argument("--generate", type=int, default=16, help="tokens generated on each branch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()

    rng = np.random.default_rng(arguments.seed)
    with LLM(arguments.model, max_num_seqs=arguments.branches) as llm:
        context = llm.context(random_prompt(rng, arguments.tokens))
        times = []
        forks = []
        for _ in range(FORKS):
            start = time.perf_counter()
            forks.append(context.fork())
            times.append(time.perf_counter() - start)
        for fork in forks:
            fork.drop()
        branches = [context.fork().append(random_prompt(rng, arguments.tail)) for _ in range(arguments.branches)]
        greedy = SamplingParams(temperature=0, max_tokens=arguments.generate, ignore_eos=True)
        llm.generate_branches(branches, greedy)
        protected = llm.stats().cache.protected
        # The last sampled token of each has no KV.
        tails = {branch.tokens[:end].tobytes() for branch in branches for end in range(len(context) + 1, len(branch))}
        figures = {
            "fork median us": statistics.median(times) * 1e6,
            "fork p99 us": float(np.percentile(times, 99)) * 1e6,
            "root and tails tokens": arguments.tokens + len(tails),
            "protected tokens": protected,
            "in separate copies tokens": sum(len(branch) - 1 for branch in branches),
        }
        for branch in [context, *branches]:
            branch.drop()
    for name, value in figures.items():
        print(f"{name:28} {value:12,.1f}")
    keep(arguments.out, {"workload": __doc__, "figures": figures})


if __name__ == "__main__":
    main()
