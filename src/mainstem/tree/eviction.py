"""Why tokens leave the tree, and who is told of it.

It knows nothing of the order in which they leave.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from mainstem.tree.node import Node


class EvictionReason(StrEnum):
    """Why a node was evicted, or a part of it."""

    LRU = "lru"
    """Room was needed, and it was the least valuable."""
    EXPIRED = "expired"
    """Nobody used it for longer than the cache's time to live."""
    ENDED = "ended"
    """Room was needed, and its session had said that it would not return."""
    SUPERSEDED = "superseded"
    """Room was needed, and its session had gone on with another history."""
    REWRITTEN = "rewritten"
    """Room was needed, and it was the end of a prompt that its session was about to write anew, as the others had."""
    QUOTA = "quota"
    """Its tenant needed room and had used up its own."""
    RESET = "reset"
    """Somebody asked to forget everything."""


OnEvict: TypeAlias = "Callable[[Node, int, EvictionReason], None]"
"""Called just before tokens leave the tree, with a leaf that is still linked to its parent, how many tokens of its edge
stay (0 when the whole node goes), and why. It must not change the cache."""
