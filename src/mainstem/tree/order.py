"""In which order nodes are evicted: rings of nodes, each with the least recently used first.

Which ring a node is in says how much it is worth beside having been used lately: nodes whose session is over go first,
retained ones last. It knows nodes, times and claims; not who makes them, nor how a node leaves the tree.

Whoever uses a prefix marks its nodes, the deepest first, and what is said of a node holds for those above it at least
as much: a retained node's parent is retained no shorter and no less, and a node is only given up after all its
children. So no node ever goes before its children, and the first in the order is always a leaf. Finding it looks at
the first node of each ring, of which there are a few dozen at most; everything else takes constant time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator

from mainstem.tree.eviction import EvictionReason
from mainstem.tree.hints import NUM_PRIORITIES, Retention
from mainstem.tree.node import NO_TOKENS, Node

RETENTION_BUDGET = 0.5
"""Share of the pool in which retention counts, if nothing else is said."""
MANY_BRANCHES = 4
"""A node that so many continuations began at is shared by many."""
SHARED_TTL_FACTOR = 4.0
"""How much longer than others a node that many share may be idle before it expires."""
DOUBT = 4.0
"""A doubtful node counts as idle for so many times as long when room is needed."""


class Ring:
    """Unlocked nodes, the first to go first, linked through the nodes themselves.

    Attributes:
        retention: of the nodes in it, None for none.
        tokens: that they have together.
    """

    __slots__ = ("_end", "retention", "tokens")

    def __init__(self, retention: Retention | None = None) -> None:
        self.retention = retention
        self.tokens = 0
        self._end = Node(NO_TOKENS, NO_TOKENS, None, None)
        self._end.older = self._end.newer = self._end

    def oldest(self) -> Node | None:
        """The first one; None when the ring is empty."""
        node = self._end.newer
        return None if node is self._end else node

    @property
    def latest_use(self) -> float:
        """When its last node was used, if nodes are in it in the order of their use."""
        return -math.inf if self._end.older is self._end else self._end.older.last_used

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
        self.tokens += len(node.key)

    def remove(self, node: Node) -> None:
        """Take a node out."""
        node.older.newer = node.newer
        node.newer.older = node.older
        self.tokens -= len(node.key)

    def __iter__(self) -> Iterator[Node]:
        node = self._end.newer
        while node is not self._end:
            yield node
            node = node.newer


class EvictionOrder:
    """All nodes that no lock protects, in the order in which they are evicted.

    1. Nodes that were given up, in the order in which that was done.
    2. All others but retained ones, the least recently used first, doubtful ones as if they had been idle for `DOUBT`
       times as long. When more is retained than the budget allows, the
       least valuable retained node counts among these, and so on until the rest fits.
    3. Retained ones, by priority, then the least recently used first, until their time is over: then they are in 2.

    Args:
        retention_budget: tokens that may be retained at once.
        clock: seconds, never going back.

    Attributes:
        on_revival: called with a node that was given up and is used again all the same.
    """

    def __init__(self, retention_budget: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.retention_budget = retention_budget
        self.on_revival: Callable[[Node], None] | None = None
        self._clock = clock
        self._now = -math.inf
        self._given_up = Ring()
        self._ordinary = Ring()
        self._shared = Ring()
        self._doubtful = Ring()
        self._retained: dict[Retention, Ring] = {}
        # Nodes that were retained and are no more, until they are used again: a ring for each that they come from.
        self._lapsed: dict[Retention, Ring] = {}

    # -- what is used ---------------------------------------------------------------------------------------------

    def tick(self) -> float:
        """The time, as a number that it never was before: two nodes have the same only if they were used together."""
        now = self._clock()
        if now <= self._now:
            now = math.nextafter(self._now, math.inf)
        self._now = now
        return now

    def at(self, now: float) -> None:
        """The latest time is this, which another order has given out."""
        self._now = now

    def place(self, node: Node, now: float) -> None:
        """Take in a new node, which nobody has locked."""
        node.ring = self._ordinary
        self.add(node, now)

    def add(self, node: Node, now: float) -> None:
        """Take in a node that no lock protects any more, as the most recently used one."""
        node.last_used = now
        node.ring.append(node)

    def remove(self, node: Node) -> None:
        """Take out a node that was locked, or is evicted."""
        node.ring.remove(node)

    def use(self, node: Node, now: float) -> None:
        """Note that a node, locked or not, is used now. What was given up or doubtful is so no more; what is
        retained stays so."""
        if node.locks == 0:
            node.ring.remove(node)
        if node.ring is not self._ordinary and not self._is_retained(node, now):
            if node.ring is self._given_up and self.on_revival is not None:
                self.on_revival(node)
            node.fate = EvictionReason.LRU
            node.ring = self._usual_ring(node)
        node.last_used = now
        if node.locks == 0:
            node.ring.append(node)

    def place_above(self, upper: Node, lower: Node) -> None:
        """Give the upper part of a node that was split the place after the lower one; their keys are cut already."""
        upper.ring, upper.fate, upper.last_used = lower.ring, lower.fate, lower.last_used
        upper.branches = lower.branches if lower.branches >= MANY_BRANCHES else 1
        if lower.locks == 0:
            lower.ring.tokens -= len(upper.key)
            lower.ring.insert_after(lower, upper)

    def replace(self, node: Node, shorter: Node) -> None:
        """Put a node in the place of another one, which nobody has locked."""
        shorter.ring, shorter.fate, shorter.last_used = node.ring, node.fate, node.last_used
        node.ring.insert_after(node, shorter)
        node.ring.remove(node)

    # -- what is said of its worth --------------------------------------------------------------------------------

    def branched(self, node: Node) -> None:
        """Note that another edge begins below a node that is being used; where many do, all above is shared by many."""
        node.branches += 1
        if node.branches != MANY_BRANCHES:
            return
        at: Node | None = node
        while at is not None and at.parent is not None:
            at.branches = max(at.branches, MANY_BRANCHES)
            if at.ring is self._ordinary:
                self._move(at, self._shared)
            at = at.parent

    def retain(self, node: Node, retention: Retention) -> None:
        """Retain a node that was used just now; all above it are to be retained too, after it."""
        held = node.ring.retention if self._is_retained(node, self._now) else None
        wanted = retention if held is None else retention.joined(held)
        if wanted not in self._retained:
            self._retained[wanted] = Ring(wanted)
        node.fate = EvictionReason.LRU
        self._move(node, self._retained[wanted])

    def give_up(self, node: Node, reason: EvictionReason) -> None:
        """Make a node one of the first to go. Nobody has locked it, and all its children were given up."""
        node.fate = reason
        self._move(node, self._given_up)

    def doubt(self, node: Node) -> None:
        """Make a node a doubtful one, unless it is retained, others may use it too, or it was not used just now.

        All its children were made so before, or are given up.
        """
        if node.ring is self._ordinary and node.last_used >= self._doubtful.latest_use:
            self._move(node, self._doubtful)

    def is_doubtful(self, node: Node) -> bool:
        """Whether a node was made doubtful and not used since."""
        return node.ring is self._doubtful

    def is_given_up(self, node: Node) -> bool:
        """Whether a node was given up and not used since."""
        return node.ring is self._given_up

    # -- what goes ------------------------------------------------------------------------------------------------

    def first(self) -> Node | None:
        """The leaf to evict first; None when every node is locked."""
        node = self._given_up.oldest()
        if node is not None:
            return node
        if not self._retained:
            return self._less_recent(_least_recent((self._ordinary, self._shared)))
        self._lapse()
        node = self._less_recent(_least_recent((self._ordinary, self._shared, *self._lapsed.values())))
        cheapest = self._least_valuable()
        if node is None or cheapest is None:
            return node or cheapest
        too_much = self.retained_tokens > self.retention_budget
        return cheapest if too_much and cheapest.last_used < self._counts_as_used(node) else node

    def expired(self, ttl_s: float) -> Node | None:
        """A leaf that was not used for so long and is not retained, if there is one.

        Nodes that many share expire later than others: they are more likely to be wanted again.
        """
        self._lapse()
        since = self._clock() - ttl_s
        due = [
            ring
            for ring in (self._given_up, self._doubtful, self._ordinary, *self._lapsed.values())
            if _begins_before(ring, since)
        ]
        if _begins_before(self._shared, since - (SHARED_TTL_FACTOR - 1.0) * ttl_s):
            due.append(self._shared)
        node = _least_recent(due)
        # What is below was used no later, but may wait in its ring behind nodes that were.
        while node is not None and node.children:
            node = next(iter(node.children.values()))
        return node

    def retention_of(self, node: Node) -> Retention | None:
        """How a node is retained now; None if it is not, or no more."""
        return node.ring.retention if self._is_retained(node, self._clock()) else None

    @property
    def retained_tokens(self) -> int:
        """Unlocked tokens that are retained."""
        return sum(ring.tokens for ring in self._retained.values())

    @property
    def given_up_tokens(self) -> int:
        """Tokens that were given up."""
        return self._given_up.tokens

    def rings(self) -> Iterator[Ring]:
        """All rings but that of given up nodes: in each, nodes are in the order of their use."""
        yield from (*self._unretained(), *self._retained.values())

    def given_up(self) -> Ring:
        """The nodes that were given up."""
        return self._given_up

    def usual(self) -> Ring:
        """The nodes of which nothing is known but when they were used."""
        return self._ordinary

    def _usual_ring(self, node: Node) -> Ring:
        return self._shared if node.branches >= MANY_BRANCHES else self._ordinary

    def _is_retained(self, node: Node, now: float) -> bool:
        retention = node.ring.retention
        return retention is not None and (node.locks > 0 or node.last_used + retention.ttl_s > now)

    def _unretained(self) -> tuple[Ring, ...]:
        return (self._ordinary, self._shared, self._doubtful, *self._lapsed.values())

    def _less_recent(self, node: Node | None) -> Node | None:
        """The first doubtful node, if it counts as less recently used than this one; else this one."""
        doubtful = self._doubtful.oldest()
        if doubtful is None or node is None:
            return doubtful or node
        return doubtful if self._counts_as_used(doubtful) <= node.last_used else node

    def _counts_as_used(self, node: Node) -> float:
        """When an unretained node counts as used last."""
        if node.ring is not self._doubtful:
            return node.last_used
        now = max(self._clock(), node.last_used)
        return now - DOUBT * (now - node.last_used)

    @staticmethod
    def _move(node: Node, ring: Ring) -> None:
        if node.locks == 0:
            node.ring.remove(node)
            ring.append(node)
        node.ring = ring

    def _least_valuable(self) -> Node | None:
        """The first retained node to go."""
        for priority in range(NUM_PRIORITIES):
            rings = [ring for retention, ring in self._retained.items() if retention.priority == priority]
            if (node := _least_recent(rings)) is not None:
                return node
        return None

    def _lapse(self) -> None:
        """Take nodes whose time is over out of the retained ones."""
        now = self._clock()
        for retention, ring in self._retained.items():
            while (node := ring.oldest()) is not None and node.last_used + retention.ttl_s <= now:
                ring.remove(node)
                node.ring = self._lapsed.setdefault(retention, Ring())
                node.ring.append(node)


def _least_recent(rings: Iterable[Ring]) -> Node | None:
    """The least recently used first node of these rings; of nodes that were used together, the leaf."""
    found: Node | None = None
    for ring in rings:
        node = ring.oldest()
        if node is None:
            continue
        if found is None or (node.last_used, bool(node.children)) < (found.last_used, bool(found.children)):
            found = node
    return found


def _begins_before(ring: Ring, moment: float) -> bool:
    node = ring.oldest()
    return node is not None and node.last_used <= moment
