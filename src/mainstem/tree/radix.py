"""The radix tree: a prefix cache that matches token by token and stores every shared prefix once.

It knows which slots belong to which tokens, who locks them and in which order they were used. It never sees a tensor.
The structure is that of RadixAttention (arXiv 2312.07104); the tree is walked in loops, never recursively.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mainstem.errors import OutOfSlots
from mainstem.pages import Run, SlotArray, disjoint_runs, merge_runs, runs_of, slots_of
from mainstem.tree.eviction import EvictionReason, OnEvict
from mainstem.tree.hints import CacheHints, Retention
from mainstem.tree.integrity import check_tree
from mainstem.tree.interface import InsertResult, MatchResult, PeekResult, PrefixCache, PrefixHandle, Reuse
from mainstem.tree.keys import Namespace, NamespaceKey, TokenArray, Tokens, as_tokens, common_length, namespace_key
from mainstem.tree.node import NO_TOKENS, ChildKey, Node, Root
from mainstem.tree.order import RETENTION_BUDGET, EvictionOrder
from mainstem.tree.sessions import Sessions

RETURN_MARGIN = 2.0
"""What is expected back in some time is retained for so many times that."""


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
    """A prefix cache in a radix tree, one tree per namespace, all in one pool.

    Args:
        capacity: slots of the pool, a multiple of `page_size`.
        page_size: tokens in a page.
        retention_budget: share of the pool in which retention counts.
        clock: seconds, never going back.

    Attributes:
        on_evict: whoever wants to know what leaves the tree, and why.
        evicted_by_reason: how many tokens have left it since the start, by reason.
    """

    reuse = Reuse.COMPUTED

    def __init__(
        self,
        capacity: int,
        page_size: int = 1,
        *,
        retention_budget: float = RETENTION_BUDGET,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(capacity, page_size)
        self._roots: dict[NamespaceKey, Root] = {}
        self._order = EvictionOrder(retention_budget * self.capacity, clock)
        self._sessions = Sessions(self._order)
        self._nothing = Root((), self._order)
        self._is_cached = np.zeros(self.capacity, dtype=np.bool_)
        self.on_evict: list[OnEvict] = [self._sessions.evicted]
        self.evicted_by_reason = dict.fromkeys(EvictionReason, 0)

    def match_prefix(self, tokens: Tokens, namespace: Namespace = ()) -> MatchResult:
        tokens = as_tokens(tokens)
        walk = self._walk(namespace_key(namespace), tokens)
        path = self._settle(walk)
        self._touch(path)
        self._count_query(len(tokens), walk.length)
        return MatchResult(walk.length, _slots_of(path), path[-1] if path else self._nothing)

    def peek(self, tokens: Tokens, namespace: Namespace = ()) -> PeekResult:
        walk = self._walk(namespace_key(namespace), as_tokens(tokens))
        return PeekResult(walk.length, _unlocked_tokens(walk))

    def path(self, tokens: Tokens, namespace: Namespace = ()) -> list[Node]:
        """The nodes that are matched to their end, from the top. Has no effect, as `peek`; the nodes are to look at."""
        return self._walk(namespace_key(namespace), as_tokens(tokens)).path

    def lock(self, handle: PrefixHandle) -> None:
        node = self._node_of(handle)
        node.pins += 1
        while node.parent is not None:
            if node.locks == 0:
                self._order.remove(node)
                self._evictable -= len(node.key)
            node.locks += 1
            node = node.parent

    def unlock(self, handle: PrefixHandle) -> None:
        node = self._node_of(handle)
        if node.pins == 0:
            raise ValueError("this prefix is not locked: it was unlocked more often than it was locked")
        node.pins -= 1
        now = self._order.tick()
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self._order.add(node, now)
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
            runs = self._allocate_beside(path, len(tokens) - walk.length)
        else:
            runs = runs_of(np.asarray(slots)[walk.length : len(tokens)])
            self._require_held(runs)
            path = self._settle(walk)
        if runs:
            path.append(self._grow(path[-1] if path else self._root(key), tokens[walk.length :].copy(), runs))
        self._touch(path)
        return InsertResult(len(tokens), walk.length, _slots_of(path), path[-1] if path else self._nothing)

    def evict(self, n: int) -> int:
        if n < 0:
            raise ValueError(f"cannot evict {n} tokens")
        return self._evict(n, self._order.first)

    def expire(self, ttl_s: float, limit: int | None = None) -> int:
        return self._evict(
            self._evictable if limit is None else limit, lambda: self._order.expired(ttl_s), EvictionReason.EXPIRED
        )

    def reset(self) -> int:
        evicted = self._evicted
        dropped = self._evict(self._evictable, self._order.first, EvictionReason.RESET)
        self._evicted = evicted
        return dropped

    def _evict(self, n: int, next_leaf: Callable[[], Node | None], why: EvictionReason | None = None) -> int:
        """Evict `n` tokens, leaf by leaf; the only place where tokens leave the tree.

        Args:
            n: rounded up to a page; less are evicted when there are no more leaves.
            next_leaf: an unlocked leaf, or None.
            why: None for what is known of each node.
        """
        gone: list[SlotArray] = []
        wanted = n + -n % self.page_size
        while wanted > 0 and (node := next_leaf()) is not None:
            kept = max(len(node.key) - wanted, 0)
            reason = why or node.fate
            for listener in self.on_evict:
                listener(node, kept, reason)
            if kept:
                gone.append(self._trim(node, wanted))
            else:
                gone.append(node.slots)
                self._drop(node)
            wanted -= len(gone[-1])
            self.evicted_by_reason[reason] += len(gone[-1])
        if not gone:
            return 0
        runs = disjoint_runs(np.concatenate(gone))
        freed = self._mark(runs, False)
        self._cached_tokens -= freed
        self._evictable -= freed
        self._evicted += freed
        self.allocator.free_runs(runs)
        return freed

    def begin(self, tokens: Tokens, namespace: Namespace, match: MatchResult, hints: CacheHints) -> None:
        tokens = as_tokens(tokens)
        goes_on = len(tokens) - match.length >= self.page_size
        next_key = self._child_key(tokens, match.length) if goes_on else None
        self._sessions.begin(namespace_key(namespace), hints, self._node_of(match.handle), next_key)

    def end(self, tokens: Tokens, namespace: Namespace, handle: PrefixHandle | None, hints: CacheHints) -> None:
        key = namespace_key(namespace)
        node = None if handle is None else self._node_of(handle)
        self._sessions.end(key, hints, None if node is self._nothing else node)
        tokens = as_tokens(tokens)
        for keep in hints.keep:
            self._retain(key, tokens[: keep.length], keep.retention)
        if hints.expected_return_s is not None and not hints.ends_session:
            self._retain(key, tokens, Retention.of(RETURN_MARGIN * hints.expected_return_s, priority=0))

    def end_session(self, session: str, namespace: Namespace = ()) -> bool:
        return self._sessions.finish(namespace_key(namespace), session)

    def _retain(self, namespace: NamespaceKey, tokens: TokenArray, retention: Retention) -> None:
        path = self._settle(self._walk(namespace, tokens))
        self._touch(path)
        for node in reversed(path):
            self._order.retain(node, retention)

    def free(self, slots: SlotArray) -> None:
        runs = disjoint_runs(slots)
        self._require_whole_pages(runs)
        self._require_uncached(runs)
        self.allocator.free_runs(runs)

    @property
    def _num_namespaces(self) -> int:
        return len(self._roots)

    def check_integrity(self) -> None:
        self.allocator.check_integrity()
        found = check_tree(self._roots, self._order, self.page_size, self._child_key)
        assert found.num_nodes == self._num_nodes, "nodes are miscounted"
        assert found.evictable == self._evictable, "evictable tokens are miscounted"
        assert len(found.slots) == self._cached_tokens, "cached tokens are miscounted"
        assert len(np.unique(found.slots)) == len(found.slots), "a slot is used twice in the tree"
        assert np.array_equal(np.sort(found.slots), np.flatnonzero(self._is_cached)), "the map of cached slots is wrong"
        runs = disjoint_runs(found.slots)
        assert all(self.allocator.all_allocated(run) for run in runs), "a slot of the tree is free"
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
            same = common_length(node.key, tokens[length : min(length + len(node.key), end)])
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
        upper.user = node.user
        node.key = node.key[at:]
        node.slots = node.slots[at:]
        node.parent = upper
        self._order.place_above(upper, node)
        self._num_nodes += 1
        return upper

    def _replace(self, node: Node, length: int) -> Node:
        """A new node with the first `length` tokens of `node`, in its place below its parent."""
        parent = node.parent
        assert parent is not None
        upper = Node(node.key[:length], node.slots[:length], parent, self._order)
        parent.children[self._child_key(node.key, 0)] = upper
        return upper

    def _grow(self, parent: Node, key: TokenArray, runs: Sequence[Run]) -> Node:
        """Add a leaf below `parent`; the array `key` becomes the tree's own."""
        leaf = Node(key, slots_of(runs), parent, self._order)
        parent.children[self._child_key(key, 0)] = leaf
        self._order.place(leaf, self._order.tick())
        self._order.branched(parent)
        self._mark(runs, True)
        self._num_nodes += 1
        self._cached_tokens += len(key)
        self._evictable += len(key)
        self._inserted_tokens += len(key)
        return leaf

    def _root(self, namespace: NamespaceKey) -> Root:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Root(namespace, self._order)
        return root

    def _touch(self, path: list[Node]) -> None:
        """Mark a path as used now, the deepest node first: see EvictionOrder."""
        now = self._order.tick()
        for node in reversed(path):
            self._order.use(node, now)

    def _drop(self, leaf: Node) -> None:
        """Take a leaf out of the tree, and its root with it if nothing is left."""
        parent = leaf.parent
        assert parent is not None
        del parent.children[self._child_key(leaf.key, 0)]
        self._order.remove(leaf)
        self._num_nodes -= 1
        leaf.bury()
        if not isinstance(parent, Root):
            parent.compact()
        elif not parent.children:
            del self._roots[parent.namespace]

    def _trim(self, leaf: Node, n: int) -> SlotArray:
        """Cut the last `n` tokens off a leaf; returns their slots.

        A new node takes its place: handles of the longer prefix must not come to stand for the shorter one.
        """
        kept = len(leaf.key) - n
        shorter = self._replace(leaf, kept)
        shorter.compact()
        self._order.replace(leaf, shorter)
        self._sessions.replaced(leaf, shorter)
        leaf.bury()
        return leaf.slots[kept:]

    def _node_of(self, handle: PrefixHandle) -> Node:
        if isinstance(handle, Node):
            if handle.home is self._order:
                return handle
            if handle.home is None:
                raise ValueError("this prefix has been evicted, at least in part; match it again and lock it at once")
        raise ValueError("this handle is not of this cache")

    def _require_room(self, n: int, walk: _Walk) -> None:
        """Raise OutOfSlots unless `n` slots can be had without evicting what `walk` has matched."""
        available = self.allocator.num_free + self._evictable - _unlocked_tokens(walk)
        if n > available:
            raise OutOfSlots(n, available)

    def _allocate_beside(self, path: list[Node], n: int) -> list[Run]:
        """Take `n` slots to continue `path`, of which nothing is evicted."""
        if not path:
            return self._allocate_runs(n, None)
        last = path[-1]
        self.lock(last)
        runs = self._allocate_runs(n, last.slots.item(-1))
        self.unlock(last)
        return runs

    def _mark(self, runs: Sequence[Run], cached: bool) -> int:
        """Note whether the tree owns these slots; returns their number."""
        for start, stop in runs:
            self._is_cached[start:stop] = cached
        return sum(stop - start for start, stop in runs)

    def _require_held(self, runs: Sequence[Run]) -> None:
        """Raise ValueError unless each slot of `runs` is allocated, not cached, and given once."""
        self._require_whole_pages(runs)
        runs = merge_runs(runs)
        if not all(self.allocator.all_allocated(run) for run in runs):
            raise ValueError("a slot to insert is free; take it from allocate first")
        self._require_uncached(runs)

    def _require_uncached(self, runs: Sequence[Run]) -> None:
        for start, stop in runs:
            if self._is_cached[start:stop].any():
                raise ValueError("a slot belongs to the cache already; insert or free only those that allocate gave")


def _slots_of(path: Sequence[Node]) -> SlotArray:
    """The slots of a path in one array of their own."""
    return np.concatenate([node.slots for node in path]) if path else NO_TOKENS


def _unlocked_tokens(walk: _Walk) -> int:
    """How many tokens of a walk no lock protects."""
    unlocked = sum(len(node.key) for node in walk.path if node.locks == 0)
    if walk.partial is not None and walk.partial.locks == 0:
        unlocked += walk.within
    return unlocked
