"""A node of the radix tree.

It knows how nodes are linked to one another. What to split or lock is decided in `mainstem.tree.radix`, what goes first
in `mainstem.tree.order`, and which nodes are whose in `mainstem.tree.sessions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mainstem.pages import SlotArray
from mainstem.tree.eviction import EvictionReason
from mainstem.tree.interface import PrefixHandle
from mainstem.tree.keys import NamespaceKey, TokenArray

if TYPE_CHECKING:
    from mainstem.tree.fair import FairOrder
    from mainstem.tree.order import Ring
    from mainstem.tree.sessions import Session
    from mainstem.tree.tenancy import Space

EdgeKey: TypeAlias = int | bytes
"""The first token of an edge, or the bytes of its first page when pages have several tokens."""

ChildKey: TypeAlias = EdgeKey | tuple[NamespaceKey, EdgeKey]
"""Under which a node keeps a child; with its namespace where the child is a tenant's and the node is not."""

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
        last_used: when the node was last matched, inserted or released; see `EvictionOrder.tick`.
        space: the part of the tree that it is in, and so whose it is.
        home: the order of eviction of the cache that the node belongs to; None once it has been evicted.
        ring: where in that order the node is, or will be when no lock protects it any more.
        branches: how many edges have begun below it since it came.
        fate: why it goes when it is evicted to make room.
        user: the session that alone has used it; None as long as nobody has said who does.
        older: the node used next before this one, while it is in a `Ring`.
        newer: the node used next after this one.
    """

    __slots__ = (
        "branches",
        "children",
        "fate",
        "home",
        "key",
        "last_used",
        "locks",
        "newer",
        "older",
        "parent",
        "pins",
        "ring",
        "slots",
        "space",
        "user",
    )

    older: Node
    newer: Node
    ring: Ring

    space: Space

    def __init__(self, key: TokenArray, slots: SlotArray, parent: Node | None, home: FairOrder | None) -> None:
        self.key = key
        self.slots = slots
        self.parent = parent
        self.children: dict[ChildKey, Node] = {}
        self.pins = 0
        self.locks = 0
        self.last_used = 0.0
        self.home = home
        self.branches = 0
        self.fate = EvictionReason.LRU
        self.user: Session | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: edge of {len(self.key)} tokens, {self.locks} locks>"

    def path(self) -> list[Node]:
        """From the one below the root to this node."""
        above, node = [], self
        while node.parent is not None:
            above.append(node)
            node = node.parent
        return above[::-1]

    def compact(self) -> None:
        """Let go of much longer arrays of which the node's own are views since a split."""
        base = self.key.base
        if isinstance(base, np.ndarray) and len(base) > 2 * len(self.key):
            self.key = self.key.copy()
            self.slots = self.slots.copy()

    def bury(self) -> None:
        """Mark the node as evicted, and let go of all it refers to, so that an old handle keeps nothing in memory."""
        self.home = None
        self.parent = None
        self.user = None
        self.key = self.slots = NO_TOKENS
        del self.older, self.newer, self.ring, self.space


class Root(Node):
    """The top of one namespace's tree. It has no tokens and is never handed out as a handle.

    It is kept under its space's namespace.
    """

    __slots__ = ()

    def __init__(self, space: Space, home: FairOrder) -> None:
        super().__init__(NO_TOKENS, NO_TOKENS, None, home)
        self.space = space

    @property
    def namespace(self) -> NamespaceKey:
        """Its key."""
        return self.space.namespace
