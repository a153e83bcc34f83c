"""check_integrity finds every kind of damage; without this, the tests that call it would prove nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mainstem.tree import RadixCache
from mainstem.tree.fair import FairOrder
from mainstem.tree.node import Node, Root
from mainstem.tree.tenancy import Space


def build() -> RadixCache:
    """A cache with two namespaces, a branch, a lock and held slots. Pages of two tokens."""
    cache = RadixCache(64, page_size=2)
    cache.insert([1, 2, 3, 4])
    cache.lock(cache.insert([1, 2, 5, 6]).handle)
    cache.insert([7, 8], ("tenant",))
    cache.allocate(2)
    return cache


def top(cache: RadixCache) -> Node:
    """The node of [1, 2], which is locked and has two children."""
    (node,) = cache._roots[()].children.values()
    return node


def leaf(cache: RadixCache) -> Node:
    """The node of [3, 4], which is not locked."""
    return next(node for node in top(cache).children.values() if node.locks == 0)


def count_nodes(cache: RadixCache) -> None:
    cache._num_nodes += 1


def count_evictable(cache: RadixCache) -> None:
    cache._evictable -= 2


def count_cached(cache: RadixCache) -> None:
    cache._cached_tokens += 2


def forget_ownership(cache: RadixCache) -> None:
    cache._is_cached[leaf(cache).slots] = False


def share_a_slot(cache: RadixCache) -> None:
    leaf(cache).slots = top(cache).slots.copy()


def free_a_cached_slot(cache: RadixCache) -> None:
    cache.allocator.free(leaf(cache).slots)


def lock_without_a_path(cache: RadixCache) -> None:
    top(cache).locks -= 1


def lose_a_pin(cache: RadixCache) -> None:
    top(cache).pins -= 1
    top(cache).locks -= 1


def unlink_the_parent(cache: RadixCache) -> None:
    leaf(cache).parent = Root(cache._nothing.space, cache._order)


def misfile_a_child(cache: RadixCache) -> None:
    children = top(cache).children
    key, child = children.popitem()
    assert isinstance(key, int | bytes)
    children[bytes(reversed(key)) if isinstance(key, bytes) else key + 1] = child


def change_a_token(cache: RadixCache) -> None:
    leaf(cache).key[0] = 9


def empty_a_node(cache: RadixCache) -> None:
    node = leaf(cache)
    node.key, node.slots = node.key[:0], node.slots[:0]


def cut_a_page(cache: RadixCache) -> None:
    node = leaf(cache)
    node.key, node.slots = node.key[:1], node.slots[:1]


def lose_a_slot(cache: RadixCache) -> None:
    leaf(cache).slots = leaf(cache).slots[:1]


def turn_a_page_round(cache: RadixCache) -> None:
    leaf(cache).slots = leaf(cache).slots[::-1]


def widen_the_tokens(cache: RadixCache) -> None:
    leaf(cache).key = leaf(cache).key.astype(np.int64)


def unlist_a_node(cache: RadixCache) -> None:
    cache._order.remove(leaf(cache))


def list_a_locked_node(cache: RadixCache) -> None:
    cache._order.add(top(cache), cache._order.tick())


def break_the_ring(cache: RadixCache) -> None:
    node = leaf(cache)
    node.newer = node


def turn_back_time(cache: RadixCache) -> None:
    leaf(cache).last_used += 1e9


def list_a_parent_first(cache: RadixCache) -> None:
    cache.insert([7, 8, 9, 9], ("tenant",))
    (parent,) = cache._roots[(str, "tenant"),].children.values()
    (child,) = parent.children.values()
    cache._order.remove(child)
    cache._order.add(child, child.last_used)


def bury_a_living_node(cache: RadixCache) -> None:
    leaf(cache).home = FairOrder(0)


def keep_an_empty_root(cache: RadixCache) -> None:
    cache._root(((int, 1),))


def misfile_a_root(cache: RadixCache) -> None:
    cache._roots[()].space = Space(((int, 1),), cache._roots[()].space.account)


def hang_a_root_below_another(cache: RadixCache) -> None:
    cache._roots[()].parent = Root(cache._nothing.space, cache._order)


def damage_the_allocator(cache: RadixCache) -> None:
    cache.allocator._num_free += 1


@pytest.mark.parametrize(
    "damage",
    [
        count_nodes,
        count_evictable,
        count_cached,
        forget_ownership,
        share_a_slot,
        free_a_cached_slot,
        lock_without_a_path,
        lose_a_pin,
        unlink_the_parent,
        misfile_a_child,
        change_a_token,
        empty_a_node,
        cut_a_page,
        lose_a_slot,
        turn_a_page_round,
        widen_the_tokens,
        unlist_a_node,
        list_a_locked_node,
        break_the_ring,
        turn_back_time,
        list_a_parent_first,
        bury_a_living_node,
        keep_an_empty_root,
        misfile_a_root,
        hang_a_root_below_another,
        damage_the_allocator,
    ],
)
def test_check_integrity_notices(damage: Callable[[RadixCache], None]) -> None:
    cache = build()
    cache.check_integrity()
    damage(cache)
    with pytest.raises(AssertionError, match=r"\w"):
        cache.check_integrity()
