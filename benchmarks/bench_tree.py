"""How long the radix tree, the block hashes and the slot allocator take by themselves, with no model behind them.

    python -m benchmarks.bench_tree --out benchmarks/results/tree.json

The turns are those of coding agents: sessions of ten turns that grow from 9,500 to 25,000 tokens over a root of 3,500
tokens that all share. Every turn does what a scheduler does: look the prompt up, lock what is found, allocate slots for
the rest, insert it, and unlock it at the end. For block hashes, making the keys of the whole prompt is a figure of its
own. Then each operation on structures of growing size (see benchmarks/growth.py), drawn beside the JSON file as SVG and
PNG. Figures are medians in microseconds, on one thread. The command fails if evicting takes longer the more there is to
choose from.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.growth import Growth, measure_growth
from benchmarks.measuring import keep, median_us, timed
from mainstem.pages import ExtentAllocator, SlotArray, runs_of
from mainstem.tree import CACHES, PrefixCache, TokenArray

ROOT_TOKENS = 3_500
FIRST_TURN_TOKENS = 9_500
LAST_TURN_TOKENS = 25_000
VOCABULARY = 50_000
SMALL_CAPACITY = 1_000_000
PAGE_SIZES = {"radix": 1, "block-hash": 16}
# Twice as long is noise on a machine that does other things; a walk over all leaves would be a thousand times.
MOST_EVICTION_GROWTH = 3.0

REFERENCES = {
    "SGLang 0.5.23, page 1, Python tree": {"match": 108, "insert": 100, "lock": 20},
    "SGLang 0.5.23, page 1, Rust tree": {"match": 50, "insert": 57, "lock": 9},
    "vLLM 0.33, blocks of 16": {"hash": 2_264, "match": 927, "allocate": 405},
}
"""Medians in microseconds of the same turns, measured earlier on another 2-core machine, not by this script."""


class TurnTimes(NamedTuple):
    """Medians of the operations of a turn in microseconds, and what the cache made of the workload."""

    cache: str
    workload: str
    capacity: int
    hash: float | None
    match: float
    lock: float
    allocate: float
    insert: float
    unlock: float
    hit_rate: float
    evicted: int


class AllocatorTimes(NamedTuple):
    """Medians in microseconds: taking a turn's new slots, giving a session's back; and in how many runs these lay."""

    capacity: int
    allocate: float
    free: float
    runs_per_session: float


def sessions(count: int, rng: np.random.Generator) -> list[TokenArray]:
    """The whole text of every session; all begin with the same root."""
    root = rng.integers(0, VOCABULARY, ROOT_TOKENS, dtype=np.int32)
    own = LAST_TURN_TOKENS - ROOT_TOKENS
    return [np.concatenate([root, rng.integers(0, VOCABULARY, own, dtype=np.int32)]) for _ in range(count)]


def turn_lengths(turns: int) -> list[int]:
    """Tokens of the prompt of every turn."""
    lengths: list[int] = np.linspace(FIRST_TURN_TOKENS, LAST_TURN_TOKENS, turns).astype(int).tolist()
    return lengths


def prompts(texts: list[TokenArray], turns: int, interleaved: bool) -> Iterator[TokenArray]:
    """The prompt of every turn, session after session or all sessions turn by turn."""
    lengths = turn_lengths(turns)
    if interleaved:
        return (text[:length] for length in lengths for text in texts)
    return (text[:length] for text in texts for length in lengths)


def measure_turns(kind: str, texts: list[TokenArray], turns: int, capacity: int, interleaved: bool) -> TurnTimes:
    cache = CACHES[kind](capacity - capacity % PAGE_SIZES[kind], PAGE_SIZES[kind])
    times: dict[str, list[int]] = {name: [] for name in ("hash", "match", "lock", "allocate", "insert", "unlock")}
    for prompt in prompts(texts, turns, interleaved):
        run_turn(cache, prompt, times)
    cache.check_integrity()
    stats = cache.stats()
    return TurnTimes(
        cache=kind,
        workload="sessions interleaved" if interleaved else "one session after another",
        capacity=capacity,
        hash=median_us(times["hash"]) if kind == "block-hash" else None,
        match=median_us(times["match"]),
        lock=median_us(times["lock"]),
        allocate=median_us(times["allocate"]),
        insert=median_us(times["insert"]),
        unlock=median_us(times["unlock"]),
        hit_rate=stats.hit_tokens / stats.query_tokens,
        evicted=stats.evicted,
    )


def run_turn(cache: PrefixCache, prompt: TokenArray, times: dict[str, list[int]]) -> None:
    """One request, as the scheduler has it: the whole prompt is computed at once and nothing is generated."""
    view = cache.view()
    peeked: list[int] = []  # the first look-up makes the keys, if there are any; the second knows them
    timed(peeked, view.peek, prompt)
    timed(peeked, view.peek, prompt)
    times["hash"].append(peeked[0] - peeked[1])
    match = timed(times["match"], view.match_prefix, prompt)
    timed(times["lock"], cache.lock, match.handle)
    missing = len(prompt) - match.length
    last = int(match.slots[-1]) if match.length else None
    new = timed(times["allocate"], cache.allocate, missing + -missing % cache.page_size, after=last)
    slots = np.concatenate([match.slots, new])
    stored = timed(times["insert"], view.insert, prompt, slots=slots[: len(prompt)])
    cache.lock(stored.handle)
    cache.unlock(match.handle)
    cache.free(slots[stored.length :])
    timed(times["unlock"], cache.unlock, stored.handle)


def measure_allocator(count: int, turns: int) -> AllocatorTimes:
    """The allocator alone under the same sessions, ten at a time; there is room for a quarter, and the oldest go."""
    capacity = max(count // 4, 10) * LAST_TURN_TOKENS
    allocator = ExtentAllocator(capacity)
    allocate_ns: list[int] = []
    free_ns: list[int] = []
    runs: list[int] = []
    alive: deque[list[SlotArray]] = deque()
    steps = np.diff([0, *turn_lengths(turns)]).tolist()
    for begin in range(0, count, 10):
        group: list[list[SlotArray]] = [[] for _ in range(min(10, count - begin))]
        for step in steps:
            for parts in group:
                while allocator.num_free < step:
                    timed(free_ns, allocator.free, np.concatenate(alive.popleft()))
                after = int(parts[-1][-1]) if parts else None
                parts.append(timed(allocate_ns, allocator.allocate, step, after=after))
        alive.extend(group)
        runs += [len(runs_of(np.concatenate(parts))) for parts in group]
    for parts in alive:
        timed(free_ns, allocator.free, np.concatenate(parts))
    allocator.check_integrity()
    return AllocatorTimes(capacity, median_us(allocate_ns), median_us(free_ns), statistics.mean(runs))


def print_turns(rows: list[TurnTimes]) -> None:
    print(
        f"{'median µs':<38}{'slots':>11}{'hash':>9}{'match':>9}{'lock':>8}{'allocate':>10}{'insert':>9}{'unlock':>8}"
        f"{'hit rate':>10}{'evicted':>12}"
    )
    for row in rows:
        hashed = "–" if row.hash is None else f"{row.hash:.1f}"
        print(
            f"{row.cache + ', ' + row.workload:<38}{row.capacity:>11,}{hashed:>9}{row.match:>9.1f}{row.lock:>8.1f}"
            f"{row.allocate:>10.1f}{row.insert:>9.1f}{row.unlock:>8.1f}{row.hit_rate:>10.1%}{row.evicted:>12,}"
        )
    print("\nFor comparison, measured earlier on another 2-core machine with the same turns (not by this run), µs:")
    for engine, figures in REFERENCES.items():
        print(f"  {engine:<36}" + ", ".join(f"{operation} {value:,}" for operation, value in figures.items()))


def print_allocator(row: AllocatorTimes) -> None:
    print(
        f"\nallocator alone, {row.capacity:,} slots, µs: a turn's slots {row.allocate:.1f}, giving a session's back "
        f"{row.free:.1f}; a session of {LAST_TURN_TOKENS:,} tokens lies in {row.runs_per_session:.1f} runs"
    )


def print_growth(rows: list[Growth]) -> None:
    print("\nmedian µs as the structure grows, and the exponent of growth (0 is flat, 1 in proportion)")
    for row in rows:
        figures = "  ".join(f"{size:,}: {median:.1f}" for size, median in zip(row.sizes, row.medians_us, strict=True))
        print(f"  {row.by + ', ' + row.cache + ', ' + row.operation:<58}{row.exponent:>6.2f}   {figures}")


def not_flat(rows: list[Growth]) -> list[str]:
    """Evictions that take longer the more there is to choose from."""
    return [
        f"{row.cache}: {row.operation} takes {row.medians_us[-1] / row.medians_us[0]:.1f} times as long with "
        f"{row.sizes[-1]:,} leaves as with {row.sizes[0]:,}"
        for row in rows
        if row.by == "leaves" and row.medians_us[-1] > MOST_EVICTION_GROWTH * row.medians_us[0]
    ]


def main() -> None:
    """Measure, print, draw, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--out", type=Path, help="JSON file for the figures; the plots get its name with .svg and .png")
    options = parser.parse_args()

    texts = sessions(options.sessions, np.random.default_rng(0))
    everything = ROOT_TOKENS + options.sessions * (LAST_TURN_TOKENS - ROOT_TOKENS + max(PAGE_SIZES.values()))
    turn_rows = [
        measure_turns(kind, texts, options.turns, capacity, interleaved)
        for kind in PAGE_SIZES
        for capacity in (everything, SMALL_CAPACITY)
        for interleaved in (False, True)
    ]
    print_turns(turn_rows)
    allocator_row = measure_allocator(options.sessions, options.turns)
    print_allocator(allocator_row)
    growth_rows = measure_growth(PAGE_SIZES)
    print_growth(growth_rows)
    keep(
        options.out,
        {
            "workload": __doc__,
            "turns_us": [row._asdict() for row in turn_rows],
            "allocator_us": allocator_row._asdict(),
            "growth_us": [row._asdict() for row in growth_rows],
            "measured_elsewhere_us": REFERENCES,
        },
    )
    if options.out is not None:
        from benchmarks.growth_plot import draw_growth

        draw_growth(growth_rows, options.out)
    if complaints := not_flat(growth_rows):
        sys.exit("\n".join(complaints))


if __name__ == "__main__":
    main()
