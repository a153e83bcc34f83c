"""A body with a conversation in it, and what is known of its bytes beside its fields. Plain data.

What is known comes from `bodies`; whoever reads the conversation need not care how much of it that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr

from mainstem.server.validation import Body
from mainstem.tokens.reading import NOTHING_READ, Extend, ReadItems, read_on

if TYPE_CHECKING:
    from mainstem.tokens import Tool
    from mainstem.tokens.placed import Placed


@dataclass(slots=True)
class BodyBytes:
    """What is known of a body beside its fields.

    Attributes:
        raw: all of it; empty if it is not to be remembered.
        first: where the first item begins.
        ends: where each item ends.
        read: the first items, which were read earlier; all of them once they have been read.
        rest: the body without items; None if it is not to be remembered.
        tools: as they were read; None if they were not yet.
        before: a remembered body, all of whose items are in this one.
        num_known: of its bytes, about how many were read with an earlier body.
    """

    raw: bytes = b""
    first: int = 0
    ends: list[int] = field(default_factory=list)
    read: ReadItems = NOTHING_READ
    rest: ConversationBody | None = None
    tools: tuple[Tool, ...] | None = None
    before: Any = None
    num_known: int = 0


class ConversationBody(Body):
    """A body with a conversation in it, as a list of items."""

    ITEMS: ClassVar[str] = "messages"
    """The field that has the list."""

    _bytes: BodyBytes = PrivateAttr(default_factory=BodyBytes)

    @property
    def num_known_bytes(self) -> int:
        """Of its bytes, about how many were read with an earlier body."""
        return self._bytes.num_known

    def read_items(self, extend: Extend) -> tuple[Placed, ...]:
        """What the items say, and where; those that were read earlier are not read again.

        Raises:
            InvalidRequest: as `extend` does.
        """
        self._bytes.read = read_on(getattr(self, self.ITEMS), extend, self._bytes.read)
        return self._bytes.read.messages

    def read_tools(self, read: Callable[[Sequence[Mapping[str, Any]] | None], tuple[Tool, ...]]) -> tuple[Tool, ...]:
        """The tools; the very same objects, if they are those of an earlier body.

        Raises:
            InvalidRequest: as `read` does.
        """
        if self._bytes.tools is None:
            self._bytes.tools = read(getattr(self, "tools", None))
        return self._bytes.tools
