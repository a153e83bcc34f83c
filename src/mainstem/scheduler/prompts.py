"""The waiting prompts as a tree, so that thousands of them are ordered by what they begin with.

Prompts that begin alike share nodes, so a change of what is known of a prefix is noted once for all of them, in time
proportional to the nodes on its path. Every node keeps who comes first below it, in two orders: by place in the queue,
and by how many leading tokens are known. It does not know what "known" means (in the cache, for one), nor who asks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import cast

import numpy as np

from mainstem.tree import NamespaceKey, TokenArray, common_length

Rank = tuple[float, int]
"""Minus the known tokens of an edge for each prompt below it, then a place in the queue: the least comes first."""

NOBODY = sys.maxsize
NO_RANK: Rank = (1, NOBODY)
_NO_TOKENS: TokenArray = np.empty(0, np.int32)
_serials = count()


class PromptNode:
    """One edge of the tree and the node at its lower end.

    Known tokens begin at the root: an edge has any only if all of the edge above is known.

    Attributes:
        key: under which the parent keeps it.
        tokens: begins with all tokens from the root to this node.
        start: where in `tokens` the edge begins.
        depth: where it ends.
        known: of the tokens before `depth`, how many are known, `start` at least.
        first: the least place in the queue here or below.
        best: its rank among its siblings, and who is next below; it counts above if the edge is warm.
        hidden: nobody here or below is to be seen.
        num_ending: how many prompts end here.
        num_below: how many end here or below.
    """

    __slots__ = (
        "_by_first",
        "_by_rank",
        "best",
        "children",
        "depth",
        "ending",
        "first",
        "hidden",
        "key",
        "known",
        "num_below",
        "num_ending",
        "parent",
        "serial",
        "start",
        "tokens",
    )

    def __init__(
        self, key: object, tokens: TokenArray, start: int, depth: int, known: int, parent: PromptNode | None
    ) -> None:
        self.key = key
        self.tokens = tokens
        self.start = start
        self.depth = depth
        self.known = known
        self.parent = parent
        self.children: dict[object, PromptNode] = {}
        self.ending: list[int] = []  # a heap; may hold places of prompts that have left
        self.num_ending = self.num_below = 0
        self.first = NOBODY
        self.best = NO_RANK
        self.hidden = False
        self.serial = next(_serials)
        # Heaps of what children were worth when that last changed; entries that no longer hold are dropped on top.
        self._by_first: list[tuple[int, int, PromptNode]] = []
        self._by_rank: list[tuple[Rank, int, PromptNode]] = []

    @property
    def warm(self) -> bool:
        """Whether any token of the edge is known."""
        return self.known > self.start

    def holds(self, length: int) -> bool:
        """Whether it is in the tree, and the first `length` of its tokens end on its edge or with it."""
        return self.parent is not None and self.start < length <= self.depth

    def leave(self) -> None:
        """It is in the tree no more: let go of all prompts, so that whoever remembers it keeps none in memory."""
        self.parent = None
        self.tokens = _NO_TOKENS
        self.children, self._by_first, self._by_rank = {}, [], []

    def file(self, child: PromptNode) -> None:
        """Take note of what a child is worth now."""
        if child.first == NOBODY:
            return
        if len(self._by_first) > 2 * len(self.children) + 16:
            self._by_first = [(c.first, c.serial, c) for c in self.children.values() if c.first != NOBODY]
            heapify(self._by_first)
        else:
            heappush(self._by_first, (child.first, child.serial, child))
        if not child.warm:
            return
        if len(self._by_rank) > 2 * len(self.children) + 16:
            self._by_rank = [(c.best, c.serial, c) for c in self.children.values() if c.warm and c.first != NOBODY]
            heapify(self._by_rank)
        else:
            heappush(self._by_rank, (child.best, child.serial, child))

    def first_of_children(self) -> int:
        """The least place in the queue below."""
        heap = self._by_first
        while heap:
            first, _, child = heap[0]
            if child.parent is self and child.first == first:
                return first
            heappop(heap)
        return NOBODY

    def best_of_warm_children(self) -> Rank:
        """The least rank below edges of which tokens are known."""
        heap = self._by_rank
        while heap:
            best, _, child = heap[0]
            if child.parent is self and child.best == best and child.warm:
                return best
            heappop(heap)
        return NO_RANK


class WaitingPrompts:
    """Prompts, each with its place in the queue, by namespace."""

    def __init__(self) -> None:
        self._top = PromptNode(None, _NO_TOKENS, -2, -1, -1, None)
        self._at: dict[int, PromptNode] = {}
        self._hidden: list[PromptNode] = []

    def __len__(self) -> int:
        return len(self._at)

    def namespaces(self) -> list[NamespaceKey]:
        """Those in which anybody waits."""
        return [cast(NamespaceKey, key) for key in self._top.children]

    # -- who waits ------------------------------------------------------------------------------------------------

    def add(self, order: int, namespace: NamespaceKey, tokens: TokenArray, known: int) -> None:
        """Add a prompt, of which so many leading tokens are known, at a place that is not taken."""
        root = self._top.children.get(namespace)
        if root is None:
            root = self._top.children[namespace] = PromptNode(namespace, _NO_TOKENS, -1, 0, 0, self._top)
        node, matched = self._descend(root, tokens)
        if matched < node.depth:
            node = self._split(node, matched)
        if matched < len(tokens):
            node = self._grow(node, tokens, matched)
        heappush(node.ending, order)
        node.num_ending += 1
        self._at[order] = node
        self._count(node, 1)
        self._note_known(node, known)
        self._refresh(node, self._top)

    def remove(self, order: int) -> None:
        """Take a prompt out."""
        node = self._at.pop(order)
        node.num_ending -= 1
        self._count(node, -1)
        self._refresh(self._prune(node), self._top)

    # -- what is known of them ------------------------------------------------------------------------------------

    def learn(self, namespace: NamespaceKey, tokens: TokenArray) -> None:
        """All of these tokens are known from now on."""
        root = self._top.children.get(namespace)
        if root is None:
            return
        lowest, matched = self._descend(root, tokens)
        highest = self._note_known(lowest, matched)
        if highest is not None:
            self._refresh(lowest, highest)

    def _note_known(self, lowest: PromptNode, known: int) -> PromptNode | None:
        """So many tokens on the path to a node are known; the highest node for which that is new, if there is one."""
        highest: PromptNode | None = None
        node: PromptNode | None = lowest
        while node is not None and node.start >= known:
            node = node.parent
        while node is not None and node.known < min(known, node.depth):
            node.known = min(known, node.depth)
            highest, node = node, node.parent
        return highest

    def forget(self, namespace: NamespaceKey, tokens: TokenArray, length: int) -> None:
        """Nothing is known any more that begins with more than the first `length` of these tokens."""
        root = self._top.children.get(namespace)
        if root is None:
            return
        lowest, matched = self._descend(root, tokens, while_known=True)
        if matched <= length or lowest.known <= length:
            return
        highest = lowest
        while highest.start > length:
            assert highest.parent is not None
            highest = highest.parent
        # On the way down, and beside it, nothing is known any more either.
        cooled = [highest]
        for node in cooled:
            cooled.extend(child for child in node.children.values() if child.warm)
            node.known = node.start
        highest.known = length
        for node in reversed(cooled):
            self._survey(node)
        self._refresh(lowest, highest)

    def matched(self, namespace: NamespaceKey, tokens: TokenArray) -> int:
        """How many leading tokens of these some prompt has too."""
        root = self._top.children.get(namespace)
        return 0 if root is None else self._descend(root, tokens)[1]

    def find(self, namespace: NamespaceKey, tokens: TokenArray) -> PromptNode | None:
        """The node on whose edge, or with which, these tokens end; None if no prompt begins with them."""
        root = self._top.children.get(namespace)
        if root is None:
            return None
        node, matched = self._descend(root, tokens)
        return node if matched == len(tokens) else None

    def matched_below(self, node: PromptNode, length: int, tokens: TokenArray) -> int:
        """How many of these tokens some prompt has after the first `length` of a node that `holds` as many."""
        matched = common_length(node.tokens[length : node.depth], tokens) if length < node.depth else 0
        if length + matched < node.depth:
            return matched
        while matched < len(tokens) and (child := node.children.get(tokens.item(matched))) is not None:
            node = child
            matched += common_length(node.tokens[length + matched : node.depth], tokens[matched:])
            if length + matched < node.depth:
                break
        return matched

    def known(self, order: int) -> int:
        """How many leading tokens of a prompt are known."""
        node = self._at[order]
        while not node.warm and node.parent is not None:
            node = node.parent
        return max(node.known, 0)

    # -- who comes first ------------------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The least place in the queue that can be seen; NOBODY if there is none."""
        return self._top.first

    @property
    def best(self) -> int:
        """The place of the prompt of which most is known, the first of equals; NOBODY if none can be seen."""
        return self._top.best[1]

    def is_hidden(self, order: int) -> bool:
        """Whether the prompt at this place is not to be seen."""
        node: PromptNode | None = self._at[order]
        while node is not None and not node.hidden:
            node = node.parent
        return node is not None

    def hide(self, namespace: NamespaceKey, tokens: TokenArray, length: int) -> None:
        """Hide whoever begins with the first `length` of these tokens, one at least."""
        root = self._top.children.get(namespace)
        if root is None:
            return
        node, matched = self._descend(root, tokens[:length])
        if matched == length and not node.hidden:
            node.hidden = True
            self._hidden.append(node)
            self._refresh(node)

    def hide_one(self, order: int) -> None:
        """Hide those whose prompt is that of the one at this place, or goes on from it."""
        node = self._at[order]
        if not node.hidden:
            node.hidden = True
            self._hidden.append(node)
            self._refresh(node)

    def show_all(self) -> None:
        """Show again who was hidden."""
        for node in self._hidden:
            node.hidden = False
            if node.parent is not None:
                self._refresh(node)
        self._hidden.clear()

    def within(self, namespace: NamespaceKey, tokens: TokenArray, shortest: int) -> Iterator[int]:
        """Places of those whose prompts are beginnings of these tokens, of at least `shortest`."""
        root = self._top.children.get(namespace)
        if root is None:
            return
        node: PromptNode | None
        node, matched = self._descend(root, tokens)
        while node is not None and node.depth >= max(shortest, 1):
            if node.depth <= matched and node.num_ending:
                yield from (order for order in node.ending if self._at.get(order) is node)
            node = node.parent

    # -- the tree -------------------------------------------------------------------------------------------------

    def _descend(self, root: PromptNode, tokens: TokenArray, *, while_known: bool = False) -> tuple[PromptNode, int]:
        """The node that the tokens lead to or into, and how many of them match; not below what is known, if asked."""
        node, matched = root, 0
        while matched < len(tokens) and not (while_known and node.known < node.depth):
            child = node.children.get(tokens.item(matched))
            if child is None:
                break
            node = child
            matched += common_length(child.tokens[matched : child.depth], tokens[matched : child.depth])
            if matched < child.depth:
                break
        return node, matched

    def _grow(self, parent: PromptNode, tokens: TokenArray, start: int) -> PromptNode:
        leaf = PromptNode(tokens.item(start), tokens, start, len(tokens), start, parent)
        parent.children[leaf.key] = leaf
        return leaf

    def _split(self, node: PromptNode, at: int) -> PromptNode:
        """Put a new node above, with the edge's beginning; returns it."""
        parent = node.parent
        assert parent is not None
        upper = PromptNode(node.key, node.tokens, node.start, at, min(node.known, at), parent)
        upper.num_below = node.num_below
        parent.children[upper.key] = upper
        node.key, node.start, node.known, node.parent = node.tokens.item(at), at, max(node.known, at), upper
        upper.children[node.key] = node
        self._survey(node)
        upper.file(node)
        return upper

    def _prune(self, node: PromptNode) -> PromptNode:
        """Drop nodes that nobody needs any more, from this one up; returns the lowest that may be worth less now."""
        parent = node.parent
        while node.num_ending == 0 and not node.children and parent is not None:
            del parent.children[node.key]
            node.leave()
            node, parent = parent, parent.parent
        if node.num_ending or len(node.children) != 1 or node.depth <= 0:
            return node
        assert parent is not None
        (child,) = node.children.values()
        child.key, child.start, child.parent = node.key, node.start, parent
        if node.known < node.depth:
            child.known = node.known
        if node.hidden and not child.hidden:
            child.hidden = True
            self._hidden.append(child)
        parent.children[child.key] = child
        node.leave()
        self._survey(child)
        parent.file(child)
        return parent

    def _survey(self, node: PromptNode) -> bool:
        """Work out what a node is worth; whether that has changed."""
        before = node.first, node.best
        ending = node.ending
        while ending and self._at.get(ending[0]) is not node:
            heappop(ending)
        first = min(ending[0] if ending else NOBODY, node.first_of_children())
        if node.hidden or first == NOBODY:
            node.first, node.best = NOBODY, NO_RANK
        else:
            share, best = node.best_of_warm_children() if node.known == node.depth else NO_RANK
            if node.start >= 0:  # else it stands for a namespace, or all of them
                share = (node.start - node.known) / node.num_below
            node.first, node.best = first, (share, first if best == NOBODY else best)
        return (node.first, node.best) != before

    def _refresh(self, node: PromptNode, highest: PromptNode | None = None) -> None:
        """Work out anew what nodes are worth, from this one up: to `highest` at least, then as far as that changes."""
        highest = highest or node
        passed = False
        above: PromptNode | None = node
        while above is not None:
            if not self._survey(above) and passed:
                return
            passed = passed or above is highest
            if above.parent is not None:
                above.parent.file(above)
            above = above.parent

    def _count(self, node: PromptNode, change: int) -> None:
        """More or fewer prompts end at a node."""
        above: PromptNode | None = node
        while above is not None:
            above.num_below += change
            above = above.parent

    # -- integrity ------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Verify every invariant by looking at every node.

        Raises:
            AssertionError: naming the broken invariant.
        """
        nodes = [self._top]
        for node in nodes:
            nodes.extend(node.children.values())
        ending: dict[PromptNode, list[int]] = {}
        for order, node in self._at.items():
            ending.setdefault(node, []).append(order)
        for node in reversed(nodes):
            children = node.children.values()
            assert node.num_ending == len(ending.get(node, ())), "prompts that end at a node are miscounted"
            assert node.num_below == node.num_ending + sum(child.num_below for child in children), "some are miscounted"
            assert node.start <= node.known <= node.depth, "more of an edge is known than it has"
            for key, child in node.children.items():
                assert child.parent is node, "a child has another parent"
                assert child.key == key, "a child is in the wrong place"
                assert node.known == node.depth or not child.warm, "known tokens begin below unknown ones"
            assert node.num_below or node is self._top, "nobody waits at a node"
            assert node.num_ending or len(children) > 1 or node.depth <= 0, "a node could be one with its child"
            first = min([*ending.get(node, ()), *(child.first for child in children)], default=NOBODY)
            assert node.first == first, "the first of a node is wrong"
            share, best = min((child.best for child in children if child.warm), default=NO_RANK)
            if node.start >= 0:
                share = (node.start - node.known) / node.num_below
            assert node.best == (share, first if best == NOBODY else best), "the best of a node is wrong"
        assert self._top.num_below == len(self._at), "a prompt is lost"
