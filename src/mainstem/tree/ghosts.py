"""What was cached once and is not any more: keys without slots, and what became of them.

So that "evicted" is known and not guessed. A cache tells its ghosts what leaves it; nothing else depends on them. They
are bounded by two generations: when the younger one is full the older one is forgotten and it takes its place.

Below a node of the radix tree hang the ghosts of what was evicted from below it; when the node goes too, it becomes
their parent. So a victim costs one step, however deep it was. Where tokens come back, their ghosts stay: whoever asks
does so from where the cache ends, and of two ghosts of the same tokens the newer one is told.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from mainstem.tree.block_hash import BlockHashCache, BlockKey
from mainstem.tree.eviction import EvictionReason
from mainstem.tree.interface import PrefixCache, SequenceView
from mainstem.tree.keys import Namespace, NamespaceKey, TokenArray, common_length, namespace_key
from mainstem.tree.node import NO_TOKENS, Node, Root
from mainstem.tree.radix import RadixCache
from mainstem.tree.tenancy import public_part

Clock = Callable[[], float]
_FOR_NOBODY = (EvictionReason.EXPIRED, EvictionReason.RESET, EvictionReason.QUOTA)
# What a ghost counts beside its tokens, since a short one takes more memory than its tokens do.
_GHOST_SIZE = 32


class Fate(NamedTuple):
    """What became of tokens.

    Attributes:
        reason: why they were evicted.
        at: when, by the ghosts' clock.
        idle_s: how long nobody had used them.
        room_for: the request that needed the room; None if nobody did, or its own tenant's quota was used up.
    """

    reason: EvictionReason
    at: float
    idle_s: float
    room_for: str | None

    def ago_s(self, now: float) -> float:
        """How long ago that was, now being a time by the ghosts' clock."""
        return max(0.0, now - self.at)


class Lost(NamedTuple):
    """Tokens `[start, stop)` of a sequence were cached once, and this became of them."""

    start: int
    stop: int
    fate: Fate


