"""Hits of this project's caches against capacity."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.bench.trace import ARMS, BlockTrace, Hits, choose_capacities, measure, policies
from mainstem.bench.trace.curves import cache_hits
from tests.bench.trace.support import trace_of, traces


def _ignore(policy: str, requests: int) -> None:
    pass


@pytest.mark.parametrize("arm", ARMS)
@given(trace=traces(longest=6, requests=20), spare=st.integers(0, 6))
def test_every_cache_evicts_the_least_recently_used_leaf(arm: str, trace: BlockTrace, spare: int) -> None:
    capacity = trace.longest + spare
    assert list(cache_hits(trace, ARMS[arm](capacity))) == list(_plain_lru(trace, capacity))


def _plain_lru(trace: BlockTrace, capacity: int) -> Iterator[int]:
    """Leaf-first LRU by definition: of one prompt the deepest block counts as the least recently used."""
    used: OrderedDict[int, None] = OrderedDict()
    for request in trace.requests:
        blocks = request.blocks.tolist()
        yield sum(block in used for block in blocks)
        for block in reversed(blocks):
            used[block] = None
            used.move_to_end(block)
        while len(used) > capacity:
            used.popitem(last=False)


@given(traces(longest=5, requests=12), st.integers(0, 5))
def test_no_cache_beats_the_clairvoyant_one_and_that_not_the_infinite_one(trace: BlockTrace, spare: int) -> None:
    result = measure(trace, [trace.longest + spare], _ignore)
    *arms, best = (curve.hits[0].blocks for curve in result.curves)
    assert max(arms) <= best <= result.infinite.blocks


def test_hits_are_counted_in_blocks_and_in_the_tokens_they_hold() -> None:
    trace = trace_of([[1, 2], [1, 2], [1, 3]], block_size=16)
    shorter = trace._replace(requests=tuple(request._replace(tokens=20) for request in trace.requests))
    assert measure(shorter, [3], _ignore).infinite == Hits(blocks=3, tokens=36)


def test_progress_reaches_every_request_of_every_policy_at_every_capacity() -> None:
    told: dict[str, int] = {}

    def advance(policy: str, requests: int) -> None:
        told[policy] = told.get(policy, 0) + requests

    measure(trace_of([[number] for number in range(1234)]), [1, 7], advance)
    assert told == dict.fromkeys(policies(), 2 * 1234)


def test_default_capacities_hold_the_longest_prompt() -> None:
    trace = trace_of([list(range(100)), *([number] for number in range(1000, 1900))])
    assert choose_capacities(trace) == (100, 200, 300, 500, 1000)
