"""How much of what may leave the radix tree somebody who waits begins with, asked leaf by leaf as room is made.

The tokens that lead to a leaf are not compared each time: where those of its parent end in the tree of waiting prompts
is remembered, and holds until that place is split or pruned away. It knows both trees, and not who waits.
"""

from __future__ import annotations

import numpy as np

from mainstem.scheduler.prompts import PromptNode, WaitingPrompts
from mainstem.tree import TokenArray
from mainstem.tree.node import Node
from mainstem.tree.tenancy import is_public

# Places that are remembered; then all are forgotten, with the nodes that have left the tree since.
MOST_REMEMBERED = 1024


def tokens_to(node: Node) -> TokenArray:
    """All tokens from the root to a node's end."""
    return np.concatenate([above.key for above in node.path()])


class WantedEdges:
    """Which edges of the radix tree waiting prompts lead into.

    Args:
        prompts: that wait.
    """

    def __init__(self, prompts: WaitingPrompts) -> None:
        self._prompts = prompts
        self._places: dict[Node, tuple[PromptNode, int]] = {}

    def of(self, leaf: Node) -> int:
        """How many tokens of a leaf's edge the prompts of its own namespace begin with, and all tokens above."""
        above = leaf.parent
        assert above is not None
        place = self._places.get(above)
        if place is None or not place[0].holds(place[1]):
            place = self._find(leaf, above)
        return 0 if place is None else self._prompts.matched_below(*place, leaf.key)

    def _find(self, leaf: Node, above: Node) -> tuple[PromptNode, int] | None:
        """Where the tokens above a leaf's edge end among the prompts; None if no prompt begins with all of them."""
        tokens = tokens_to(above) if above.parent is not None else leaf.key[:0]
        node = self._prompts.find(leaf.space.namespace, tokens)
        if node is None:
            return None
        if not is_public(above.space.namespace):  # else it may be above several namespaces, each with its own prompts
            if len(self._places) >= MOST_REMEMBERED:
                self._places.clear()
            self._places[above] = (node, len(tokens))
        return node, len(tokens)
