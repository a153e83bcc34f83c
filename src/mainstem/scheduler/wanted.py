"""How much of what may leave the radix tree somebody who waits begins with, asked leaf by leaf as room is made.

The tokens that lead to a leaf are not compared each time: where those of its parent end in the tree of waiting prompts
is remembered, and holds until that place is split or pruned away. Places that hold no more are forgotten before they
are more than those that do, but for a few. It knows both trees, and not who waits.
"""

from __future__ import annotations

import numpy as np

from mainstem.scheduler.prompts import PromptNode, WaitingPrompts
from mainstem.tree import TokenArray
from mainstem.tree.node import Node
from mainstem.tree.tenancy import is_public

# So many places are remembered before it is looked which of them still hold.
FEW_PLACES = 64


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
        self._remembered = FEW_PLACES

    def __len__(self) -> int:
        """How many places are remembered."""
        return len(self._places)

    def of(self, leaf: Node) -> int:
        """How many tokens of a leaf's edge the prompts of its own namespace begin with, and all tokens above."""
        above = leaf.parent
        assert above is not None
        place = self._places.get(above)
        if place is None or not place[0].holds(place[1]):
            place = self._find(leaf, above)
        return 0 if place is None else self._prompts.matched_below(*place, leaf.key)

    def forget(self) -> None:
        """Nobody waits any more."""
        self._places.clear()
        self._remembered = FEW_PLACES

    def _find(self, leaf: Node, above: Node) -> tuple[PromptNode, int] | None:
        """Where the tokens above a leaf's edge end among the prompts; None if no prompt begins with all of them."""
        is_top = above.parent is None
        tokens = leaf.key[:0] if is_top else tokens_to(above)
        node = self._prompts.find(leaf.space.namespace, tokens)
        if node is None:
            return None
        place = node, len(tokens)
        # The top takes no time to find; what is public may be above several namespaces, each with its own prompts.
        if not is_top and not is_public(above.space.namespace):
            self._remember(above, place)
        return place

    def _remember(self, above: Node, place: tuple[PromptNode, int]) -> None:
        if len(self._places) >= self._remembered:
            self._places = {
                node: (prompt, length)
                for node, (prompt, length) in self._places.items()
                if node.home is not None and prompt.holds(length)
            }
            self._remembered = max(FEW_PLACES, 2 * len(self._places))
        self._places[above] = place
