"""The body of a request as a prompt to compare, whichever API it is meant for.

Parts get the paths at which they stand in the body. A body is read as the server reads it; whoever only looks at bodies
(a linter, an explainer) may first replace what the server would refuse by stand-ins. It knows no HTTP.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mainstem.diagnosis.prompt import MessagePart, Prompt, ToolPart, message_of, placed_part, text_prompt
from mainstem.errors import InvalidRequest
from mainstem.tokens import anthropic, responses
from mainstem.tokens.chat import read_placed, read_tools
from mainstem.tokens.conversation import Message, Tool
from mainstem.tokens.markers import MARKERS
from mainstem.tokens.placed import Placed

_TEXTS = ("text", "input_text", "output_text", "refusal")
_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")
_ITEMS = ("message", "function_call", "function_call_output", "reasoning")


def prompt_of_body(body: Mapping[str, Any]) -> Prompt:
    """The prompt in a body of Chat Completions, Responses, Messages or plain completions.

    Of a Responses body that goes on from a stored response, only what is in the body itself.

    Raises:
        InvalidRequest: when it is none of these, or a field is wrong.
    """
    model = body.get("model") if isinstance(body.get("model"), str) else None
    if "messages" in body and is_anthropic(body):
        said = anthropic.read_messages(body.get("system"), _objects(body, "messages"))
        return _prompt(said, _placed_tools(anthropic.read_tools(_objects(body, "tools")), "tools[{}]"), model)
    if "messages" in body:
        said = read_placed(_objects(body, "messages"))
        return _prompt(said, _placed_tools(read_tools(_objects(body, "tools")), "tools[{}].function"), model)
    if "input" in body:
        said = (*_instructions(body), *responses.read_input(body["input"]))
        return _prompt(said, _placed_tools(responses.read_tools(_objects(body, "tools")), "tools[{}]"), model)
    if isinstance(body.get("prompt"), str):
        return text_prompt(body["prompt"], model=model)
    raise InvalidRequest("there are neither messages nor an input nor a prompt of one text")


def is_anthropic(body: Mapping[str, Any]) -> bool:
    """Whether a body with messages is meant for Anthropic's API."""
    if "system" in body or any("input_schema" in tool for tool in _mappings(body.get("tools"))):
        return True
    blocks = [block for message in _mappings(body.get("messages")) for block in _mappings(message.get("content"))]
    return any(block.get("type") in _BLOCKS for block in blocks)


def reply_of_response(response: object) -> MessagePart | None:
    """The reply in the body of a response, of any of the APIs; None where there is none, or not one message."""
    if not isinstance(response, Mapping):
        return None
    if "role" in response:
        said = {**response, "role": "assistant"}
        body = {"messages": [said]}
        read = anthropic.read_messages(None, [said]) if is_anthropic(body) else read_placed([said])
    elif choices := _mappings(response.get("choices")):
        return reply_of_response(choices[0].get("message"))
    elif output := _mappings(response.get("output")):
        read = responses.read_input(output)
    else:
        return None
    return message_of(read[0].message) if len(read) == 1 else None


# -- what the server would refuse --------------------------------------------------------------------------------------


def with_stand_ins(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with a short text in place of everything that is neither text nor a function: images, hosted tools, ….

    Equal things have equal stand-ins, so that it still shows when one of them changes. Marks of what to keep are left
    out: they are no part of a prompt.
    """
    readable = dict(body)
    for key in ("messages", "system"):
        if isinstance(body.get(key), list):
            readable[key] = [_readable(entry) for entry in body[key]]
    if isinstance(body.get("input"), list):
        readable["input"] = [_item(entry) for entry in body["input"]]
    if isinstance(body.get("tools"), list):
        readable["tools"] = [_tool(tool, body) for tool in body["tools"]]
    return readable


def _readable(entry: Any) -> Any:
    """A message, or a block of one, with its parts made texts."""
    if not isinstance(entry, Mapping):
        return entry
    entry = _unmarked(entry)
    if entry.get("type") not in (None, "message", *_TEXTS, *_BLOCKS, *_ITEMS):
        return _stand_in(entry)
    for key in ("content", "output"):
        if isinstance(entry.get(key), list):
            entry = {**entry, key: [_readable(part) for part in entry[key]]}
    return entry


def _item(item: Any) -> Any:
    if isinstance(item, Mapping) and item.get("type", "message") not in _ITEMS:
        return {"role": "assistant", "content": [_stand_in(_unmarked(item))]}
    return _readable(item)


def _unmarked(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in MARKERS}


def _stand_in(part: Mapping[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(json.dumps(part, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return {"type": "text", "text": f"<{part.get('type')} {digest}>"}


def _tool(tool: Any, body: Mapping[str, Any]) -> Any:
    if not isinstance(tool, Mapping):
        return tool
    tool = _unmarked(tool)
    if tool.get("type") in (None, "function") or "input_schema" in tool:
        return tool
    rest = {key: value for key, value in tool.items() if key != "name"}
    named = {"name": str(tool.get("name") or tool["type"])}
    if "input" in body:
        return {"type": "function", **named, "parameters": rest}
    if is_anthropic(body):
        return {**named, "input_schema": rest}
    return {"type": "function", "function": {**named, "parameters": rest}}


# -- parts with their places -------------------------------------------------------------------------------------------


def _prompt(said: Sequence[Placed], tools: tuple[ToolPart, ...], model: str | None) -> Prompt:
    return Prompt(messages=tuple(map(placed_part, said)), tools=tools, model=model)


def _placed_tools(tools: Sequence[Tool], path: str) -> tuple[ToolPart, ...]:
    return tuple(ToolPart(path.format(i), tool.name, tool.definition()["function"]) for i, tool in enumerate(tools))


def _instructions(body: Mapping[str, Any]) -> tuple[Placed, ...]:
    text = body.get("instructions")
    return (Placed(Message(role="system", parts=(text,)), "instructions", ("instructions",)),) if text else ()


def _objects(body: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = body.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise InvalidRequest(f"{key} must be a list of objects", param=key)
    return value


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
