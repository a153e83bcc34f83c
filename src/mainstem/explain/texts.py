"""How much memory a conversation takes that a record keeps, and where it stands in its request.

It knows the parts of conversations, and no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import getsizeof
from typing import Any

from mainstem.tokens.conversation import Conversation, Definition, Message, Tool
from mainstem.tokens.placed import Placed, Places

# Of a message, a tool or a call beside its texts, about.
PART_BYTES = 300
# Of the places of a message, or of a call, beside their paths, about.
PLACE_BYTES = 150


def size_of(conversation: Conversation) -> int:
    """Bytes that a conversation takes, about."""
    messages = sum(_message_size(message) for message in conversation.messages)
    return PART_BYTES + messages + sum(_tool_size(tool) for tool in conversation.tools)


def size_of_places(places: Places) -> int:
    """Bytes that the places of a conversation take, about; those that follow from a message's index take none."""
    return PART_BYTES + sum(_placed_size(placed) for placed in places.messages if placed is not None)


def _placed_size(placed: Placed) -> int:
    paths = [placed.path, *placed.parts, placed.reasoning, *(path for call in placed.calls for path in call)]
    return PLACE_BYTES * (1 + len(placed.calls)) + sum(map(getsizeof, paths))


def _message_size(message: Message) -> int:
    texts = [*message.parts, *(call.arguments for call in message.tool_calls)]
    if message.reasoning is not None:
        texts.append(message.reasoning)
    return PART_BYTES * (1 + len(message.tool_calls)) + sum(map(getsizeof, texts))


def _tool_size(tool: Tool) -> int:
    size, left = PART_BYTES + getsizeof(tool.description), [tool.parameters]
    while left:
        value: Any = left.pop()
        size += getsizeof(value)
        if isinstance(value, Mapping):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            left += value
    return size + sum(map(_derived_size, tool.derived.values()))


def _derived_size(made: object) -> int:
    """What was made of a tool stays with it."""
    if isinstance(made, Tool):
        return _tool_size(made)
    return PART_BYTES + sum(map(getsizeof, made.written)) if isinstance(made, Definition) else 0
