"""Decode steps of many branches on one root: what they share read once, or by every branch for itself.

One engine in this process; its steps run with and without sharing in turn, so both arms see the same requests, memory
and machine. The bound is the ratio of the bytes that each arm must read: weights and the tokens of every branch,
against weights and every distinct token once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import keep, random_prompt, summary
from mainstem.config import EngineConfig
from mainstem.engine.build import build_engine
from mainstem.engine.core import EngineCore
from mainstem.params import SamplingParams

BRANCHES, ROOTS, PRIVATE = (8, 32, 64), (3000, 7500), 100
PAIRS, WARM_UP = 12, 2


def forget(_: object) -> None:
    """Replies are not read here."""


def measure(core: EngineCore, rng: np.random.Generator, branches: int, root: int, pairs: int) -> dict[str, Any]:
    """Milliseconds of single steps in both arms."""
    core.reset_cache()
    common = random_prompt(rng, root)
    params = SamplingParams(max_tokens=2 * (pairs + WARM_UP) + 8, temperature=0, ignore_eos=True)
    ids = []
    for _ in range(branches):
        prompt = np.array([*common, *random_prompt(rng, PRIVATE)], np.int32)
        ids += core.submit(prompt, params, forget)
    while any(request.num_remaining > 1 for request in core.scheduler.running) or core.scheduler.waiting:
        core.step()
    times: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs + WARM_UP):
        for cascade in (True, False) if pair % 2 else (False, True):
            core.cascade = cascade
            begin = time.perf_counter()
            core.step()
            if pair >= WARM_UP:
                times[cascade].append((time.perf_counter() - begin) * 1e3)
    core.abort(ids)
    shape = core.runner.shape
    length, distinct = branches * (root + PRIVATE), root + branches * PRIVATE
    # The embedding is looked up, not read; a tied head is read as often as an untied one.
    weights = shape.weight_bytes
    bound = (weights + shape.kv_bytes_per_token * length) / (weights + shape.kv_bytes_per_token * distinct)
    ratios = [off / on for on, off in zip(times[True], times[False], strict=True)]
    return {
        "branches": branches,
        "root": root,
        "shared ms": summary(times[True]),
        "unshared ms": summary(times[False]),
        "speed-up": summary(ratios),
        "bound": bound,
        "share of the bound": statistics.median(ratios) / bound,
    }


def main() -> None:
    """Measure every number of branches on every root."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument(
        "--branches",
        type=lambda text: [int(part) for part in text.split(",")],
        default=BRANCHES,
        metavar="LIST",
        help="numbers of branches (default 8,32,64)",
    )
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of steps in each case (default %(default)s)")
    arguments = parser.parse_args()
    core = build_engine(EngineConfig(kv_memory="2GiB", max_num_seqs=max(arguments.branches))).core
    rng = np.random.default_rng(0)
    cases: dict[str, dict[str, Any]] = {}
    print(f"{'branches':>8} {'root':>6} {'shared':>9} {'unshared':>10} {'speed-up':>9} {'bound':>6} {'of it':>6}")
    for root in ROOTS:
        for branches in arguments.branches:
            case = measure(core, rng, branches, root, arguments.pairs)
            cases[f"{branches} on {root}"] = case
            print(
                f"{branches:8} {root:6} {case['shared ms']['median']:6.1f} ms {case['unshared ms']['median']:7.1f} ms "
                f"{case['speed-up']['median']:8.2f}x {case['bound']:6.2f} {case['share of the bound']:6.0%}",
                flush=True,
            )
    keep(arguments.out, {"compute": core.runner.compute, "private tokens": PRIVATE, "cases": cases})


if __name__ == "__main__":
    main()
