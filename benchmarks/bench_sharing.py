"""When it pays to read a shared prefix once: attention of one layer, with the prefix as a range of its own and without.

Decoding rows with 100 tokens of their own over a common prefix, in the geometry of the embedded model. Both arms run in
turn in one process. The time to plan a step is shown beside them; it is spent once a step, for all layers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.measuring import keep
from mainstem.attention import KVPool, plan_step
from mainstem.attention import plan as planning
from mainstem.attention.native_attention import NativeStepAttention
from mainstem.attention.plan import SequenceRows, StepPlan, sharing_order
from mainstem.native import NativeLibrary, native_library
from mainstem.pages import Run

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 9, 3, 64, 30
PRIVATE, SLOTS = 100, 32_768
ROWS, PREFIXES = (2, 4, 8, 32), (64, 128, 256, 512, 1024, 2048)


def sequences(rows: int, prefix: int) -> list[SequenceRows]:
    """Rows that share `prefix` tokens in one run and have a run of their own."""
    made = []
    for row in range(rows):
        begin = prefix + 64 + row * (PRIVATE + 28)
        runs = (Run(0, prefix), Run(begin, begin + PRIVATE))
        slots = np.concatenate([np.arange(*run, dtype=np.int32) for run in runs])
        made.append(SequenceRows(row, row + 1, slots, runs))
    return made


def planned(rows: list[SequenceRows], *, shared: bool) -> StepPlan:
    """A plan that shares whatever can be shared, or nothing."""
    with mock.patch.object(planning, "MIN_SHARED_TOKENS", 1):
        return plan_step(rows, cascade=shared)


def measure(pool: KVPool, library: NativeLibrary, rows: int, prefix: int, repeats: int) -> dict[str, Any]:
    """Microseconds of a layer's attention in both arms, and of planning a step."""
    made = sequences(rows, prefix)
    q, out = torch.randn(rows, HEADS, HEAD_DIM), torch.empty(rows, HEADS, HEAD_DIM)
    mapping = torch.tensor([int(sequence.slots[-1]) for sequence in made])
    arms = {
        shared: NativeStepAttention(planned(made, shared=shared), mapping, pool, library) for shared in (True, False)
    }
    times: dict[bool, list[float]] = {True: [], False: []}
    plans: list[float] = []
    for repeat in range(repeats):
        for shared in (True, False) if repeat % 2 else (False, True):
            begin = time.perf_counter_ns()
            arms[shared].attend(0, q, out, 0.125)
            times[shared].append((time.perf_counter_ns() - begin) / 1e3)
    for _ in range(repeats // 4):
        begin = time.perf_counter_ns()
        sharing_order([sequence.runs for sequence in made])
        NativeStepAttention(planned(made, shared=True), mapping, pool, library)._prepare(HEADS)
        plans.append((time.perf_counter_ns() - begin) / 1e3)
    on, off = statistics.median(times[True]), statistics.median(times[False])
    return {
        "rows": rows,
        "prefix": prefix,
        "token reads saved": (rows - 1) * prefix,
        "shared us a layer": on,
        "unshared us a layer": off,
        "speed-up": off / on,
        "plan us a step": statistics.median(plans),
    }


def main() -> None:
    """Measure every number of rows on every prefix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--repeats", type=int, default=200, help="calls in each case (default %(default)s)")
    arguments = parser.parse_args()
    library = native_library()
    if library is None:
        raise SystemExit("the native extension was not built; run python -m mainstem.native")
    pool = KVPool(
        num_layers=1,
        num_slots=SLOTS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for memory in (*pool.keys, *pool.values):
        memory.normal_()
    cases = []
    for rows, prefix in [*((rows, prefix) for rows in ROWS for prefix in PREFIXES), (64, 3000), (64, 7500)]:
        case = measure(pool, library, rows, prefix, arguments.repeats)
        cases.append(case)
        print(
            f"{rows:3} rows on {prefix:5}: {case['token reads saved']:7,} reads saved, a layer "
            f"{case['shared us a layer']:7.0f} us, unshared {case['unshared us a layer']:7.0f} us "
            f"({case['speed-up']:.2f}x); plan {case['plan us a step']:5.0f} us a step",
            flush=True,
        )
    keep(arguments.out, {"layers": LAYERS, "private tokens": PRIVATE, "cases": cases})


if __name__ == "__main__":
    main()
