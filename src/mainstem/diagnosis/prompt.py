"""A request's prompt in parts, in the form in which two requests are compared.

It knows no API: whoever reads a body gives each part the path that its sender knows it by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from mainstem.diagnosis.causes import Place
from mainstem.tokens.conversation import Conversation, Message
from mainstem.tokens.placed import Placed, Places, chat_places

SYSTEM_ROLES = ("system", "developer")


class Kind(StrEnum):
    """What a field of a message holds."""

    TEXT = "text"
    REASONING = "reasoning"
    NAME = "name"  # of a tool that is called
    ARGUMENTS = "arguments"  # of that call: JSON text


class Field(NamedTuple):
    """A text within a message.

    Attributes:
        path: from the request's root, such as `messages[0].content`.
        parts: where the text was sent in pieces, the character at which each begins, and its path.
    """

    path: str
    kind: Kind
    text: str
    parts: tuple[tuple[int, str], ...] = ()

    def place_of(self, at: int) -> tuple[str, int]:
        """The path of the piece that a character is in, and where in it the character is."""
        start, path = max((part for part in self.parts if part[0] <= at), default=(0, self.path))
        return path, at - start


@dataclass(frozen=True, slots=True)
class MessagePart:
    """One message: a role and its texts, in the order in which templates render them.

    Attributes:
        path: from the request's root, such as `messages[0]`, `system` or `reply`.
    """

    path: str
    role: str
    fields: tuple[Field, ...]

    @property
    def content(self) -> tuple[str, tuple[tuple[Kind, str], ...]]:
        """What makes two messages the same message: all but where they stand. No text is as good as an empty one."""
        return self.role, tuple((field.kind, field.text) for field in self.fields if field.text)

    def text(self, kind: Kind = Kind.TEXT) -> str:
        """All fields of a kind, joined by line breaks."""
        return "\n".join(field.text for field in self.fields if field.kind is kind)


@dataclass(frozen=True, slots=True)
class ToolPart:
    """One tool. `definition` is a JSON value with the keys in the order in which they were sent."""

    path: str
    name: str
    definition: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a reply was asked for.

    Attributes:
        messages: the system's first, in one list with the others.
        tools: in the order in which they were offered.
        model: None where it does not matter or is not known.
    """

    messages: tuple[MessagePart, ...]
    tools: tuple[ToolPart, ...] = ()
    model: str | None = None

    @property
    def num_system(self) -> int:
        """How many messages at the beginning are the system's."""
        roles = [message.role for message in self.messages]
        return next((i for i, role in enumerate(roles) if role not in SYSTEM_ROLES), len(roles))

    def with_reply(self, reply: MessagePart) -> Prompt:
        """The same with what was answered, so that the next request can be compared with both."""
        return replace(self, messages=(*self.messages, reply))

    def place_of(self, index: int) -> Place:
        """The region that a message belongs to."""
        if self.messages[index].path == REPLY:
            return Place.REPLY
        return Place.SYSTEM if index < self.num_system else Place.MESSAGES


REPLY = "reply"


def prompt_of(conversation: Conversation, places: Places | None = None, *, model: str | None = None) -> Prompt:
    """A conversation as a prompt to compare.

    Args:
        conversation: of messages and tools.
        places: that they have in a request's body; None for those of Chat Completions.
        model: that was asked for.
    """
    places = places or chat_places(conversation)
    return Prompt(
        messages=tuple(
            message_of(message, f"messages[{i}]") if placed is None else placed_part(placed)
            for i, (message, placed) in enumerate(zip(conversation.messages, places.messages, strict=True))
        ),
        tools=tuple(
            ToolPart(places.tools.format(i), tool.name, tool.definition()["function"])
            for i, tool in enumerate(conversation.tools)
        ),
        model=model,
    )


def message_of(message: Message, path: str = REPLY) -> MessagePart:
    """One message, or the model's reply, as a part."""
    fields = []
    if message.reasoning:
        fields.append(Field(f"{path}.reasoning_content", Kind.REASONING, message.reasoning))
    if message.parts:
        fields.append(Field(f"{path}.content", Kind.TEXT, message.text))
    for i, call in enumerate(message.tool_calls):
        at = f"{path}.tool_calls[{i}].function"
        fields.append(Field(f"{at}.name", Kind.NAME, call.name))
        fields.append(Field(f"{at}.arguments", Kind.ARGUMENTS, call.arguments))
    return MessagePart(path, message.role, tuple(fields))


def placed_part(placed: Placed) -> MessagePart:
    """A message as a part whose fields have the paths that they were read from."""
    message, fields = placed.message, []
    if message.reasoning:
        fields.append(Field(placed.reasoning, Kind.REASONING, message.reasoning))
    if message.parts:
        starts, at = [], 0
        for path, part in zip(placed.parts, message.parts, strict=True):
            starts.append((at, path))
            at += len(part) + 1  # parts are joined by line breaks
        path = placed.parts[0] if len(starts) == 1 else f"{placed.path}.content"
        fields.append(Field(path, Kind.TEXT, message.text, tuple(starts)))
    for paths, call in zip(placed.calls, message.tool_calls, strict=True):
        fields.append(Field(paths.name, Kind.NAME, call.name))
        fields.append(Field(paths.arguments, Kind.ARGUMENTS, call.arguments))
    return MessagePart(placed.path, message.role, tuple(fields))


def text_prompt(text: str, *, model: str | None = None) -> Prompt:
    """A plain prompt, which has no parts."""
    return Prompt(messages=(MessagePart("prompt", "user", (Field("prompt", Kind.TEXT, text),)),), model=model)
