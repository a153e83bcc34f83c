"""Items and tools in the form of OpenAI's Responses, read into those of a `Conversation`.

It knows this one form, and nothing of HTTP, of stored responses or of any template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mainstem.errors import InvalidRequest
from mainstem.tokens.chat import read_function, read_parts
from mainstem.tokens.conversation import Message, Tool, ToolCall
from mainstem.tokens.markers import read_breakpoints
from mainstem.tokens.placed import CallPaths, Placed, part_paths
from mainstem.wording import json_value, refuse

# Calls in a row that make one message. More are several: putting each one to all before it would take forever.
MAX_CALLS = 256


def read_input(value: Any) -> tuple[Placed, ...]:
    """The messages in `input`: a text of the user's, or a list of items.

    Items that belong to one turn of the assistant's (its thoughts, what it said and called) become one message.

    Raises:
        InvalidRequest: naming the item that is wrong, or not supported.
    """
    if isinstance(value, str):
        return (Placed(Message(role="user", parts=(value,)), "input", ("input",)),)
    if not isinstance(value, list) or not value:
        refuse("input", "must be a string or a list of at least one item")
    read: list[Placed] = []
    for i, item in enumerate(value):
        add_item(read, i, item)
    return tuple(read)


def add_item(messages: list[Placed], at: int, item: Any) -> None:
    """Read one more item of `input`, which may go on with the last message; see `reading`.

    Raises:
        InvalidRequest: as `read_input`.
    """
    placed = _item(f"input[{at}]", item)
    if messages and _goes_on(messages[-1].message, placed.message):
        messages[-1] = _merged(messages[-1], placed)
    else:
        messages.append(placed)


def read_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """The tools of a request; none if there are none.

    Raises:
        InvalidRequest: naming the tool that is no function with a name.
    """
    return tuple(_tool(f"tools[{i}]", tool) for i, tool in enumerate(tools or ()))


def _item(where: str, item: Any) -> Placed:
    if not isinstance(item, Mapping):
        refuse(where, "must be an object")
    match item:
        case {"type": "function_call", "call_id": str() as call_id, "name": str() as name, "arguments": str() as text}:
            message = Message(role="assistant", tool_calls=(ToolCall(call_id, name, text),))
            return Placed(message, where, calls=(CallPaths(f"{where}.name", f"{where}.arguments"),))
        case {"type": "function_call_output", "call_id": str() as call_id, "output": output}:
            parts = read_parts(f"{where}.output", output)
            marks = read_breakpoints(f"{where}.output", output)
            message = Message(role="tool", parts=parts, tool_call_id=call_id, breakpoints=marks)
            return Placed(message, where, part_paths(f"{where}.output", output, parts))
        case {"type": "reasoning"}:
            return Placed(Message(role="assistant", reasoning=_thoughts(item)), where, reasoning=where)
        case {"role": "user" | "system" | "developer" | "assistant" as role} if item.get("type") in (None, "message"):
            parts = read_parts(f"{where}.content", item.get("content"))
            marks = read_breakpoints(f"{where}.content", item.get("content"))
            message = Message(role=role, parts=parts, breakpoints=marks)
            return Placed(message, where, part_paths(f"{where}.content", item.get("content"), parts))
    kind = item.get("type")
    if kind in ("function_call", "function_call_output"):
        refuse(where, f"is a {kind} that lacks a field, or has one of the wrong type")
    raise InvalidRequest(
        f"{where} has type {json_value(kind)} and role {json_value(item.get('role'))}; messages, function calls, "
        "their outputs and reasoning are supported",
        param=where,
    )


def _thoughts(item: Mapping[str, Any]) -> str | None:
    """What a reasoning item says; its summary where it does not have the thoughts themselves."""
    for key in ("content", "summary"):
        parts = item.get(key)
        if isinstance(parts, list) and parts:
            texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
            return "\n".join(text for text in texts if isinstance(text, str))
    return None


def _goes_on(before: Message, message: Message) -> bool:
    """Whether a message is of the same turn as the one before: thoughts come first, then what is said, then calls."""
    if not before.role == message.role == "assistant" or message.reasoning is not None:
        return False
    if len(before.tool_calls) == MAX_CALLS:
        return False
    return not (message.parts and (before.parts or before.tool_calls))


def _merged(before: Placed, after: Placed) -> Placed:
    message = _joined(before.message, after.message)
    return before._replace(message=message, parts=before.parts + after.parts, calls=before.calls + after.calls)


def _joined(before: Message, after: Message) -> Message:
    marks = tuple(mark._replace(part=len(before.parts) + mark.part) for mark in after.breakpoints)
    return Message(
        role="assistant",
        parts=before.parts + after.parts,
        reasoning=before.reasoning,
        tool_calls=before.tool_calls + after.tool_calls,
        breakpoints=before.breakpoints + marks,
    )


def _tool(where: str, tool: Mapping[str, Any]) -> Tool:
    if tool.get("type") != "function":
        refuse(f"{where}.type", f"is {json_value(tool.get('type'))}; only function tools are supported")
    return read_function(where, tool)
