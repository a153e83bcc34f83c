"""Messages together with the places in a request's body that they were read from.

One message of a body may become several of ours, and several of a body's items may become one. It knows no API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mainstem.tokens.conversation import Message


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
