"""Verifies the structure of a radix tree against first principles.

It recomputes everything from the nodes and trusts no counter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from mainstem.pages import SlotArray
from mainstem.tree.fair import FairOrder
from mainstem.tree.keys import NamespaceKey
from mainstem.tree.node import ChildKey, Node, Root
from mainstem.tree.order import EvictionOrder
from mainstem.tree.tenancy import is_public, public_part


class Census(NamedTuple):
    """What the nodes add up to: their number, tokens without and with a lock, and all their slots."""

    num_nodes: int
    evictable: int
    locked: int
    slots: SlotArray


def check_tree(
    roots: Mapping[NamespaceKey, Root], order: FairOrder, page_size: int, key_of: Callable[[Node], ChildKey]
) -> Census:
    """Check every node and the order of use.

    Raises:
        AssertionError: naming the broken invariant.
    """
    nodes: list[Node] = []
    for namespace, root in roots.items():
        assert root.namespace == namespace, "a root is kept under another namespace"
        assert root.children, "a root without cached tokens is kept"
        assert root.parent is None, "a root has a parent"
        pending: list[Node] = [root]
        while pending:
            node = pending.pop()
            for key, child in node.children.items():
                assert child.parent is node, "a child is not linked to its parent"
                _check_node(child, order, page_size)
                _check_space(node, child)
                assert key == key_of(child), "a child is kept under a key that its edge does not begin with"
                nodes.append(child)
                pending.append(child)
    _check_accounts(order, nodes)
    unlocked = [node for node in nodes if node.locks == 0]
    evictable = sum(len(node.key) for node in unlocked)
    slots = np.concatenate([np.empty(0, np.int32), *(node.slots for node in nodes)])
    return Census(len(nodes), evictable, len(slots) - evictable, slots)


def _check_space(node: Node, child: Node) -> None:
    above, below = node.space.namespace, child.space.namespace
    assert below == above or is_public(above), "a node hangs below another tenant's"
    assert above == below or public_part(below) == above, "a node hangs below what is not public for it"


def _check_accounts(order: FairOrder, nodes: list[Node]) -> None:
    by_account: dict[int, list[Node]] = {id(account): [] for account in order.accounts.values()}
    for node in nodes:
        assert id(node.space.account) in by_account, "a node counts for an account that was closed"
        by_account[id(node.space.account)].append(node)
    for account in order.accounts.values():
        own = by_account[id(account)]
        assert sum(len(node.key) for node in own) == account.tokens, "the tokens of an account are miscounted"
        locked = sum(len(node.key) for node in own if node.locks)
        assert locked == account.locked, "the locked tokens of an account are miscounted"
        _check_order(account.order, [node for node in own if node.locks == 0])


def _check_node(node: Node, order: FairOrder, page_size: int) -> None:
    assert node.home is order, "a node of the tree belongs to another cache, or was evicted"
    assert len(node.key) > 0, "a node has no tokens"
    assert len(node.key) % page_size == 0, "an edge is not in whole pages"
    assert node.key.dtype == node.slots.dtype == np.int32, "tokens or slots are not int32"
    assert len(node.key) == len(node.slots), "a node has not one slot a token"
    assert node.pins >= 0, "a node is unlocked more often than it was locked"
    expected = node.pins + sum(child.locks for child in node.children.values())
    assert node.locks == expected, "the locks of a node are not its own and those of its children"
    if page_size > 1:
        pages = node.slots.reshape(-1, page_size)
        assert (pages[:, 0] % page_size == 0).all(), "a page does not begin at a multiple of the page size"
        assert (np.diff(pages, axis=1) == 1).all(), "the slots of a page are not consecutive"


def _check_order(order: EvictionOrder, unlocked: list[Node]) -> None:
    listed: list[Node] = []
    for ring in (order.given_up(), *order.rings()):
        nodes = list(islice(ring, len(unlocked) + 1))  # a broken ring may never end
        assert all(node.ring is ring for node in nodes), "a node is listed in another ring than its own"
        assert sum(len(node.key) for node in nodes) == ring.tokens, "the tokens of a ring are miscounted"
        for before, after in pairwise(nodes):
            assert before.newer is after, "the order of use is broken"
            assert after.older is before, "the order of use is broken"
            in_order = ring is order.given_up() or before.last_used <= after.last_used
            assert in_order, "the order of use differs from the times of use"
        listed += nodes
    position = {id(node): index for index, node in enumerate(listed)}
    assert len(position) == len(listed), "a node is listed twice in the order of use"
    assert position.keys() == {id(node) for node in unlocked}, (
        "the order of use does not list exactly the unlocked nodes"
    )
    for node in unlocked:
        for child in node.children.values():
            if child.space.account is not node.space.account:
                assert child.last_used <= node.last_used, "a public node was used before what hangs below it"
                continue
            if node.ring is child.ring or order.is_given_up(node):
                first = position[id(child)] < position[id(node)]
            elif order.is_doubtful(node):
                first = order.is_given_up(child)
            else:
                first = order.is_given_up(child) or child.last_used <= node.last_used
            assert first, "a node would be evicted before its child"
            _check_retention(order, node, child)


def _check_retention(order: EvictionOrder, node: Node, child: Node) -> None:
    above, below = order.retention_of(node), order.retention_of(child)
    if below is not None:
        assert above is not None, "a node is retained without its parent"
        assert above == above.joined(below), "a node is retained longer or more than its parent"
