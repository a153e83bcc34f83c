"""The model of the tree with which orders of eviction are tried."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.bench_end_bit import POLICIES, facts_of, replay, worth_of
from mainstem.bench.trace import BlockTrace, EndBit
from mainstem.bench.trace.sessions import find_turns, hits_with_end_bit
from tests.bench.trace.support import trace_of

CAPACITY = 60


def conversations() -> BlockTrace:
    """Every second conversation is asked once, and the others return, some with another end."""
    asked: list[list[int]] = []
    for number in range(250):
        asked += [[1000 + number, 1], [number, 2, 3]]
        if number >= 15:
            asked.append([number - 15, 2, 3 + number % 2, 5])
    return trace_of(asked)


def said(trace: BlockTrace, right: float, seed: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    draw = random.Random(seed)
    return np.array([EndBit(right).says(turn.is_last, draw.random()) for turn in find_turns(trace)])


def hits(policy: str, trace: BlockTrace, ends: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int]:
    facts = facts_of(trace, [turn.session for turn in find_turns(trace)])
    return list(replay(trace, facts, worth_of(policy, facts, ends), CAPACITY))


@pytest.mark.parametrize("right", [1.0, 0.9])
def test_with_its_rules_the_model_hits_as_the_tree_does(right: float) -> None:
    trace = conversations()
    in_tree = list(hits_with_end_bit(trace, find_turns(trace), EndBit(right), CAPACITY, seed=3))
    assert sum(in_tree) > 0
    assert sum(hits("rules", trace, said(trace, right, 3))) == pytest.approx(sum(in_tree), rel=0.02)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "tree"])
def test_no_policy_looks_ahead(policy: str) -> None:
    trace = conversations()
    ends = said(trace, 0.9, 0)
    begun = trace._replace(requests=trace.requests[:500])
    assert hits(policy, trace, ends)[:500] == hits(policy, begun, ends[:500])
