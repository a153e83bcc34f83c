"""The radix tree: a prefix cache that matches token by token and stores every shared prefix once.

It knows which slots belong to which tokens, who locks them and in which order they were used. It never sees a tensor.
The structure is that of RadixAttention (arXiv 2312.07104); the tree is walked in loops, never recursively.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from mainstem.errors import OutOfSlots
from mainstem.pages import Run, SlotArray, disjoint_runs, merge_runs, runs_of, slots_of
from mainstem.tree.continuations import continuations
from mainstem.tree.eviction import EvictionReason, OnEvict
from mainstem.tree.fair import FairOrder, first_of
from mainstem.tree.hints import CacheHints, Retention
from mainstem.tree.integrity import check_tree
from mainstem.tree.interface import InsertResult, MatchResult, PeekResult, PrefixCache, PrefixHandle, Reuse
from mainstem.tree.keys import Namespace, NamespaceKey, TokenArray, Tokens, as_tokens, namespace_key
from mainstem.tree.node import NO_TOKENS, ChildKey, EdgeKey, Node, Root
from mainstem.tree.order import RETENTION_BUDGET, EvictionOrder
from mainstem.tree.public import PublicPrefixes, Walk, follow, produced_by_others, walk_shared
from mainstem.tree.sessions import SEVERAL, Sessions, share
from mainstem.tree.tenancy import Account, Space, is_public, public_part

RETURN_MARGIN = 2.0
"""What is expected back in some time is retained for so many times that."""
SECOND_CHANCES = 8
"""So many leaves that are wanted are passed over when room is made."""


class RadixCache(PrefixCache):
    """A prefix cache in a radix tree, one tree per namespace, all in one pool; see `public` for what they share.

    Args:
        capacity: slots of the pool, a multiple of `page_size`.
        page_size: tokens in a page.
        retention_budget: share of the pool in which retention counts.
        by_tenant: whether who holds most gives way first, a tenant being named by the first two parts of a namespace;
            otherwise it is the least valuable of all.
        tenant_quota: share of the pool that a tenant's unlocked tokens may take.
        share_after: so many tenants must have produced a prefix to make it public; 0 for never.
        clock: seconds, never going back.

    Attributes:
        on_evict: whoever wants to know what leaves the tree, and why.
        wanted: says of a leaf how many tokens of its edge somebody is about to use; see `_evict`.
        evicted_by_reason: how many tokens have left it since the start, by reason.
    """

    reuse = Reuse.COMPUTED

    def __init__(
        self,
        capacity: int,
        page_size: int = 1,
        *,
        retention_budget: float = RETENTION_BUDGET,
        by_tenant: bool = False,
        tenant_quota: float = 1.0,
        share_after: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(capacity, page_size)
        self._roots: dict[NamespaceKey, Root] = {}
        self._order = FairOrder(retention_budget * self.capacity, clock, by_tenant=by_tenant)
        self._sessions = Sessions(self._order)
        self._nothing = Root(Space((), Account((), EvictionOrder(0.0))), self._order)
        self._public = PublicPrefixes(share_after)
        self._quota = int(tenant_quota * self.capacity)
        self._cached_bytes = bytearray(self.capacity)  # one a slot, and the same as an array
        self._is_cached = np.frombuffer(self._cached_bytes, dtype=np.bool_)
        self.on_evict: list[OnEvict] = [self._sessions.evicted]
        self.wanted: Callable[[Node], int] | None = None
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

    def continuations(self, handle: PrefixHandle, tail: TokenArray, length: int, paths: int) -> list[TokenArray]:
        node = self._node_of(handle)
        if self.page_size > 1 or node is self._nothing:
            return []
        return continuations(node, tail, length, paths)

    def lock(self, handle: PrefixHandle) -> None:
        node = self._node_of(handle)
        node.pins += 1
        while node.parent is not None:
            if node.locks == 0:
                self._order.remove(node)
                self._evictable -= len(node.key)
                node.space.account.locked += len(node.key)
            node.locks += 1
            node = node.parent

    def unlock(self, handle: PrefixHandle) -> None:
        node = self._node_of(handle)
        if node.pins == 0:
            raise ValueError("this prefix is not locked: it was unlocked more often than it was locked")
        self._unlock(node)
        if self._quota < self.capacity:
            self._hold_quota(node.space.account)

    def _unlock(self, node: Node) -> None:
        node.pins -= 1
        now = self._order.tick()
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self._order.add(node, now)
                self._evictable += len(node.key)
                node.space.account.locked -= len(node.key)
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
            self._touch(path)
            with self._order.asking(key, len(tokens) - walk.length):
                runs = self._allocate_beside(path, len(tokens) - walk.length)
        else:
            runs = runs_of(np.asarray(slots)[walk.length : len(tokens)])
            self._require_held(runs)
            path = self._settle(walk)
        if runs:
            self._grow_path(path, key, tokens, walk.length, runs)
        self._touch(path)
        if runs and self._public.share_after and public_part(key) is not None:
            path = self._share(path, key, tokens)
        if runs and self._quota < self.capacity:
            self.lock(path[-1])
            self._hold_quota(path[-1].space.account)
            self._unlock(path[-1])
        return InsertResult(len(tokens), walk.length, _slots_of(path), path[-1] if path else self._nothing)

    def declare_public(self, tokens: Tokens, namespace: Namespace) -> None:
        self._public.declare(namespace_key(namespace), as_tokens(tokens))

    def reset_tenant(self, namespace: Namespace) -> int:
        account = self._order.account(namespace_key(namespace))
        if account is None:
            return 0
        evicted = self._evicted
        dropped = self._evict(account.tokens, lambda: first_of(account), EvictionReason.RESET)
        self._evicted = evicted
        return dropped

    def tokens_by_tenant(self) -> dict[Namespace, int]:
        return {
            tuple(part for _, part in account.key): account.tokens  # type: ignore[misc]
            for account in list(self._order.accounts.values())  # other threads may ask
        }

    def locked_tokens(self, tenant: NamespaceKey) -> int:
        account = self._order.accounts.get(tenant)
        return 0 if account is None else account.locked

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

        Leaves that are wanted count as used once more when it is their turn (second chance: Corbató 1968), the first
        few; when more are, these go too.

        Args:
            n: rounded up to a page; less are evicted when there are no more leaves.
            next_leaf: an unlocked leaf, or None.
            why: None for what is known of each node.
        """
        gone: list[SlotArray] = []
        wanted = n + -n % self.page_size
        chances = SECOND_CHANCES if self.wanted is not None and why is None else 0
        while wanted > 0 and (node := next_leaf()) is not None:
            kept = max(len(node.key) - wanted, 0)
            reason = why or node.fate
            if chances and reason in (EvictionReason.LRU, EvictionReason.REWRITTEN):
                kept = max(kept, self._wanted_of(node))
                if kept == len(node.key):
                    chances -= 1
                    self._touch(node.path())
                    continue
            for listener in self.on_evict:
                listener(node, kept, reason)
            space = node.space
            if kept:
                gone.append(self._trim(node, len(node.key) - kept))
            else:
                gone.append(node.slots)
                self._drop(node)
            wanted -= len(gone[-1])
            self._order.note(space, -len(gone[-1]))
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

    def _wanted_of(self, leaf: Node) -> int:
        """Tokens of its edge, in whole pages, that somebody is about to use."""
        assert self.wanted is not None
        length = self.wanted(leaf)
        return length + -length % self.page_size

    def begin(self, tokens: Tokens, namespace: Namespace, match: MatchResult, hints: CacheHints) -> None:
        tokens = as_tokens(tokens)
        goes_on = len(tokens) - match.length >= self.page_size
        key, node = namespace_key(namespace), self._node_of(match.handle)
        next_key = self._key_below(node, key, self._child_key(tokens, match.length)) if goes_on else None
        self._sessions.begin(key, hints, node, next_key)

    def end(self, tokens: Tokens, namespace: Namespace, handle: PrefixHandle | None, hints: CacheHints) -> None:
        key = namespace_key(namespace)
        # Its tenant's quota may have cost it the end of what it left as soon as that was unlocked.
        is_left = isinstance(handle, Node) and handle.home is not None and handle is not self._nothing
        node = self._node_of(handle) if handle is not None and is_left else None
        tail = self._sessions.end(key, hints, node)
        tokens = as_tokens(tokens)
        for keep in hints.keep:
            self._retain(key, tokens[: keep.length], keep.retention)
        if hints.expected_return_s is not None and not hints.ends_session:
            self._retain(key, tokens, Retention.of(RETURN_MARGIN * hints.expected_return_s, priority=0))
        if node is not None and tail:
            self._give_up_tail(node, tail - tail % self.page_size)

    def _give_up_tail(self, tip: Node, length: int) -> None:
        """Give up the end of a branch, as far as nobody else has used it, locked it or asked to keep it."""
        if tip.user is SEVERAL or self._order.is_given_up(tip):
            return
        tail: list[Node] = []
        node: Node | None = tip
        while length > 0 and node is not None and node.user is tip.user and len(node.children) == min(len(tail), 1):
            if node.locks or self._order.retention_of(node) is not None:
                break
            if length < len(node.key):
                self._split(node, len(node.key) - length)
            tail.append(node)
            length -= len(node.key)
            node = node.parent
        if tail:
            self._sessions.give_up_tail(tail, self._key_of(tail[-1]))

    def end_session(self, session: str, namespace: Namespace = ()) -> bool:
        return self._sessions.finish(namespace_key(namespace), session)

    def _retain(self, namespace: NamespaceKey, tokens: TokenArray, retention: Retention) -> None:
        path = self._settle(self._walk(namespace, tokens))
        self._touch(path)
        for node in reversed(path):
            self._order.retain(node, retention)

    def allocate(self, n: int, *, after: int | None = None, namespace: Namespace = ()) -> SlotArray:
        with self._order.asking(namespace_key(namespace), n):
            return super().allocate(n, after=after)

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
        self._sessions.check_integrity()
        found = check_tree(self._roots, self._order, self.page_size, self._key_of)
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

    def _child_key(self, tokens: TokenArray, at: int) -> EdgeKey:
        """Of the edge that begins with `tokens[at:]`."""
        if self.page_size == 1:
            return tokens.item(at)
        return tokens[at : at + self.page_size].tobytes()

    def _walk(self, namespace: NamespaceKey, tokens: TokenArray) -> Walk:
        """Follow `tokens` down the tree, changing nothing."""
        root = self._roots.get(namespace)
        own = Walk(0, [], None, 0)
        if root is not None and len(tokens) >= self.page_size:
            own = follow(root, self._child_key(tokens, 0), tokens, 0, self._child_key, self.page_size)
        public = public_part(namespace) if self._public else None
        shared = self._roots.get(public) if public is not None else None
        if shared is None:
            return own
        other = walk_shared(shared, namespace, tokens, self._child_key, self.page_size)
        return own if own.length > other.length else other

    def _key_below(self, node: Node, namespace: NamespaceKey, key: EdgeKey) -> ChildKey:
        """Under which a node keeps an edge of a namespace that begins with what `_child_key` says."""
        if is_public(node.space.namespace) and not is_public(namespace):
            return (namespace, key)
        return key

    def _key_of(self, node: Node, at: int = 0) -> ChildKey:
        """Under which its parent keeps a node."""
        assert node.parent is not None
        return self._key_below(node.parent, node.space.namespace, self._child_key(node.key, at))

    def _settle(self, walk: Walk) -> list[Node]:
        """The nodes of what was matched; splits the last one if need be, so that they end where the match does."""
        if walk.partial is not None:
            walk.path.append(self._split(walk.partial, walk.within))
        return walk.path

    def _split(self, node: Node, at: int) -> Node:
        """Put a new node above `node` that takes the first `at` tokens of its edge; returns the new one.

        The lower half stays the node that it was, so that whoever locked it goes on locking both.
        """
        upper = self._replace(node, at)
        upper.children[self._child_key(node.key, at)] = node  # both are in the same space
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
        upper.space = node.space
        parent.children[self._key_of(node)] = upper
        return upper

    def _grow_path(
        self, path: list[Node], namespace: NamespaceKey, tokens: TokenArray, length: int, runs: Sequence[Run]
    ) -> None:
        """Add the tokens after the first `length` at the end of a path: what is public of them, then the rest."""
        public = self._public_length(path, namespace, tokens) if self._public else 0
        if public <= length:
            path.append(self._grow(path[-1] if path else None, namespace, tokens[length:].copy(), runs))
            return
        slots = slots_of(runs)
        shared = namespace if is_public(namespace) else public_part(namespace)
        assert shared is not None
        for key, start, stop in ((shared, length, public), (namespace, public, len(tokens))):
            if start < stop:
                part = runs_of(slots[start - length : stop - length])
                path.append(self._grow(path[-1] if path else None, key, tokens[start:stop].copy(), part))

    def _public_length(self, path: list[Node], namespace: NamespaceKey, tokens: TokenArray) -> int:
        """How many leading tokens are to be public nodes: what is declared, unless a namespace holds it already."""
        if path and not is_public(path[-1].space.namespace):
            return 0
        length = self._public.declared_length(namespace, tokens)
        return length - length % self.page_size

    def _share(self, path: list[Node], namespace: NamespaceKey, tokens: TokenArray) -> list[Node]:
        """Make public what enough tenants have produced of a path; returns the path, which may be split once more."""
        public = public_part(namespace)
        assert public is not None
        root = self._roots.get(public)
        length = produced_by_others(
            self._roots, namespace, lambda other: self._walk(other, tokens).length, self._public.share_after - 1
        )
        length -= length % self.page_size
        depth = sum(is_public(node.space.namespace) for node in path)
        held = sum(len(node.key) for node in path[:depth])
        above = path[depth - 1] if depth else root
        if length <= held or (above is not None and self._child_key(tokens, held) in above.children):
            return path
        return self._publish(path, depth, public, length - held)

    def _publish(self, path: list[Node], depth: int, public: NamespaceKey, length: int) -> list[Node]:
        """Move the first `length` tokens of a path after its `depth` public nodes into the public tree."""
        moved, rest = [], path[depth:]
        while length > 0:
            moved.append(rest.pop(0) if len(rest[0].key) <= length else self._split(rest[0], length))
            length -= len(moved[-1].key)
        top = moved[0]
        before = top.parent
        assert before is not None
        del before.children[self._key_of(top)]
        above = before
        if isinstance(before, Root):
            above = top.parent = self._root(public)
            if not before.children:
                del self._roots[before.namespace]
        space, now = self._order.space(public), self._order.tick()
        for node in reversed(moved):
            children, node.children = node.children, {}
            self._order.move(node, space, now)
            share(node)
            for child in children.values():
                node.children[self._key_of(child)] = child
        above.children[self._key_of(top)] = top
        path = path[:depth] + moved + rest
        self._touch(path)
        return path

    def _hold_quota(self, account: Account) -> None:
        """Evict what a tenant has more than its quota, as far as it is not locked."""
        over = account.tokens - self._quota
        if over > 0 and not account.is_public:
            self._evict(over, lambda: first_of(account), EvictionReason.QUOTA)

    def _grow(self, parent: Node | None, namespace: NamespaceKey, key: TokenArray, runs: Sequence[Run]) -> Node:
        """Add a leaf below `parent`, or at the top; the array `key` becomes the tree's own."""
        parent = parent or self._root(namespace)
        leaf = Node(key, slots_of(runs), parent, self._order)
        leaf.space = self._order.space(namespace)
        parent.children[self._key_of(leaf)] = leaf
        self._order.note(leaf.space, len(key))
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
            root = self._roots[namespace] = Root(self._order.space(namespace), self._order)
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
        del parent.children[self._key_of(leaf)]
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
        cut = leaf.slots[kept:]
        leaf.bury()
        return cut

    def _node_of(self, handle: PrefixHandle) -> Node:
        if isinstance(handle, Node):
            if handle.home is self._order:
                return handle
            if handle.home is None:
                raise ValueError("this prefix has been evicted, at least in part; match it again and lock it at once")
        raise ValueError("this handle is not of this cache")

    def _require_room(self, n: int, walk: Walk) -> None:
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
        self._unlock(last)
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
            if self._cached_bytes.find(1, start, stop) >= 0:
                raise ValueError("a slot belongs to the cache already; insert or free only those that allocate gave")


def _slots_of(path: Sequence[Node]) -> SlotArray:
    """The slots of a path in one array of their own."""
    return np.concatenate([node.slots for node in path]) if path else NO_TOKENS


def _unlocked_tokens(walk: Walk) -> int:
    """How many tokens of a walk no lock protects."""
    unlocked = sum(len(node.key) for node in walk.path if node.locks == 0)
    if walk.partial is not None and walk.partial.locks == 0:
        unlocked += walk.within
    return unlocked
