"""How long the radix tree's own operations take, with no model behind it.

    python -m benchmarks.bench_tree --out benchmarks/results/tree.json

The workload is that of a coding agent: sessions of ten turns that grow from 9,500 to 25,000 tokens over a root of 3,500
tokens that all share. Every turn is one match, one lock, one insert that allocates, and one unlock. A second part
evicts leaves one by one from trees of growing size. Figures are medians in microseconds, on one thread.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from benchmarks.measuring import keep
from mainstem.tree import RadixCache, TokenArray

P = ParamSpec("P")
T = TypeVar("T")

ROOT_TOKENS = 3_500
FIRST_TURN_TOKENS = 9_500
LAST_TURN_TOKENS = 25_000
VOCABULARY = 50_000
LEAF_TOKENS = 16
NUM_LEAVES = (1_000, 10_000, 50_000)

REFERENCES = {
    "SGLang 0.5.23, page 1, Python tree": {"match": 108, "insert": 100, "lock": 20},
    "SGLang 0.5.23, page 1, Rust tree": {"match": 50, "insert": 57, "lock": 9},
    "vLLM 0.33, blocks of 16": {"hash": 2_264, "match": 927, "allocate": 405},
}
"""Medians in microseconds of the same workload, measured earlier on another 2-core machine, not by this script."""


class TurnTimes(NamedTuple):
    """Medians of the operations of a turn in microseconds, and what the cache made of the workload."""

    workload: str
    capacity: int
    match: float
    lock: float
    insert: float
    unlock: float
    hit_rate: float
    evicted: int


class EvictionTimes(NamedTuple):
    """Microseconds to evict one leaf of a tree with `leaves` of them."""

    what: str
    leaves: int
    median: float
    p99: float
    worst: float


def timed(times: list[int], call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call, append the nanoseconds it took, and return its result."""
    begin = time.perf_counter_ns()
    result = call(*args, **kwargs)
    times.append(time.perf_counter_ns() - begin)
    return result


def median_us(times: list[int]) -> float:
    """The median of some nanoseconds, in microseconds."""
    return statistics.median(times) / 1e3


def sessions(count: int, rng: np.random.Generator) -> list[TokenArray]:
    """The whole text of every session; all begin with the same root."""
    root = rng.integers(0, VOCABULARY, ROOT_TOKENS, dtype=np.int32)
    own = LAST_TURN_TOKENS - ROOT_TOKENS
    return [np.concatenate([root, rng.integers(0, VOCABULARY, own, dtype=np.int32)]) for _ in range(count)]


def prompts(texts: list[TokenArray], turns: int, interleaved: bool) -> Iterator[TokenArray]:
    """The prompt of every turn, session after session or all sessions turn by turn."""
    lengths = np.linspace(FIRST_TURN_TOKENS, LAST_TURN_TOKENS, turns).astype(int).tolist()
    if interleaved:
        return (text[:length] for length in lengths for text in texts)
    return (text[:length] for text in texts for length in lengths)


def measure_turns(texts: list[TokenArray], turns: int, capacity: int, interleaved: bool) -> TurnTimes:
    cache = RadixCache(capacity)
    match_ns: list[int] = []
    lock_ns: list[int] = []
    insert_ns: list[int] = []
    unlock_ns: list[int] = []
    for prompt in prompts(texts, turns, interleaved):
        handle = timed(match_ns, cache.match_prefix, prompt).handle
        timed(lock_ns, cache.lock, handle)
        timed(insert_ns, cache.insert, prompt)
        timed(unlock_ns, cache.unlock, handle)
    cache.check_integrity()
    stats = cache.stats()
    return TurnTimes(
        workload="sessions interleaved" if interleaved else "one session after another",
        capacity=capacity,
        match=median_us(match_ns),
        lock=median_us(lock_ns),
        insert=median_us(insert_ns),
        unlock=median_us(unlock_ns),
        hit_rate=stats.hit_tokens / stats.query_tokens,
        evicted=stats.evicted,
    )


def forest(leaves: int) -> tuple[RadixCache, list[TokenArray]]:
    """A full cache whose tree has this many leaves below one shared root, and the sequences in it."""
    rng = np.random.default_rng(leaves)
    root = rng.integers(0, VOCABULARY, 100, dtype=np.int32)
    tails = rng.integers(0, VOCABULARY, (leaves, LEAF_TOKENS), dtype=np.int32)
    tails[:, 0] = np.arange(leaves)
    texts = [np.concatenate([root, tail]) for tail in tails]
    cache = RadixCache(len(root) + tails.size)
    for text in texts:
        cache.insert(text)
    return cache, texts


def measure_eviction(leaves: int, what: str) -> EvictionTimes:
    """Evict 900 leaves one by one: as they were inserted, after each was used once more, or a token of each."""
    cache, texts = forest(leaves)
    if what == "leaf, all used again in random order":
        random.Random(leaves).shuffle(texts)
        for text in texts:
            cache.match_prefix(text)
    size = 1 if what == "last token of a leaf" else LEAF_TOKENS
    times: list[int] = []
    for _ in range(900):
        timed(times, cache.evict, size)
    cache.check_integrity()
    times.sort()
    return EvictionTimes(what, leaves, median_us(times), times[-9] / 1e3, times[-1] / 1e3)


def print_turns(rows: list[TurnTimes]) -> None:
    print(
        f"{'median µs':<28}{'slots':>11}{'match':>9}{'lock':>7}{'insert':>9}{'unlock':>8}"
        f"{'hit rate':>10}{'evicted':>12}"
    )
    for row in rows:
        print(
            f"{row.workload:<28}{row.capacity:>11,}{row.match:>9.1f}{row.lock:>7.1f}{row.insert:>9.1f}"
            f"{row.unlock:>8.1f}{row.hit_rate:>10.1%}{row.evicted:>12,}"
        )
    print("\nFor comparison, measured earlier on another 2-core machine with the same workload (not by this run), µs:")
    for engine, figures in REFERENCES.items():
        print(f"  {engine:<36}" + ", ".join(f"{operation} {value:,}" for operation, value in figures.items()))


def print_evictions(rows: list[EvictionTimes]) -> None:
    print(f"\n{'evicting one …, µs':<40}{'leaves':>8}{'median':>9}{'p99':>8}{'worst':>9}")
    for row in rows:
        print(f"{row.what:<40}{row.leaves:>8,}{row.median:>9.1f}{row.p99:>8.1f}{row.worst:>9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the operations of the radix tree.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--sessions", type=int, default=200, help="number of sessions (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=10, help="turns of a session (default: %(default)s)")
    options = parser.parse_args()

    texts = sessions(options.sessions, np.random.default_rng(0))
    everything = ROOT_TOKENS + options.sessions * (LAST_TURN_TOKENS - ROOT_TOKENS)
    turn_rows = [
        measure_turns(texts, options.turns, capacity, interleaved)
        for capacity in (everything, 1_000_000)
        for interleaved in (False, True)
    ]
    print_turns(turn_rows)
    eviction_rows = [
        measure_eviction(leaves, what)
        for what in ("leaf", "leaf, all used again in random order", "last token of a leaf")
        for leaves in NUM_LEAVES
    ]
    print_evictions(eviction_rows)
    keep(
        options.out,
        {
            "turns_us": [row._asdict() for row in turn_rows],
            "evictions_us": [row._asdict() for row in eviction_rows],
            "measured_elsewhere_us": REFERENCES,
        },
    )


if __name__ == "__main__":
    main()