class Ghosts(ABC):
    """What left one prefix cache.

    Args:
        limit: tokens a generation may have, with `_GHOST_SIZE` for each ghost.
        clock: that of the cache's times of use.

    Attributes:
        room_for: the request for which the cache is being asked for room, if there is one; the asker's to set.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self.room_for: str | None = None

    @abstractmethod
    def find(self, tokens: TokenArray, view: SequenceView, namespace: Namespace, start: int) -> list[Lost]:
        """What became of `tokens[start:]`, as far as all of them were cached once; without a gap from `start` on.

        Args:
            tokens: int32[n], a whole sequence, of which the first `start` tokens are cached.
            view: of that sequence.
            namespace: that it belongs to.
            start: where to begin.
        """

    def _fate(self, reason: EvictionReason, last_used: float) -> Fate:
        now = self._clock()
        room_for = None if reason in _FOR_NOBODY else self.room_for
        return Fate(reason, now, max(0.0, now - last_used), room_for)


def ghosts_of(cache: PrefixCache, limit: int, clock: Clock = time.monotonic) -> Ghosts | None:
    """The ghosts of what leaves a cache from now on; None for one that never holds anything."""
    match cache:
        case RadixCache():
            return TreeGhosts(cache, limit, clock)
        case BlockHashCache():
            return BlockGhosts(cache, limit, clock)
    return None


class TreeGhosts(Ghosts):
    """Ghosts of a radix tree."""

    def __init__(self, cache: RadixCache, limit: int, clock: Clock = time.monotonic) -> None:
        super().__init__(limit, clock)
        self._cache = cache
        self._younger = _Forest()
        self._older = _Forest()
        cache.on_evict.append(self._note)

    def find(self, tokens: TokenArray, view: SequenceView, namespace: Namespace, start: int) -> list[Lost]:
        del view
        key, path = namespace_key(namespace), self._cache.path(tokens, namespace)
        return _newest(
            [lost for forest in (self._older, self._younger) for lost in forest.find(key, path, tokens, start)]
        )

    def _note(self, node: Node, kept: int, reason: EvictionReason) -> None:
        del kept  # what stays of the edge is cached, so nobody asks for its ghost
        fate = self._fate(reason, node.last_used)
        self._younger.bury(node, fate)
        if self._older.has_below(node):
            self._older.bury(node, fate)
        if self._younger.size > self._limit:
            self._older, self._younger = self._younger, _Forest()


_Key: TypeAlias = int | tuple[NamespaceKey, int]


class _Ghost:
    """An edge of a tree that is not there any more.

    Attributes:
        key: int32 array; empty where ghosts hang below a node that is still there.
        fate: what became of it.
        namespace: whose it is; below what is public, others' ghosts hang side by side.
        children: by their first token, with their namespace before it where it is another one.
    """

    __slots__ = ("children", "fate", "key", "namespace")

    def __init__(self, key: TokenArray, fate: Fate | None, namespace: NamespaceKey) -> None:
        self.key = key
        self.fate = fate
        self.namespace = namespace
        self.children: dict[_Key, _Ghost] = {}

    def key_of(self, token: int, namespace: NamespaceKey) -> _Key:
        """Under which a ghost is kept here that begins with this token."""
        return token if namespace == self.namespace else (namespace, token)


class _Forest:
    """One generation of a tree's ghosts.

    Attributes:
        size: its tokens, with `_GHOST_SIZE` for each ghost.
    """

    def __init__(self) -> None:
        self.size = 0
        self._tops: dict[NamespaceKey, _Ghost] = {}
        self._below: dict[Node, _Ghost] = {}

    def has_below(self, node: Node) -> bool:
        """Whether ghosts hang below a node that is there."""
        return node in self._below

    def bury(self, node: Node, fate: Fate) -> None:
        """Make a ghost of a leaf that is about to go, and hang what was below it under it."""
        assert node.parent is not None
        end = self._add(self._holder(node.parent), node.key, fate, node.space.namespace)
        below = self._below.pop(node, None)
        if below is not None:
            self._graft(end, below.children.values())

    def find(self, key: NamespaceKey, path: Sequence[Node], tokens: TokenArray, start: int) -> Iterator[Lost]:
        """What became of `tokens[start:]`, the path leading to where the cache ends; there may be several tales."""
        readable = (key, public_part(key) or key)
        holders = [(0, self._tops.get(namespace)) for namespace in readable]
        depth = 0
        for node in path:
            depth += len(node.key)
            holders.append((depth, self._below.get(node)))
        for depth, holder in holders:
            if holder is not None:
                yield from _walk(holder, readable, tokens, depth, start)

    def _holder(self, parent: Node) -> _Ghost:
        """What ghosts hang under that were evicted from below a node."""
        namespace = parent.space.namespace
        if isinstance(parent, Root):
            return self._tops.setdefault(namespace, _Ghost(NO_TOKENS, None, namespace))
        return self._below.setdefault(parent, _Ghost(NO_TOKENS, None, namespace))

    def _add(self, holder: _Ghost, key: TokenArray, fate: Fate, namespace: NamespaceKey) -> _Ghost:
        """Put tokens below a ghost; returns the ghost that ends with the last of them."""
        at = 0
        while at < len(key):
            first = holder.key_of(key.item(at), namespace)
            child = holder.children.get(first)
            if child is None:
                child = holder.children[first] = _Ghost(key[at:].copy(), fate, namespace)
                self.size += len(child.key) + _GHOST_SIZE
                return child
            same = common_length(child.key, key[at:])
            if same < len(child.key):
                child = self._split(holder, child, same)
            if child.fate is None or child.fate.at <= fate.at:
                child.fate = fate
            at += same
            holder = child
        return holder

    def _split(self, holder: _Ghost, child: _Ghost, at: int) -> _Ghost:
        upper = _Ghost(child.key[:at], child.fate, child.namespace)
        upper.children[child.key.item(at)] = child
        holder.children[holder.key_of(child.key.item(0), child.namespace)] = upper
        child.key = child.key[at:]
        self.size += _GHOST_SIZE
        return upper

    def _graft(self, end: _Ghost, ghosts: Iterable[_Ghost]) -> None:
        """Hang ghosts, with all that is below them, under another; where the same tokens are there, both become one."""
        pending = [(end, ghost) for ghost in ghosts]
        while pending:
            holder, ghost = pending.pop()
            first = holder.key_of(ghost.key.item(0), ghost.namespace)
            if first not in holder.children:
                holder.children[first] = ghost
                continue
            assert ghost.fate is not None
            self.size -= len(ghost.key) + _GHOST_SIZE  # added again as far as it is new
            spot = self._add(holder, ghost.key, ghost.fate, ghost.namespace)
            pending += [(spot, child) for child in ghost.children.values()]


def _walk(
    holder: _Ghost, readable: tuple[NamespaceKey, NamespaceKey], tokens: TokenArray, depth: int, start: int
) -> list[Lost]:
    """What ghosts of readable namespaces tell of `tokens[start:]`, the first `depth` tokens leading to `holder`."""
    found: list[Lost] = []
    at = depth
    while at < len(tokens):
        children = [holder.children.get(holder.key_of(tokens.item(at), namespace)) for namespace in set(readable)]
        ways = [(common_length(child.key, tokens[at : at + len(child.key)]), child) for child in children if child]
        if not ways:
            break
        same, child = max(ways, key=lambda way: way[0])
        at += same
        if at > start:
            assert child.fate is not None
            found.append(Lost(found[-1].stop if found else start, at, child.fate))
        if same < len(child.key):
            break
        holder = child
    return found


def _newest(tales: Sequence[Lost]) -> list[Lost]:
    """What is told of each token by the newest of several tales."""
    edges = sorted({edge for lost in tales for edge in (lost.start, lost.stop)})
    place = {edge: i for i, edge in enumerate(edges)}
    fates: list[Fate | None] = [None] * (len(edges) - 1)
    for lost in sorted(tales, key=lambda lost: lost.fate.at):
        first, last = place[lost.start], place[lost.stop]
        fates[first:last] = [lost.fate] * (last - first)
    return [Lost(start, stop, fate) for (start, stop), fate in zip(pairwise(edges), fates, strict=True) if fate]


class BlockGhosts(Ghosts):
    """Ghosts of hashed blocks."""

    def __init__(self, cache: BlockHashCache, limit: int, clock: Clock = time.monotonic) -> None:
        super().__init__(limit, clock)
        self._cache = cache
        self._younger: dict[BlockKey, Fate] = {}
        self._older: dict[BlockKey, Fate] = {}
        self._block_limit = max(1, limit // (cache.page_size + _GHOST_SIZE))
        cache.on_forget.append(self._note)

    def find(self, tokens: TokenArray, view: SequenceView, namespace: Namespace, start: int) -> list[Lost]:
        del namespace
        size = self._cache.page_size
        found: list[Lost] = []
        for key in self._cache.keys_of(tokens, view)[start // size :]:
            fate = self._younger.get(key) or self._older.get(key)
            if fate is None:
                break
            begin = found[-1].stop if found else start
            found.append(Lost(begin, begin - begin % size + size, fate))
        return found

    def _note(self, key: BlockKey, last_used: float, reason: EvictionReason) -> None:
        self._younger[key] = self._fate(reason, last_used)
        if len(self._younger) > self._block_limit:
            self._older, self._younger = self._younger, {}
