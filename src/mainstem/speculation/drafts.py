"""Guessed tokens as trees: all that could be checked, and the part of it that a step checks.

A node is a token after the tokens of its ancestors. It knows tokens and probabilities, not what a step costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mainstem.speculation.rates import Rates
from mainstem.tree import TokenArray

# Most drafts in one step; the logits of each are as wide as the vocabulary.
MAX_DRAFTS = 256


class DraftTree(NamedTuple):
    """Tokens that may follow a request's last one, to be checked in one step.

    Attributes:
        tokens: of every node; the first path is 0, 1, 2, …
        parents: of every node, a smaller number; -1 where it follows the request's last token.
    """

    tokens: list[int]
    parents: list[int]

    def path(self, node: int) -> list[int]:
        """The nodes from the first draft to this one."""
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def child(self, parent: int, token: int) -> int | None:
        """The node with this token below `parent` (-1 at the beginning), if there is one."""
        for node in range(parent + 1, len(self.tokens)):
            if self.parents[node] == parent and self.tokens[node] == token:
                return node
        return None


@dataclass(slots=True, eq=False)
class Guess:
    """A node of all candidates; `probability` is that of the whole path to it."""

    token: int
    kind: str
    probability: float
    depth: int
    children: list[Guess] = field(default_factory=list)


class Candidates:
    """All that is guessed to follow one request's last token.

    Args:
        rates: how often guesses of each kind come true.
    """

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self.root = Guess(-1, "", 1.0, 0)

    def add(self, tokens: TokenArray, kind: str) -> None:
        """Add a path; what it has in common with one before it is taken as guessed by that."""
        node = self.root
        rate = self._rates.of(kind)
        for token in tokens.tolist():
            known = next((child for child in node.children if child.token == token), None)
            if known is None:
                # The others at this place come first; it is right only if none of them is.
                missed = 1.0
                for child in node.children:
                    missed *= 1.0 - self._rates.of(child.kind)
                known = Guess(token, kind, node.probability * missed * rate, node.depth + 1)
                node.children.append(known)
            node = known

    def count(self, said: Sequence[int]) -> None:
        """Tell the rates what the reply really said next."""
        node = self.root
        for token in said:
            following = None
            for child in node.children:
                self._rates.count(child.kind, child.token == token)
                if child.token == token:
                    following = child
                    break
            if following is None:
                return
            node = following


def draft_of(chosen: Iterable[Guess], root: Guess) -> DraftTree:
    """The chosen nodes below `root`, with every ancestor among them, as a tree to check."""
    kept = set(map(id, chosen))
    tokens: list[int] = []
    parents: list[int] = []
    pending = [(child, -1) for child in reversed(root.children)]
    while pending:
        guess, parent = pending.pop()
        if id(guess) in kept:
            tokens.append(guess.token)
            parents.append(parent)
            pending.extend((child, len(tokens) - 1) for child in reversed(guess.children))
    return DraftTree(tokens, parents)
