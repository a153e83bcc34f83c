"""A conversation as every part of this program sees it, whichever API it came through.

Plain data: messages made of text parts, tools, tool calls. It knows nothing of how an API writes them, of templates
or of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class Breakpoint(NamedTuple):
    """A client's wish to keep a prompt up to here. It never changes what is rendered.

    Attributes:
        part: the last part of the message that belongs to what is kept.
        ttl: for how long, as the client wrote it; None for the request's own.
    """

    part: int
    ttl: str | None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model made.

    Attributes:
        id: by which its result refers to it.
        name: of the tool.
        arguments: JSON text, exactly as it was generated: another spelling would be another prompt.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message.

    Attributes:
        role: one of `ROLES`.
        parts: its text, in the pieces in which it was sent.
        reasoning: what an assistant thought before it answered; None if that is not known.
        tool_calls: what an assistant called.
        tool_call_id: of the call that a tool's message answers.
        name: of a participant or a tool.
        breakpoints: up to which of its parts the prompt is to be kept.
    """

    role: str
    parts: tuple[str, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    breakpoints: tuple[Breakpoint, ...] = ()

    @property
    def text(self) -> str:
        """All parts, joined by line breaks."""
        return "\n".join(self.parts)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: of the function.
        description: for the model.
        parameters: JSON schema of its arguments, an object; None if it takes none.
        strict: the arguments must follow the schema even where the model calls of its own accord.
        breakpoint: the prompt is to be kept up to here.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    breakpoint: Breakpoint | None = None

    @property
    def schema(self) -> Mapping[str, Any]:
        """Schema of the arguments; that of an empty object if the tool takes none."""
        return self.parameters or {"type": "object", "properties": {}, "additionalProperties": False}

    def definition(self) -> dict[str, Any]:
        """The form in which templates are given tools. Always the same keys in the same order."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a reply is asked for.

    Attributes:
        messages: at least one.
        tools: that the prompt offers.
        continues_last: the reply goes on where the last message, an assistant's, stops.
        namespace: whose it is; what is remembered of conversations is kept apart by it.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    continues_last: bool = False
    namespace: tuple[Any, ...] = ()
