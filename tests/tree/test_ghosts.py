"""What left a cache is known, bounded, and told to nobody else."""

from __future__ import annotations

import numpy as np

from mainstem.tree import EvictionReason, RadixCache, TokenArray
from mainstem.tree.ghosts import _GHOST_SIZE, TreeGhosts
from mainstem.tree.tenancy import public_namespace


def ids(*tokens: int) -> TokenArray:
    return np.array(tokens, np.int32)


def find(
    ghosts: TreeGhosts, cache: RadixCache, tokens: TokenArray, namespace: tuple[str, ...] = ()
) -> list[tuple[int, int]]:
    """Where tokens were lost that the cache once had."""
    start = cache.peek(tokens, namespace).length
    return [(lost.start, lost.stop) for lost in ghosts.find(tokens, cache.view(namespace), namespace, start)]


def test_nothing_is_told_of_what_was_never_there() -> None:
    cache = RadixCache(100)
    ghosts = TreeGhosts(cache, 1000)
    cache.insert([1, 2, 3])
    assert find(ghosts, cache, ids(1, 2, 3)) == []
    cache.evict(3)
    assert find(ghosts, cache, ids(4, 5)) == []
    assert find(ghosts, cache, ids(1, 2, 3, 4)) == [(0, 3)]
    assert find(ghosts, cache, ids(1, 2, 3), ("other",)) == []


def test_ghosts_of_branches_hang_below_what_is_there_and_go_with_it() -> None:
    cache = RadixCache(100)
    ghosts = TreeGhosts(cache, 1000)
    for branch in ((4, 5), (6, 7)):
        cache.insert([1, 2, 3, *branch])
    cache.evict(4)
    assert find(ghosts, cache, ids(1, 2, 3, 4, 5)) == [(3, 5)]
    cache.evict(3)
    for branch in ((4, 5), (6, 7)):
        assert find(ghosts, cache, ids(1, 2, 3, *branch))[-1][1] == 5
    cache.insert([1, 2, 3, 6])
    assert find(ghosts, cache, ids(1, 2, 3, 4, 5)) == [(3, 5)]
    assert find(ghosts, cache, ids(1, 2, 3, 6, 7)) == [(4, 5)]


def test_older_ghosts_too_go_with_what_they_hang_below() -> None:
    cache = RadixCache(100)
    ghosts = TreeGhosts(cache, 70)
    long = [1, 2, 3, *range(10, 50)]
    cache.insert(long)
    cache.insert([1, 2, 3, 9])
    cache.evict(40)
    assert ghosts._older.size > 0, "the long branch is to be of the older generation"
    cache.evict(1)
    cache.evict(3)
    assert find(ghosts, cache, ids(*long))[-1][1] == len(long)


def test_of_two_tales_the_newer_is_told() -> None:
    cache = RadixCache(100)
    ghosts = TreeGhosts(cache, 1000)
    cache.insert([1, 2, 3, 4])
    cache.evict(2)
    cache.insert([1, 2, 3, 4])
    ghosts.room_for = "second"
    cache.evict(1)
    told = ghosts.find(ids(1, 2, 3, 4), cache.view(), (), 3)
    assert [(lost.stop, lost.fate.room_for) for lost in told] == [(4, "second")]
    cache.reset()
    told = ghosts.find(ids(1, 2, 3, 4), cache.view(), (), 0)
    assert {lost.stop <= 3: lost.fate.reason for lost in told} == {
        True: EvictionReason.RESET,
        False: EvictionReason.LRU,
    }


def test_what_is_evicted_longest_ago_is_forgotten_first() -> None:
    cache = RadixCache(10_000)
    ghosts = TreeGhosts(cache, 1_000)
    for i in range(200):
        cache.insert([i, *range(1000, 1050)])
        cache.reset()
    assert find(ghosts, cache, ids(199, *range(1000, 1050))) == [(0, 51)]
    assert find(ghosts, cache, ids(0, *range(1000, 1050))) == []
    assert ghosts._younger.size + ghosts._older.size < 3_000


def test_what_ghosts_take_is_counted() -> None:
    """Where they are split, and where two become one."""
    cache, rng = RadixCache(60), np.random.default_rng(5)
    ghosts = TreeGhosts(cache, 10**6)
    for _ in range(200):
        cache.insert(rng.integers(0, 2, rng.integers(1, 12)).astype(np.int32))
        cache.evict(int(rng.integers(0, 20)))
        left = [*ghosts._younger._tops.values(), *ghosts._younger._below.values()]
        size = 0
        while left:
            ghost = left.pop()
            size += len(ghost.key) + _GHOST_SIZE if len(ghost.key) else 0
            left += ghost.children.values()
        assert ghosts._younger.size == size


def test_a_deep_chain_goes_leaf_by_leaf() -> None:
    cache = RadixCache(20_000)
    ghosts = TreeGhosts(cache, 10_000_000)
    for cycle in range(2):
        for length in range(1, 10_000, 10):
            cache.insert(np.arange(length, dtype=np.int32))
        cache.reset()
        assert cycle in (0, 1)
    assert find(ghosts, cache, np.arange(9_000, dtype=np.int32))[-1][1] == 9_000


def test_tenants_whose_tokens_continue_a_public_prefix_are_told_of_their_own() -> None:
    cache = RadixCache(1000, by_tenant=True)
    ghosts = TreeGhosts(cache, 10_000)
    alice, bob = ("tenant", "alice", "model", "m"), ("tenant", "bob", "model", "m")
    cache.declare_public(ids(1, 2, 3), public_namespace(alice))
    cache.insert([1, 2, 3, 4, 5], alice)
    cache.insert([1, 2, 3, 6], bob)
    for tenant in (alice, bob):
        cache.reset_tenant(tenant[:2])
    assert find(ghosts, cache, ids(1, 2, 3, 4, 5), alice) == [(3, 5)]
    assert find(ghosts, cache, ids(1, 2, 3, 4, 5), bob) == []
    cache.reset()  # the public prefix too
    assert find(ghosts, cache, ids(1, 2, 3, 4, 5), alice)[-1][1] == 5
    assert find(ghosts, cache, ids(1, 2, 3, 4, 5), bob) == [(0, 3)]
