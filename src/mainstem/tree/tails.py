"""How much of a prompt is lost when its conversation comes back.

A prompt rarely ends as its successor goes on: a template closes a turn otherwise than it opens a reply, reasoning is
dropped from the history, the last message is a reminder that moves along. What is lost each time need not be kept. So
it is counted, by the power of two below it, how many tokens of a prompt its successor did not use.

Some conversations lose more: each prompt has a history of its own, and what the previous one brought is of no use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mainstem.tree.node import ChildKey, Node

MEMORY = 200.0
"""After so many more returns, one counts a third."""
SURE = 0.9
"""Share of the returns that must have lost a length for it to be given up beforehand."""
ENOUGH = 8.0
"""Returns that must have been seen."""
NUM_LENGTHS = 24
MAX_LEFT = 4
"""Requests of one conversation of which it is remembered what they left."""


class LostTails:
    """How many tokens of their latest prompt conversations lost when they came back, most recent returns first."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0.0] * NUM_LENGTHS

    def note(self, lost: int) -> None:
        """A conversation has come back and not used this many tokens at the end of what it had left."""
        self._counts = [count * (1.0 - 1.0 / MEMORY) for count in self._counts]
        self._counts[min(lost.bit_length(), NUM_LENGTHS - 1)] += 1.0

    @property
    def expected(self) -> int:
        """The greatest power of two that nearly all returns lose; 0 if there is none."""
        total = sum(self._counts)
        if total < ENOUGH:
            return 0
        losing = total
        for bits, count in enumerate(self._counts):
            losing -= count
            if losing < SURE * total:
                return 1 << (bits - 1) if bits else 0
        return 0


class Left:
    """What a request of a conversation left in the tree when it ended.

    Attributes:
        length: tokens from the top of the tree.
        found: how many of them the request had found there.
        tail: so many of them were given up as one that will be lost.
        tail_key: under which their node hangs.
    """

    __slots__ = ("found", "length", "tail", "tail_key")

    def __init__(self, found: int, length: int) -> None:
        self.found = found
        self.length = length
        self.tail = 0
        self.tail_key: ChildKey | None = None

    def lost(self, kept: int, used: int, next_key: ChildKey | None) -> int | None:
        """How many tokens of it a request that comes later does not use.

        Args:
            kept: how many of them were still cached.
            used: how many the request found.
            next_key: under which the request would go on, where it found no more; None if it ends there.

        Returns:
            None where they were evicted before it could be seen.
        """
        if used < kept or kept == self.length:
            return self.length - used
        if kept + self.tail == self.length:
            return 0 if next_key == self.tail_key else self.tail
        return None

    def was_of_use(self, lost: int) -> bool:
        """Whether a request that loses so many tokens uses half of what this one had brought, but for its tail."""
        brought = self.length - self.tail - self.found
        return 2 * (lost - self.tail) <= max(brought, 0)


class Returns:
    """What the latest requests of one conversation left, to be compared with what comes next.

    A conversation may alternate between prompts, as of an agent and its sub-agent. So a request is compared with the
    one of which it uses most.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: dict[Node, Left] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(self._left)

    def leave(self, node: Node, found: int) -> None:
        """A request that had found so many tokens has ended, and what it leaves ends with `node`."""
        self._left.pop(node, None)
        self._left[node] = Left(found, depth_of(node))
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]

    def gave_up(self, nodes: Sequence[Node], key: ChildKey) -> None:
        """The tail of what was left last is given up: these nodes, the tip first, the last kept under `key`."""
        left = self._left[nodes[0]]
        left.tail, left.tail_key = sum(len(node.key) for node in nodes), key

    def take(self, node: Node, next_key: ChildKey | None) -> tuple[Left, int] | None:
        """A request has come that used just now what ends with `node`.

        Args:
            node: the last that it found.
            next_key: as in `Left.lost`.

        Returns:
            What it goes on from, and how many tokens of that it does not use; None if that cannot be known.
        """
        most: tuple[int, Node, Node] | None = None
        for end in reversed(self._left):
            common = end
            while common.parent is not None and (node.parent is None or common.last_used != node.last_used):
                common = common.parent
            used = depth_of(common)
            if most is None or used > most[0]:
                most = used, end, common
        if most is None:
            return None
        used, end, common = most
        left = self._left.pop(end)
        lost = left.lost(depth_of(end), used, next_key if common is node else None)
        return None if lost is None else (left, lost)

    def evicted(self, node: Node, above: Node | None) -> None:
        """A node goes; what ended with it will end with the one above, if that is of the conversation alone."""
        left = self._left.pop(node, None)
        if left is not None and above is not None:
            self._left.setdefault(above, left)

    def replaced(self, node: Node, shorter: Node) -> None:
        """A node was cut, and another one is in its place."""
        left = self._left.pop(node, None)
        if left is not None:
            self._left[shorter] = left


def depth_of(node: Node) -> int:
    """Tokens from the top of the tree to the end of a node."""
    return sum(len(above.key) for above in node.path())
