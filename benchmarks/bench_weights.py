"""How long a step takes, what it costs to start and how much memory is used, by what the weights are kept in.

    python -m benchmarks.bench_weights --out benchmarks/results/weights.json

Steps: one process holds an engine for each form, and they take turns, so that a moment when the machine is slower
slows all of them. So many requests at once generate the same tokens after a short prompt that is cached; what counts is
the median, over the repeats, of a run's mean step. Memory and time are those of a process of its own, from its start to
the first token of one request, with the model on disk and a KV pool of 64 MiB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import keep
from mainstem import LLM, SamplingParams

FORMS = ("float32", "float16", "int8", "auto")
ROWS = (1, 8, 32)
PROMPT, REPLY = 64, 33
# Prints the seconds from importing anything to the first token, and the process's resident MiB, then and at its peak.
STARTED = """
import sys, time
began = time.perf_counter()
import psutil, resource
from mainstem import LLM, SamplingParams
llm = LLM(sys.argv[1], weights=sys.argv[2], kv_dtype="float32", kv_memory="64MiB")
llm.generate("The river", SamplingParams(max_tokens=1))
took = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(took, psutil.Process().memory_info().rss / 2**20, peak)
"""


def step_ms(llm: LLM, rows: int) -> float:
    """Milliseconds between tokens of so many replies that are generated together."""
    draw = np.random.default_rng(rows)
    prompts = [draw.integers(5, 40_000, PROMPT).astype(np.int32) for _ in range(rows)]

    def run(tokens: int) -> float:
        began = time.perf_counter()
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
        return time.perf_counter() - began

    run(1)
    one = run(1)
    return (run(REPLY) - one) / (REPLY - 1) * 1e3


def start(model: str, form: str) -> dict[str, float]:
    """What it takes to come to a first token."""
    done = subprocess.run([sys.executable, "-c", STARTED, model, form], capture_output=True, text=True, check=True)
    seconds, resident, peak = (float(number) for number in done.stdout.split())
    return {"first_token_s": seconds, "resident_mib": resident, "peak_mib": peak}


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {name: round(median(run[name] for run in runs), 2) for name in runs[0]}


def measure(model: str, repeats: int) -> dict[str, Any]:
    """All figures."""
    starts: dict[str, list[dict[str, float]]] = {form: [] for form in FORMS}
    for _ in range(3):
        for form in FORMS:
            starts[form].append(start(model, form))
    engines = {form: LLM(model, weights=form, kv_dtype="float32", kv_memory="256MiB") for form in FORMS}
    steps: dict[str, dict[int, list[float]]] = {form: {rows: [] for rows in ROWS} for form in FORMS}
    for _ in range(repeats):
        for rows in ROWS:
            for form, llm in engines.items():
                steps[form][rows].append(step_ms(llm, rows))
    for llm in engines.values():
        llm.close()
    return {
        "model": model,
        "repeats": repeats,
        "forms": {
            form: {
                "compute": llm.compute,
                "weights_mb": round(llm.budget.weights_bytes / 1e6, 1),
                "step_ms": {rows: round(median(found), 2) for rows, found in steps[form].items()},
                "all_step_ms": {rows: [round(ms, 2) for ms in found] for rows, found in steps[form].items()},
                **medians(starts[form]),
            }
            for form, llm in engines.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="as for mainstem serve [default: smollm2]")
    parser.add_argument("--repeats", type=int, default=5, help="runs of every case [default: 5]")
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    arguments = parser.parse_args()
    figures = measure(arguments.model, arguments.repeats)
    for form, found in figures["forms"].items():
        print(form, json.dumps({name: found[name] for name in found if name not in ("all_step_ms", "compute")}))
    keep(arguments.out, figures)


if __name__ == "__main__":
    main()
