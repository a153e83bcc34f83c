"""The radix tree: a prefix cache that matches token by token and stores every shared prefix once.

It knows which slots belong to which tokens, who locks them and in which order they were used. It never sees a tensor.
The structure is that of RadixAttention (arXiv 2312.07104); the tree is walked in loops, never recursively.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from mainstem.errors import OutOfSlots
from mainstem.pages import SlotArray, ascending
from mainstem.tree.integrity import check_tree
from mainstem.tree.interface import CacheStats, InsertResult, MatchResult, PeekResult, PrefixCache, PrefixHandle
from mainstem.tree.keys import Namespace, NamespaceKey, TokenArray, Tokens, as_tokens, namespace_key
from mainstem.tree.node import NO_TOKENS, ChildKey, Node, RecencyList, Root


class _Walk(NamedTuple):
    """How far some tokens lead down the tree.

    Attributes:
        length: tokens matched, in whole pages.
        path: the nodes that are matched to their end, from the top.
        partial: the node after these, when only a beginning of it is matched.
        within: how many tokens of `partial` are matched.
    """

    length: int
    path: list[Node]
    partial: Node | None
    within: int


class RadixCache(PrefixCache):
    """A prefix cache in a radix tree, one tree per namespace, all in one pool."""

    reuses = True

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._roots: dict[NamespaceKey, Root] = {}
        self._recency = RecencyList()
        self._nothing = Root(())
        self._is_cached = np.zeros(self.capacity, dtype=np.bool_)
        self._num_nodes = 0
        self._queries = self._hits = self._query_tokens = self._hit_tokens = 0
        self._inserted_tokens = self._evicted = 0

    def match_prefix(self, tokens: Tokens, namespace: Namespace = ()) -> MatchResult:
        tokens = as_tokens(tokens)
        walk = self._walk(namespace_key(namespace), tokens)
        path = self._settle(walk)
        self._touch(path)
        self._queries += 1
        self._query_tokens += len(tokens)
        self._hits += walk.length > 0
        self._hit_tokens += walk.length
        return MatchResult(walk.length, _slots_of(path), path[-1] if path else self._nothing)

    def peek(self, tokens: Tokens, namespace: Namespace = ()) -> PeekResult:
        walk = self._walk(namespace_key(namespace), as_tokens(tokens))
        return PeekResult(walk.length, _unlocked_tokens(walk))

    def lock(self, handle: PrefixHandle) -> None:
        node = self._node_of(handle)
        node.pins += 1
        while node.parent is not None:
            if node.locks == 0:
                self._recency.remove(node)
                self._evictable -= len(node.key)
            node.locks += 1
            node = node.parent

    def unlock(self, handle: PrefixHandle) -> None:
        node = self._node_of(handle)
        if node.pins == 0:
            raise ValueError("this prefix is not locked: it was unlocked more often than it was locked")
        node.pins -= 1
        now = time.monotonic()
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                node.last_used = now
                self._recency.append(node)
                self._evictable += len(node.key)
            node = node.parent

    def insert(self, tokens: Tokens, namespace: Namespace = (), *, slots: SlotArray | None = None) -> InsertResult:
        tokens = as_tokens(tokens)
        key = namespace_key(namespace)
        if slots is not None and np.shape(slots) != tokens.shape:
            raise ValueError(f"slots must have shape {tokens.shape}, one slot a token, but have {np.shape(slots)}")
        tokens = tokens[: len(tokens) - len(tokens) % self.page_size]
        walk = self._walk(key, tokens)
        if slots is None:
            self._require_room(len(tokens) - walk.length, walk)
            path = self._settle(walk)
            added = self._allocate_beside(path, len(tokens) - walk.length)
        else:
            added = np.array(slots[walk.length : len(tokens)], dtype=np.int32)
            self._require_held(added)
            path = self._settle(walk)
        if len(added):
            path.append(self._grow(path[-1] if path else self._root(key), tokens[walk.length :].copy(), added))
        self._touch(path)
        return InsertResult(len(tokens), walk.length, _slots_of(path), path[-1] if path else self._nothing)

    def evict(self, n: int) -> int:
        if n < 0:
            raise ValueError(f"cannot evict {n} tokens")
        gone: list[SlotArray] = []
        wanted = n + -n % self.page_size
        while wanted > 0 and (node := self._recency.oldest()) is not None:
            if len(node.key) > wanted:
                gone.append(self._trim(node, wanted))
            else:
                gone.append(node.slots)
                self._drop(node)
            wanted -= len(gone[-1])
        if not gone:
            return 0
        slots = np.concatenate(gone)
        self._is_cached[slots] = False
        self._cached_tokens -= len(slots)
        self._evictable -= len(slots)
        self._evicted += len(slots)
        self.allocator.free(slots)
        return len(slots)

    def free(self, slots: SlotArray) -> None:
        slots = ascending(slots)
        if len(slots) and 0 <= slots[0] and slots[-1] < self.capacity and self._is_cached[slots].any():
            raise ValueError(
                "a slot to free belongs to the cache; free only slots that were allocated and not inserted"
            )
        super().free(slots)

    def reset(self) -> int:
        evicted = self._evicted
        dropped = self.evict(self._evictable)
        self._evicted = evicted
        return dropped

    def stats(self) -> CacheStats:
        free = self.allocator.num_free
        return CacheStats(
            capacity=self.capacity,
            free=free,
            evictable=self._evictable,
            protected=self.capacity - free - self._evictable,
            held=self.held,
            num_nodes=self._num_nodes,
            num_namespaces=len(self._roots),
            queries=self._queries,
            hits=self._hits,
            query_tokens=self._query_tokens,
            hit_tokens=self._hit_tokens,
            inserted_tokens=self._inserted_tokens,
            evicted=self._evicted,
        )

    def check_integrity(self) -> None:
        self.allocator.check_integrity()
        found = check_tree(self._roots, self._recency, self.page_size, self._child_key)
        assert found.num_nodes == self._num_nodes, "nodes are miscounted"
        assert found.evictable == self._evictable, "evictable tokens are miscounted"
        assert len(found.slots) == self._cached_tokens, "cached tokens are miscounted"
        assert len(np.unique(found.slots)) == len(found.slots), "a slot is used twice in the tree"
        assert np.array_equal(np.sort(found.slots), np.flatnonzero(self._is_cached)), "the map of cached slots is wrong"
        assert self.allocator.all_allocated(found.slots), "a slot of the tree is free"
        assert self.held >= 0, "more slots are cached and free than there are"
        stats = self.stats()
        assert stats.free + stats.evictable + stats.protected == stats.capacity, "slots do not add up"
        assert stats.protected == stats.held + found.locked, "protected slots are not those locked and held"

    def _child_key(self, tokens: TokenArray, at: int) -> ChildKey:
        """Under which a parent keeps the edge that begins with `tokens[at:]`."""
        if self.page_size == 1:
            return tokens.item(at)
        return tokens[at : at + self.page_size].tobytes()

    def _walk(self, namespace: NamespaceKey, tokens: TokenArray) -> _Walk:
        """Follow `tokens` down the tree, changing nothing."""
        path: list[Node] = []
        node: Node | None = self._roots.get(namespace)
        length, end = 0, len(tokens) - len(tokens) % self.page_size
        while node is not None and length < end:
            node = node.children.get(self._child_key(tokens, length))
            if node is None:
                break
            same = _common_length(node.key, tokens[length:end])
            if same < len(node.key):
                same -= same % self.page_size
                return _Walk(length + same, path, node, same)
            path.append(node)
            length += same
        return _Walk(length, path, None, 0)

    def _settle(self, walk: _Walk) -> list[Node]:
        """The nodes of what was matched; splits the last one if need be, so that they end where the match does."""
        if walk.partial is not None:
            walk.path.append(self._split(walk.partial, walk.within))
        return walk.path

    def _split(self, node: Node, at: int) -> Node:
        """Put a new node above `node` that takes the first `at` tokens of its edge; returns the new one.

        The lower half stays the node that it was, so that whoever locked it goes on locking both.
        """
        upper = self._replace(node, at)
        upper.children[self._child_key(node.key, at)] = node
        upper.locks = node.locks
        node.key = node.key[at:]
        node.slots = node.slots[at:]
        node.parent = upper
        if node.locks == 0:
            self._recency.insert_after(node, upper)
        self._num_nodes += 1
        return upper

    def _replace(self, node: Node, length: int) -> Node:
        """A new node with the first `length` tokens of `node`, in its place below its parent."""
        parent = node.parent
        assert parent is not None
        upper = Node(node.key[:length], node.slots[:length], parent, node.last_used)
        parent.children[self._child_key(node.key, 0)] = upper
        return upper

    def _grow(self, parent: Node, key: TokenArray, slots: SlotArray) -> Node:
        """Add a leaf. Both arrays become the tree's own."""
        leaf = Node(key, slots, parent)
        parent.children[self._child_key(key, 0)] = leaf
        self._recency.append(leaf)
        self._is_cached[slots] = True
        self._num_nodes += 1
        self._cached_tokens += len(key)
        self._evictable += len(key)
        self._inserted_tokens += len(key)
        return leaf

    def _root(self, namespace: NamespaceKey) -> Root:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Root(namespace)
        return root

    def _touch(self, path: list[Node]) -> None:
        """Mark a path as used now, the deepest node first: see RecencyList."""
        now = time.monotonic()
        recency = self._recency
        for node in reversed(path):
            node.last_used = now
            if node.locks == 0:
                recency.remove(node)
                recency.append(node)

    def _drop(self, leaf: Node) -> None:
        """Take a leaf out of the tree, and its root with it if nothing is left."""
        parent = leaf.parent
        assert parent is not None
        del parent.children[self._child_key(leaf.key, 0)]
        self._recency.remove(leaf)
        self._num_nodes -= 1
        leaf.alive = False
        if isinstance(parent, Root) and not parent.children:
            del self._roots[parent.namespace]

    def _trim(self, leaf: Node, n: int) -> SlotArray:
        """Cut the last `n` tokens off a leaf; returns their slots.

        A new node takes its place: handles of the longer prefix must not come to stand for the shorter one.
        """
        kept = len(leaf.key) - n
        self._recency.insert_after(leaf, self._replace(leaf, kept))
        self._recency.remove(leaf)
        leaf.alive = False
        return leaf.slots[kept:]

    def _node_of(self, handle: PrefixHandle) -> Node:
        if not isinstance(handle, Node):
            raise ValueError("this is not a handle of this cache")
        if not handle.alive:
            raise ValueError("this prefix has been evicted, at least in part; match it again and lock it at once")
        return handle

    def _require_room(self, n: int, walk: _Walk) -> None:
        """Raise OutOfSlots unless `n` slots can be had without evicting what `walk` has matched."""
        available = self.allocator.num_free + self._evictable - _unlocked_tokens(walk)
        if n > available:
            raise OutOfSlots(n, available)

    def _allocate_beside(self, path: list[Node], n: int) -> SlotArray:
        """Take `n` slots to continue `path`, of which nothing is evicted."""
        if not path:
            return self.allocate(n)
        self.lock(path[-1])
        slots = self.allocate(n, after=path[-1].slots.item(-1))
        self.unlock(path[-1])
        return slots

    def _require_held(self, slots: SlotArray) -> None:
        """Raise ValueError unless each of `slots` is allocated, not cached, and given once."""
        ordered = ascending(slots)
        if len(ordered) == 0:
            return
        if ordered[0] < 0 or ordered[-1] >= self.capacity:
            raise ValueError(f"a slot is outside the pool of {self.capacity} slots")
        if self._is_cached[ordered].any() or not self.allocator.all_allocated(ordered):
            raise ValueError("a slot to insert is free or already cached; take it from allocate and insert it once")
        if self.page_size > 1:
            self._require_whole_pages(slots)


def _common_length(key: TokenArray, tokens: TokenArray) -> int:
    """How many leading tokens two arrays share, the first of each being equal."""
    length = min(len(key), len(tokens))
    if length == 1:
        return 1
    differs = key[:length] != tokens[:length]
    at = int(differs.argmax())
    return at if differs[at] else length


def _slots_of(path: Iterable[Node]) -> SlotArray:
    """The slots of a path in one array of their own."""
    return np.concatenate([NO_TOKENS, *(node.slots for node in path)])


def _unlocked_tokens(walk: _Walk) -> int:
    """How many tokens of a walk no lock protects."""
    unlocked = sum(len(node.key) for node in walk.path if node.locks == 0)
    if walk.partial is not None and walk.partial.locks == 0:
        unlocked += walk.within
    return unlocked
