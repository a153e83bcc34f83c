"""Messages together with the places in a request's body that they were read from.

One message of a body may become several of ours, and several of a body's items may become one. It knows no API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mainstem.tokens.conversation import Conversation, Message


class CallPaths(NamedTuple):
    """Where the name and the arguments of a call stand."""

    name: str
    arguments: str


class Placed(NamedTuple):
    """A message, and the paths of what it is made of, such as `messages[2].content[0].text`.

    Attributes:
        message: as read.
        path: of the object in the body that it, or its first piece, comes from.
        parts: one for each of the message's parts.
        reasoning: of its thoughts; empty where it has none.
        calls: one for each of its tool calls.
    """

    message: Message
    path: str
    parts: tuple[str, ...] = ()
    reasoning: str = ""
    calls: tuple[CallPaths, ...] = ()


class Places(NamedTuple):
    """Where a conversation stands in the body of the request that it came in.

    Attributes:
        messages: for each of its messages; None for one that stands where its index says, as Chat Completions have it.
        tools: the path of a tool, but for its index.
    """

    messages: tuple[Placed | None, ...]
    tools: str = "tools[{}]"


def chat_places(conversation: Conversation) -> Places:
    """The places in a body of Chat Completions whose contents are all plain texts."""
    return Places((None,) * len(conversation.messages), "tools[{}].function")


def placed_at(where: str, message: Message) -> Placed:
    """A message that is not in a body, under a name that says where it is."""
    content, num_parts = f"{where}.content", len(message.parts)
    return Placed(
        message,
        where,
        (content,) if num_parts == 1 else tuple(f"{content}[{i}].text" for i in range(num_parts)),
        f"{where}.reasoning_content",
        tuple(
            CallPaths(f"{where}.tool_calls[{i}].function.name", f"{where}.tool_calls[{i}].function.arguments")
            for i in range(len(message.tool_calls))
        ),
    )


def part_paths(where: str, content: object, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Paths of the texts that `content` at this place was read into."""
    if isinstance(content, str):
        return (where,)
    parts = content if isinstance(content, Sequence) else ()
    return tuple(
        f"{where}[{i}]" if isinstance(part, str) else f"{where}[{i}].{_key(part)}"
        for i, part in enumerate(parts[: len(texts)])
    )


def _key(part: object) -> str:
    return "refusal" if isinstance(part, dict) and part.get("type") == "refusal" else "text"
