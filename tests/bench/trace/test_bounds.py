"""The infinite cache and the clairvoyant one, against plain definitions and exhaustive search."""

from __future__ import annotations

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.bench.trace import BlockTrace
from mainstem.bench.trace.bounds import clairvoyant_hits, infinite_hits, reuses
from tests.bench.trace.support import trace_of, traces


def _clairvoyant(trace: BlockTrace, capacity: int) -> list[int]:
    return list(clairvoyant_hits(trace.requests, reuses(trace), capacity))


def test_an_infinite_cache_misses_each_block_once() -> None:
    trace = trace_of([[1, 2, 3], [1, 2, 4], [5], [1, 2, 3], [1]])
    assert infinite_hits(trace).tolist() == [0, 2, 0, 3, 1]


def test_the_clairvoyant_cache_keeps_what_is_used_next() -> None:
    # To make room for [4], LRU would drop the end of [1, 2]; but [3] is used later.
    trace = trace_of([[1, 2], [3], [4], [1, 2], [3]])
    assert _clairvoyant(trace, 3) == [0, 0, 0, 2, 0]


def test_the_clairvoyant_cache_drops_the_end_of_a_prompt_before_its_beginning() -> None:
    trace = trace_of([[1, 2, 3], [4, 5], [1, 2, 3]])
    assert _clairvoyant(trace, 4) == [0, 0, 2]


def test_the_running_prompt_is_never_evicted_to_make_room_for_its_own_end() -> None:
    # [1] is used again, but while [2, 3] runs it needs both places.
    trace = trace_of([[1], [2, 3], [1]])
    assert _clairvoyant(trace, 2) == [0, 0, 0]


@given(traces(longest=6, requests=10))
def test_with_room_for_everything_the_clairvoyant_cache_is_infinite(trace: BlockTrace) -> None:
    assert _clairvoyant(trace, trace.distinct) == infinite_hits(trace).tolist()


@given(traces(longest=3, requests=7), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_no_choice_of_leaves_to_evict_hits_more(trace: BlockTrace, spare: int) -> None:
    capacity = trace.longest + spare
    assert sum(_clairvoyant(trace, capacity)) == _best_by_exhaustion(trace, capacity)


def _best_by_exhaustion(trace: BlockTrace, capacity: int) -> int:
    """The most block hits that any way of evicting leaves can reach, by trying them all."""
    parents = {
        block: above
        for request in trace.requests
        for above, block in zip([-1, *request.blocks.tolist()], request.blocks.tolist(), strict=False)
    }
    best: dict[frozenset[int], int] = {frozenset(): 0}  # what may be cached by now, and the most hits on the way there
    for request in trace.requests:
        prompt = frozenset(request.blocks.tolist())
        after: dict[frozenset[int], int] = {}
        for cached, hits in best.items():
            for kept in _evictions(cached, prompt, capacity, parents):
                reached = hits + len(cached & prompt)
                after[kept | prompt] = max(after.get(kept | prompt, 0), reached)
        best = after
    return max(best.values())


def _evictions(
    cached: frozenset[int], prompt: frozenset[int], capacity: int, parents: dict[int, int]
) -> set[frozenset[int]]:
    """Everything that may be left of the cache once it has room for the prompt; more may go than must."""
    seen = {cached}
    pending = [cached]
    while pending:
        now = pending.pop()
        inner = {parents[block] for block in chain(now, prompt)}
        for leaf in now - prompt:
            if leaf not in inner and (less := now - {leaf}) not in seen:
                seen.add(less)
                pending.append(less)
    return {kept for kept in seen if len(kept | prompt) <= capacity}
