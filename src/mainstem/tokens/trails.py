"""Long conversations in one piece each, so that one which goes on is known at a glance and not part by part.

It knows texts and ids; it knows nothing of how they are remembered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mainstem.tokens.known_prompt import Part
from mainstem.tokens.tokenizer import TokenArray

Namespace: TypeAlias = tuple[Hashable, ...]

# Shorter conversations are known part by part in less time than it takes to keep them in one piece too.
SHORTEST = 32


@dataclass(frozen=True, slots=True, eq=False)
class Trail:
    """The first parts of a prompt, put together.

    Attributes:
        node: where the parts end, in whatever keeps them.
        namespace: of the conversation.
        rendered: what the template wrote.
        text: what is used.
        ids: int32[n], which spell it.
        parts: of which all this is made.
    """

    node: Any
    namespace: Namespace
    rendered: str
    text: str
    ids: TokenArray
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes that it takes beside its parts, about."""
        own = 0 if self.text is self.rendered else len(self.text)
        return len(self.rendered) + own + self.ids.nbytes + 8 * len(self.parts)


@dataclass(slots=True)
class Trails:
    """Trails by namespace. Within one, none is the beginning of another."""

    _sorted: dict[Namespace, list[Trail]] = field(default_factory=dict)

    def find(self, namespace: Namespace, text: str) -> Trail | None:
        """The one that a text begins with."""
        trails = self._sorted.get(namespace, [])
        # What sorts between a beginning of a text and the text begins so too, and only one of them may be here.
        at = bisect_left(trails, text, key=_rendered)
        found = trails[at - 1] if at else None
        if found is not None and text.startswith(found.rendered):
            return found
        return trails[at] if at < len(trails) and trails[at].rendered == text else None

    def add(self, trail: Trail) -> Trail | None:
        """Keep one that no other goes on from; returns the one that it goes on from, which is no longer kept."""
        before = self.find(trail.namespace, trail.rendered)
        if before is not None:
            self.remove(before)
        trails = self._sorted.setdefault(trail.namespace, [])
        trails.insert(bisect_left(trails, trail.rendered, key=_rendered), trail)
        return before

    def goes_on(self, namespace: Namespace, rendered: str) -> bool:
        """Whether one begins with this, and has more."""
        trails = self._sorted.get(namespace, [])
        at = bisect_left(trails, rendered, key=_rendered)
        return (
            at < len(trails) and len(trails[at].rendered) > len(rendered) and trails[at].rendered.startswith(rendered)
        )

    def remove(self, trail: Trail) -> None:
        """Forget one that is kept."""
        trails = self._sorted[trail.namespace]
        del trails[bisect_left(trails, trail.rendered, key=_rendered)]
        if not trails:
            del self._sorted[trail.namespace]


def _rendered(trail: Trail) -> str:
    return trail.rendered
