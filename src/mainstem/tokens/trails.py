"""Long conversations in one piece each, so that one which goes on is known at a glance and not part by part.

It knows texts and ids; it knows nothing of how they are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mainstem.tokens.known_prompt import Part
from mainstem.tokens.tokenizer import TokenArray

# Shorter conversations are known part by part in less time than it takes to keep them in one piece too.
SHORTEST = 32
# Parts after which they are looked for: by then hardly any other has the same.
LOOK_AFTER = 8
# Conversations that begin with the same parts and are kept in one piece.
MAX_TRAILS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Trail:
    """The first parts of a prompt, put together.

    Attributes:
        start, node: where they are looked for and where they end, in whatever keeps the parts.
        rendered: what the template wrote.
        text: what is used.
        ids: int32[n], which spell it.
        parts: of which all this is made.
    """

    start: Any
    node: Any
    rendered: str
    text: str
    ids: TokenArray
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes that it takes beside its parts, about."""
        own = 0 if self.text is self.rendered else len(self.text)
        return len(self.rendered) + own + self.ids.nbytes + 8 * len(self.parts)


def longest(trails: Sequence[Trail], text: str) -> Trail | None:
    """The longest one that a text begins with."""
    found = (trail for trail in trails if text.startswith(trail.rendered))
    return max(found, key=lambda trail: len(trail.rendered), default=None)
