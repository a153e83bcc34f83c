"""Messages and tools in the form of OpenAI's Chat Completions, read into a `Conversation`.

It is the form that `LLM.chat` takes too, and that chat templates expect. It knows nothing of tokens or of any template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mainstem.errors import InvalidRequest
from mainstem.tokens.conversation import ROLES, Message, Tool, ToolCall
from mainstem.tokens.markers import read_breakpoint, read_breakpoints
from mainstem.tokens.placed import CallPaths, Placed, Places, part_paths
from mainstem.wording import json_value, refuse

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def read_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The messages of a chat.

    Keys that say nothing to the model (cache markers, ids, clients' extensions) are left out: they must not change the
    prompt.

    Raises:
        InvalidRequest: naming the message that is wrong, and how.
    """
    check_any(messages)
    return tuple([_message(i, message) for i, message in enumerate(messages)])


def check_any(messages: object) -> None:
    """Refuse what is no list of messages.

    Raises:
        InvalidRequest: when it is not, or is empty.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")


def add_message(messages: list[Placed], at: int, message: Mapping[str, Any]) -> None:
    """Read one more of the messages; see `reading`.

    Raises:
        InvalidRequest: as `read_messages`.
    """
    read = _message(at, message)
    is_plain = type(message.get("content")) is not list
    messages.append(Placed(read, "") if is_plain else _placed(f"messages[{at}]", message, read))


def places_of(messages: Sequence[Placed]) -> Places | None:
    """Where the texts of messages stand that `add_message` has read; None where every content is one text."""
    if not any(placed.path for placed in messages):
        return None
    return Places(tuple(placed if placed.path else None for placed in messages), "tools[{}].function")


def read_placed(messages: Sequence[Mapping[str, Any]]) -> tuple[Placed, ...]:
    """What `read_messages` reads, with the place in the body that each text comes from.

    Raises:
        InvalidRequest: as `read_messages`.
    """
    return tuple(
        _placed(f"messages[{i}]", raw, message)
        for i, (raw, message) in enumerate(zip(messages, read_messages(messages), strict=True))
    )


def read_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """The tools of a chat; none if there are none.

    Raises:
        InvalidRequest: naming the tool that is no function with a name.
    """
    return tuple(_tool(f"tools[{i}]", tool) for i, tool in enumerate(tools or ()))


def read_function(where: str, function: Mapping[str, Any], *, schema: str = "parameters") -> Tool:
    """A tool from the object that describes its function; `schema` is the key of its parameters.

    Raises:
        InvalidRequest: when a field has the wrong type.
    """
    name, description, parameters = function.get("name"), function.get("description"), function.get(schema)
    if not isinstance(name, str) or not name:
        refuse(f"{where}.name", "must be a string that is not empty")
    if not isinstance(description, str | None):
        refuse(f"{where}.description", "must be a string")
    if not isinstance(parameters, Mapping | None):
        refuse(f"{where}.{schema}", "must be a JSON schema, which is an object")
    return Tool(
        name,
        description,
        parameters,
        strict=function.get("strict") is True,
        breakpoint=read_breakpoint(where, function),
    )


def read_parts(where: str, content: object) -> tuple[str, ...]:
    """The texts in a message's content: a string, null, or a list of text parts.

    Raises:
        InvalidRequest: when it is something else; images, audio and files are.
    """
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, Sequence):
        refuse(where, "must be a string, null or a list of parts")
    return tuple(read_part(f"{where}[{i}]", part) for i, part in enumerate(content))


def read_part(where: str, part: object) -> str:
    """The text of one part of a message's content.

    Raises:
        InvalidRequest: when it has none.
    """
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        refuse(where, 'must be an object such as {"type": "text", "text": "..."}')
    kind = part.get("type")
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        refuse(where, f"has type {json_value(kind)}; this model reads text only")
    text = part.get(key)
    if not isinstance(text, str):
        refuse(f"{where}.{key}", "must be a string")
    return text


def _placed(where: str, raw: Mapping[str, Any], message: Message) -> Placed:
    functions = [f"{where}.tool_calls[{i}].function" for i in range(len(message.tool_calls))]
    return Placed(
        message,
        where,
        part_paths(f"{where}.content", raw.get("content"), message.parts),
        f"{where}.reasoning_content" if raw.get("reasoning_content") else f"{where}.reasoning",
        tuple(CallPaths(f"{function}.name", f"{function}.arguments") for function in functions),
    )


def _message(at: int, message: Mapping[str, Any]) -> Message:
    # Long conversations are read once more at every turn: where a field is gets written out if it is wrong.
    try:
        return _read(message)
    except InvalidRequest as error:
        where = f"messages[{at}]"
        raise InvalidRequest(f"{where}{error}", param=f"{where}{error.param or ''}") from None


def _read(message: Mapping[str, Any]) -> Message:
    """A message; what an error says begins within it, such as with `.role`."""
    if type(message) is not dict and not isinstance(message, Mapping):
        refuse("", "must be an object with role and content")
    get = message.get
    role, content, calls = get("role"), get("content"), get("tool_calls")
    if role not in ROLES:
        refuse(".role", f"must be one of {', '.join(ROLES)}, got {json_value(role)}")
    return Message(
        role=role,
        parts=(content,) if type(content) is str else read_parts(".content", content),
        reasoning=_text(message, "reasoning_content") or _text(message, "reasoning"),
        tool_calls=() if calls is None else _tool_calls(".tool_calls", calls),
        tool_call_id=_text(message, "tool_call_id"),
        name=_text(message, "name"),
        breakpoints=() if type(content) is str else read_breakpoints(".content", content),
    )


def _text(message: Mapping[str, Any], key: str) -> str | None:
    value = message.get(key)
    if value is not None and not isinstance(value, str):
        refuse(f".{key}", "must be a string")
    return value


def _tool_calls(where: str, calls: object) -> tuple[ToolCall, ...]:
    if isinstance(calls, str) or not isinstance(calls, Sequence):
        refuse(where, "must be a list of tool calls")
    return tuple([_tool_call(f"{where}[{i}]", call) for i, call in enumerate(calls)])


def _tool_call(where: str, call: object) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        refuse(where, 'must be an object such as {"id": "...", "type": "function", "function": {...}}')
    name, arguments, call_id = function.get("name"), function.get("arguments"), call.get("id")
    if not isinstance(name, str):
        refuse(f"{where}.function.name", "must be a string")
    if isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if arguments is not None and not isinstance(arguments, str):
        refuse(f"{where}.function.arguments", "must be JSON text")
    if call_id is not None and not isinstance(call_id, str):
        refuse(f"{where}.id", "must be a string")
    return ToolCall(call_id or "", name, arguments or "{}")


def _tool(where: str, tool: Mapping[str, Any]) -> Tool:
    if not isinstance(tool, Mapping):
        refuse(where, "must be an object")
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        refuse(where, 'must be of the form {"type": "function", "function": {...}}')
    return read_function(f"{where}.function", function)
