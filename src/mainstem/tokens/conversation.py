"""A conversation as every part of this program sees it, whichever API it came through.

Plain data: messages made of text parts, tools, tool calls. It knows nothing of how an API writes them, of templates
or of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# A server's namespaces begin with the tenant, in so many parts; see `mainstem.server.auth`.
TENANT_PARTS = 2
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
        characters: that it has, about; counted once, since long conversations come back at every turn.
    """

    role: str
    parts: tuple[str, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    breakpoints: tuple[Breakpoint, ...] = ()
    characters: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        count = sum(map(len, self.parts)) + len(self.reasoning or "")
        for call in self.tool_calls:
            count += len(call.name) + len(call.arguments)
        object.__setattr__(self, "characters", count)

    @property
    def text(self) -> str:
        """All parts, joined by line breaks."""
        return "\n".join(self.parts)


class Definition(dict[str, Any]):
    """A tool as templates are given it. It is written once, since every prompt of a conversation begins with it."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self._written: dict[tuple[Any, ...], str] = {}

    @property
    def written(self) -> tuple[str, ...]:
        """What was made of it so far."""
        return tuple(self._written.values())

    def as_json(self, **options: Any) -> str:
        """What `json.dumps` makes of it."""
        key = tuple(options.items())
        text = self._written.get(key)
        if text is None:
            text = self._written[key] = json.dumps(self, **options)
        return text


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: of the function.
        description: for the model.
        parameters: JSON schema of its arguments, an object; None if it takes none.
        strict: the arguments must follow the schema even where the model calls of its own accord.
        breakpoint: the prompt is to be kept up to here.
        derived: what was made of it, by whom; it is used at each turn of a conversation.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    breakpoint: Breakpoint | None = None
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def schema(self) -> Mapping[str, Any]:
        """Schema of the arguments; that of an empty object if the tool takes none."""
        return self.parameters or {"type": "object", "properties": {}, "additionalProperties": False}

    def definition(self) -> Definition:
        """The form in which templates are given tools. Always the same keys in the same order."""
        made = self.derived.get("definition")
        if isinstance(made, Definition):
            return made
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        self.derived["definition"] = made = Definition({"type": "function", "function": function})
        return made


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

    @property
    def tenant(self) -> tuple[Any, ...]:
        """Whose it is: the part of the namespace that no client can choose."""
        return self.namespace[:TENANT_PARTS]
