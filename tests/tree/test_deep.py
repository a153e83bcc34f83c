"""A tree far deeper than Python's recursion limit."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from mainstem.tree import RadixCache

DEPTH = 100_000


@pytest.fixture
def chain() -> RadixCache:
    """One sequence cut into a node per token, by matches that end one token earlier each time."""
    cache = RadixCache(DEPTH + 10)
    tokens = np.zeros(DEPTH, dtype=np.int32)
    cache.insert(tokens)
    for length in range(DEPTH - 1, 0, -1):
        cache.match_prefix(tokens[:length])
    return cache


def test_a_tree_100_000_nodes_deep_works(chain: RadixCache) -> None:
    assert chain.stats().num_nodes == DEPTH > 10 * sys.getrecursionlimit()
    tokens = np.zeros(DEPTH, dtype=np.int32)
    handle = chain.match_prefix(tokens).handle
    chain.lock(handle)
    assert chain.stats().protected == DEPTH
    chain.check_integrity()
    assert chain.insert(np.append(tokens, 1).astype(np.int32)).num_cached == DEPTH
    chain.unlock(handle)
    assert chain.evict(DEPTH // 2) == DEPTH // 2
    assert chain.peek(tokens).length == DEPTH // 2 + 1
    chain.check_integrity()
    chain.reset()
    assert (chain.stats().num_nodes, chain.stats().free) == (0, DEPTH + 10)
