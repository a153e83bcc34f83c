"""The messages in a list of a body's items, read one item after another, so that a longer list can be read on.

What an item says, each API's own module knows. Messages that were read are never changed, only the last of them may be
replaced by one that goes on. It knows nothing of HTTP, nor of JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from mainstem.tokens.placed import Placed

Extend: TypeAlias = Callable[[list[Placed], int, Mapping[str, Any]], None]
"""Adds what an item, with its index, says to the messages before it; raises InvalidRequest where it is wrong."""


class After(NamedTuple):
    """The messages after an item: how many they are, and the last of them."""

    number: int
    last: Placed


class ReadItems(NamedTuple):
    """Items that have been read.

    Attributes:
        items: as they came.
        messages: that they say, and where in the body.
        after: the state after each item.
    """

    items: list[Mapping[str, Any]]
    messages: tuple[Placed, ...]
    after: list[After]

    def first(self, count: int) -> ReadItems:
        """As if only so many items had been read."""
        if count == len(self.items):
            return self
        if not count:
            return NOTHING_READ
        state = self.after[count - 1]
        return ReadItems(self.items[:count], (*self.messages[: state.number - 1], state.last), self.after[:count])


NOTHING_READ = ReadItems([], (), [])


def read_on(items: Sequence[Mapping[str, Any]], extend: Extend, earlier: ReadItems = NOTHING_READ) -> ReadItems:
    """Read items, the first of which were read earlier.

    Raises:
        InvalidRequest: as `extend` does.
    """
    messages, after = list(earlier.messages), list(earlier.after)
    for at in range(len(after), len(items)):
        extend(messages, at, items[at])
        after.append(After(len(messages), messages[-1]))
    return ReadItems(list(items), tuple(messages), after)
