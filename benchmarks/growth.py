"""How the time of one operation grows with the structure it works on: with the length of a sequence, the number of
sessions, the number of leaves and the number of free extents.

Every structure is built once at each size; then an operation is timed again and again on it, each time undone or done
to something else, so that the size stays what it was.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.measuring import median_us, timed
from mainstem.pages import ExtentAllocator, Run
from mainstem.tree import CACHES, PrefixCache, TokenArray

VOCABULARY = 50_000
LENGTHS = (256, 1_024, 4_096, 16_384, 65_536, 262_144)
SESSIONS = (1, 10, 100, 1_000, 10_000)
SESSION_ROOT_TOKENS, SESSION_TOKENS = 1_008, 240
LEAVES = (50, 500, 5_000, 50_000)
LEAF_ROOT_TOKENS, LEAF_TOKENS = 32, 16
EXTENTS = (100, 1_000, 10_000, 100_000)
LONGEST_EXTENT, ALLOCATED = 64, 64
REPEATS = 25
MOST_EVICTIONS = 300


class Growth(NamedTuple):
    """Times of one operation at growing sizes.

    Attributes:
        by: what grows.
        cache: whose operation it is.
        operation: what is timed.
        sizes: how much of `by` there was.
        medians_us: microseconds at each size; so are the tenth and the ninetieth percentile.
        exponent: slope of the medians in a picture with two logarithmic axes, by least squares.
    """

    by: str
    cache: str
    operation: str
    sizes: list[int]
    medians_us: list[float]
    p10_us: list[float]
    p90_us: list[float]
    exponent: float


class _Sample(NamedTuple):
    """Nanoseconds of one operation at one size."""

    cache: str
    operation: str
    size: int
    times: list[int]


def measure_growth(page_sizes: Mapping[str, int]) -> list[Growth]:
    """Measure every operation of the caches named, each with its page size, and of the allocator."""
    rows: list[Growth] = []
    for kind, page in page_sizes.items():
        rows += _grow("sequence length", (sample for size in LENGTHS for sample in _by_length(kind, page, size)))
        rows += _grow("sessions", (sample for size in SESSIONS for sample in _by_sessions(kind, page, size)))
        rows += _grow("leaves", (sample for size in LEAVES for sample in _by_leaves(kind, page, size)))
    return rows + _grow("free extents", (sample for size in EXTENTS for sample in _by_extents(size)))


def _grow(by: str, samples: Iterator[_Sample]) -> list[Growth]:
    grouped: dict[tuple[str, str], list[_Sample]] = {}
    for sample in samples:
        grouped.setdefault((sample.cache, sample.operation), []).append(sample)
    return [_growth_of(by, *name, group) for name, group in grouped.items()]


def _growth_of(by: str, cache: str, operation: str, samples: list[_Sample]) -> Growth:
    sizes = [sample.size for sample in samples]
    medians = [median_us(sample.times) for sample in samples]
    p10, p90 = ([float(np.percentile(sample.times, q)) / 1e3 for sample in samples] for q in (10, 90))
    slope, _ = np.polyfit(np.log(sizes), np.log(medians), 1)
    return Growth(by, cache, operation, sizes, medians, p10, p90, float(slope))


def _random_tokens(rng: np.random.Generator, n: int) -> TokenArray:
    return rng.integers(0, VOCABULARY, n, dtype=np.int32)


def _by_length(kind: str, page: int, length: int) -> Iterator[_Sample]:
    """A sequence that is all cached is looked up; another, of which nothing is, comes in."""
    rng = np.random.default_rng(length)
    cache = CACHES[kind](2 * length + 2 * page, page)
    known = _random_tokens(rng, length)
    cache.lock(cache.insert(known).handle)
    hash_ns: list[int] = []
    match_ns: list[int] = []
    insert_ns: list[int] = []
    for _ in range(REPEATS):
        view = cache.view()
        looked_up: list[int] = []
        timed(looked_up, view.peek, known)
        timed(looked_up, view.peek, known)
        hash_ns.append(max(looked_up[0] - looked_up[1], 1))
        timed(match_ns, view.match_prefix, known)
        new = _random_tokens(rng, length)
        view = cache.view()
        view.peek(new)
        timed(insert_ns, view.insert, new)
        cache.reset()
    if kind == "block-hash":
        yield _Sample(kind, "hash", length, hash_ns)
    yield _Sample(kind, "match", length, match_ns)
    yield _Sample(kind, "insert", length, insert_ns)


def _by_sessions(kind: str, page: int, count: int) -> Iterator[_Sample]:
    """One of many sessions over one root is looked up; a new one comes in, and the oldest goes."""
    rng = np.random.default_rng(count)
    root = _random_tokens(rng, SESSION_ROOT_TOKENS)
    tails = rng.integers(0, VOCABULARY, (count, SESSION_TOKENS), dtype=np.int32)
    cache = CACHES[kind](SESSION_ROOT_TOKENS + (count + 1) * SESSION_TOKENS, page)
    cache.lock(cache.insert(root).handle)
    for tail in tails:
        cache.insert(np.concatenate([root, tail]))
    match_ns: list[int] = []
    insert_ns: list[int] = []
    for index in rng.integers(0, count, REPEATS):
        view = cache.view()
        prompt = np.concatenate([root, tails[index]])
        view.peek(prompt)
        timed(match_ns, view.match_prefix, prompt)
    for _ in range(REPEATS):
        view = cache.view()
        prompt = np.concatenate([root, _random_tokens(rng, SESSION_TOKENS)])
        view.peek(prompt)
        timed(insert_ns, view.insert, prompt)
    cache.check_integrity()
    yield _Sample(kind, "match", count, match_ns)
    yield _Sample(kind, "insert", count, insert_ns)


def _by_leaves(kind: str, page: int, count: int) -> Iterator[_Sample]:
    """Leaves are evicted one by one: in the order they came in, then after all were used again in random order."""
    cache, texts = _forest(kind, page, count)
    evictions = min(count // 4, MOST_EVICTIONS)
    yield _Sample(kind, "evict a leaf", count, _evict(cache, LEAF_TOKENS, evictions))
    left = texts[evictions:]
    random.Random(count).shuffle(left)
    for text in left:
        handle = cache.match_prefix(text).handle
        cache.lock(handle)
        cache.unlock(handle)
    yield _Sample(kind, "evict a leaf, all used again in random order", count, _evict(cache, LEAF_TOKENS, evictions))
    if page == 1:
        yield _Sample(kind, "evict the last token of a leaf", count, _evict(cache, 1, evictions))
    cache.check_integrity()


def _forest(kind: str, page: int, leaves: int) -> tuple[PrefixCache, list[TokenArray]]:
    """A full cache that has this many leaves below one shared root, and the sequences in it."""
    rng = np.random.default_rng(leaves)
    root = _random_tokens(rng, LEAF_ROOT_TOKENS)
    tails = rng.integers(0, VOCABULARY, (leaves, LEAF_TOKENS), dtype=np.int32)
    tails[:, 0] = np.arange(leaves)
    texts = [np.concatenate([root, tail]) for tail in tails]
    cache = CACHES[kind](LEAF_ROOT_TOKENS + tails.size, page)
    for text in texts:
        cache.insert(text)
    return cache, texts


def _evict(cache: PrefixCache, tokens: int, count: int) -> list[int]:
    times: list[int] = []
    for _ in range(count):
        timed(times, cache.evict, tokens)
    return times


def _by_extents(count: int) -> Iterator[_Sample]:
    """Slots are taken from memory in many pieces and given back."""
    rng = np.random.default_rng(count)
    lengths = rng.integers(1, LONGEST_EXTENT + 1, (count, 2))
    ends = np.cumsum(lengths.reshape(-1)).reshape(count, 2)
    allocator = ExtentAllocator(int(ends[-1, 1]))
    allocator.allocate_runs(allocator.num_slots)
    allocator.free_runs([Run(int(free), int(used)) for free, used in ends])
    allocate_ns: list[int] = []
    free_ns: list[int] = []
    for _ in range(MOST_EVICTIONS):
        slots = timed(allocate_ns, allocator.allocate, ALLOCATED)
        timed(free_ns, allocator.free, slots)
    allocator.check_integrity()
    yield _Sample("allocator", f"take {ALLOCATED} slots", count, allocate_ns)
    yield _Sample("allocator", f"give {ALLOCATED} slots back", count, free_ns)
