"""Messages and tools in the form of Anthropic's Messages, read into those of a `Conversation`.

It knows this one form, and nothing of HTTP or of any template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mainstem.errors import InvalidRequest
from mainstem.tokens.chat import read_function, read_part, read_parts
from mainstem.tokens.conversation import Breakpoint, Message, Tool, ToolCall
from mainstem.tokens.markers import read_breakpoint, read_breakpoints
from mainstem.tokens.placed import CallPaths, Placed, part_paths
from mainstem.wording import json_value, refuse


def read_messages(system: object, messages: Sequence[Mapping[str, Any]]) -> tuple[Placed, ...]:
    """The system's text, if there is one, and the messages.

    Raises:
        InvalidRequest: naming what is wrong with one.
    """
    check_any(messages)
    read = list(read_system(system))
    for i, message in enumerate(messages):
        read += _messages(f"messages[{i}]", message)
    return tuple(read)


def check_any(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a conversation without messages.

    Raises:
        InvalidRequest: when there is none.
    """
    if not messages:
        raise InvalidRequest("messages must have at least one message", param="messages")


def read_system(system: object) -> tuple[Placed, ...]:
    """The system's text as a message, if there is one.

    Raises:
        InvalidRequest: when it is no text.
    """
    parts = read_parts("system", system)
    instructions = Message(role="system", parts=parts, breakpoints=read_breakpoints("system", system))
    return (Placed(instructions, "system", part_paths("system", system, parts)),) if any(parts) else ()


def add_messages(messages: list[Placed], at: int, message: Mapping[str, Any]) -> None:
    """Read one more of a body's messages; see `reading`.

    Raises:
        InvalidRequest: as `read_messages`.
    """
    messages += _messages(f"messages[{at}]", message)


def read_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """The tools of a request; none if there are none.

    Raises:
        InvalidRequest: naming the tool that is not one that the client runs.
    """
    return tuple(_tool(f"tools[{i}]", tool) for i, tool in enumerate(tools or ()))


def _messages(where: str, message: Mapping[str, Any]) -> list[Placed]:
    """One message of Anthropic's as ours: results of tools are messages of their own, before what the user says."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        refuse(f"{where}.role", f"must be user or assistant, got {json_value(role)}")
    if isinstance(content, str):
        return [Placed(Message(role=role, parts=(content,)), where, (f"{where}.content",))]
    if not isinstance(content, list):
        refuse(f"{where}.content", "must be a string or a list of blocks")
    results: list[Placed] = []
    texts: dict[str, str] = {}
    thoughts: dict[str, str] = {}
    calls: dict[CallPaths, ToolCall] = {}
    marks: list[Breakpoint | None] = []
    for i, block in enumerate(content):
        place = f"{where}.content[{i}]"
        match block:
            case {"type": "tool_use"} if role == "assistant":
                read_breakpoint(place, block)  # its place in a prompt cannot be found, but it may be wrong
                calls[CallPaths(f"{place}.name", f"{place}.input")] = _tool_use(place, block)
            case {"type": "thinking", "thinking": str() as thought} if role == "assistant":
                thoughts[f"{place}.thinking"] = thought
            case {"type": "redacted_thinking"} if role == "assistant":
                pass
            case {"type": "tool_result", "tool_use_id": str() as call_id} if role == "user":
                results.append(_result(place, call_id, block))
            case _:
                marks.append(read_breakpoint(place, block, len(texts)))
                texts[place if isinstance(block, str) else f"{place}.text"] = read_part(place, block)
    said = Message(
        role=role,
        parts=tuple(texts.values()),
        reasoning="\n".join(thoughts.values()) if thoughts else None,
        tool_calls=tuple(calls.values()),
        breakpoints=tuple(mark for mark in marks if mark is not None),
    )
    placed = Placed(said, where, tuple(texts), next(iter(thoughts), ""), tuple(calls))
    return [*results, placed] if texts or thoughts or calls or not results else results


def _result(where: str, call_id: str, block: Mapping[str, Any]) -> Placed:
    content = block.get("content")
    parts = read_parts(f"{where}.content", content)
    marks = (*read_breakpoints(f"{where}.content", content), read_breakpoint(where, block, len(parts) - 1))
    kept = tuple(mark for mark in marks if mark is not None)
    message = Message(role="tool", parts=parts, tool_call_id=call_id, breakpoints=kept)
    return Placed(message, where, part_paths(f"{where}.content", content, parts))


def _tool_use(where: str, block: Mapping[str, Any]) -> ToolCall:
    match block:
        case {"id": str() as call_id, "name": str() as name, "input": dict() as arguments}:
            return ToolCall(call_id, name, json.dumps(arguments, ensure_ascii=False))
    raise InvalidRequest(f"{where} must have an id, a name, and an input that is an object", param=where)


def _tool(where: str, tool: Mapping[str, Any]) -> Tool:
    if tool.get("type") not in (None, "custom"):
        refuse(f"{where}.type", f"is {json_value(tool['type'])}; only tools that the client runs are supported")
    return read_function(where, tool, schema="input_schema")
