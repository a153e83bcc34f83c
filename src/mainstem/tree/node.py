"""A node of the radix tree, and the order in which nodes were last used.

It knows how nodes are linked to one another; what to split, lock or evict is decided in `mainstem.tree.radix`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from mainstem.pages import SlotArray
from mainstem.tree.interface import PrefixHandle
from mainstem.tree.keys import NamespaceKey, TokenArray

ChildKey: TypeAlias = int | bytes
"""The first token of an edge, or the bytes of its first page when pages have several tokens."""

NO_TOKENS: TokenArray = np.empty(0, dtype=np.int32)


class Node(PrefixHandle):
    """One edge of the tree and the node at its lower end; its own handle.

    A node always stands for the same prefix, the one that ends with its last token. Splitting an edge puts a new node
    above; trimming one puts a new, shorter node in its place. So a handle never comes to mean other tokens.

    Attributes:
        key: int32 array, the tokens of the edge; never empty.
        slots: int32 array of the same shape, where their KV lies.
        parent: the node above, a `Root` at the top.
        children: the nodes below, by the beginning of their edges.
        pins: locks taken on this node itself and not yet released.
        locks: `pins` and the locks of all children; the node can go when there is none.
        last_used: when the node was last matched, inserted or released, as `time.monotonic()` tells.
        home: the order of use of the cache that the node belongs to; None once it has been evicted.
        older: the node used next before this one, while it is in a `RecencyList`.
        newer: the node used next after this one.
    """

    __slots__ = ("children", "home", "key", "last_used", "locks", "newer", "older", "parent", "pins", "slots")

    older: Node
    newer: Node

    def __init__(
        self, key: TokenArray, slots: SlotArray, parent: Node | None, home: RecencyList | None, last_used: float = 0.0
    ) -> None:
        self.key = key
        self.slots = slots
        self.parent = parent
        self.children: dict[ChildKey, Node] = {}
        self.pins = 0
        self.locks = 0
        self.last_used = last_used
        self.home = home

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: edge of {len(self.key)} tokens, {self.locks} locks>"

    def compact(self) -> None:
        """Let go of much longer arrays of which the node's own are views since a split."""
        base = self.key.base
        if isinstance(base, np.ndarray) and len(base) > 2 * len(self.key):
            self.key = self.key.copy()
            self.slots = self.slots.copy()

    def bury(self) -> None:
        """Mark the node as evicted, and let go of all others so that an old handle keeps none of them in memory."""
        self.home = None
        self.parent = None
        del self.older, self.newer


class Root(Node):
    """The top of one namespace's tree. It has no tokens and is never handed out as a handle.

    Attributes:
        namespace: under which the tree is kept.
    """

    __slots__ = ("namespace",)

    def __init__(self, namespace: NamespaceKey, home: RecencyList) -> None:
        super().__init__(NO_TOKENS, NO_TOKENS, None, home)
        self.namespace = namespace


class RecencyList:
    """All nodes that no lock protects, least recently used first: a ring of links through the nodes themselves.

    Whoever uses a prefix moves its nodes to the end, the deepest first. A node is therefore always older than its
    parent, and the oldest of all is always a leaf: the order of use is also the order of eviction. Every operation
    takes constant time.
    """

    def __init__(self) -> None:
        self._end = Node(NO_TOKENS, NO_TOKENS, None, None)
        self._end.older = self._end.newer = self._end

    def oldest(self) -> Node | None:
        """The node to evict first; None when the list is empty."""
        node = self._end.newer
        return None if node is self._end else node

    def append(self, node: Node) -> None:
        """Put a node in as the most recently used one."""
        self.insert_after(self._end.older, node)

    def insert_after(self, older: Node, node: Node) -> None:
        """Put a node in as the one used next after `older`."""
        newer = older.newer
        node.older = older
        node.newer = newer
        older.newer = node
        newer.older = node

    def remove(self, node: Node) -> None:
        """Take a node out."""
        node.older.newer = node.newer
        node.newer.older = node.older

    def __iter__(self) -> Iterator[Node]:
        node = self._end.newer
        while node is not self._end:
            yield node
            node = node.newer
