"""Chat messages as clients send them, made ready for a chat template.

It knows what a message may look like; it knows nothing of tokens or of any particular template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from mainstem.errors import InvalidRequest

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# What a template may see of a message. The rest (cache markers, ids, client extensions) must not change the prompt.
_MESSAGE_KEYS = ("name", "tool_calls", "tool_call_id", "reasoning_content")
_CACHE_MARKERS = ("cache_control", "prompt_cache_breakpoint")
_TEXT_PARTS = ("text", "input_text", "output_text")


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with plain text as content and only the keys that a template may see.

    Content that is a list of text parts becomes their texts joined by line breaks; None becomes empty text.

    Raises:
        InvalidRequest: naming the message that is wrong, and how.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")
    return [_normalize_message(i, message) for i, message in enumerate(messages)]


def _normalize_message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        _refuse(where, "must be an object with role and content")
    role = message.get("role")
    if role not in ROLES:
        _refuse(f"{where}.role", f"must be one of {', '.join(ROLES)}, got {role!r}")
    kept = {key: message[key] for key in _MESSAGE_KEYS if message.get(key) is not None}
    return {"role": role, "content": _content_text(f"{where}.content", message.get("content")), **kept}


def without_developer(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with developer ones as system ones, for templates that do not know the newer role."""
    return [message | {"role": "system"} if message["role"] == "developer" else message for message in messages]


def _content_text(where: str, content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        _refuse(where, "must be a string, null or a list of parts")
    return "\n".join(_part_text(f"{where}[{i}]", part) for i, part in enumerate(content))


def _part_text(where: str, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        _refuse(where, 'must be an object such as {"type": "text", "text": "..."}')
    kind = part.get("type")
    if kind not in _TEXT_PARTS:
        _refuse(where, f"has type {kind!r}; this model reads text only")
    text = part.get("text")
    if not isinstance(text, str):
        _refuse(f"{where}.text", "must be a string")
    return text


def normalize_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tool definitions without cache markers; None when there are none.

    Raises:
        InvalidRequest: naming the tool that is not an object.
    """
    if not tools:
        return None
    return [_without_markers(f"tools[{i}]", tool) for i, tool in enumerate(tools)]


def _without_markers(where: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        _refuse(where, "must be an object")
    plain = {key: value for key, value in tool.items() if key not in _CACHE_MARKERS}
    if isinstance(plain.get("function"), Mapping):
        plain["function"] = _without_markers(f"{where}.function", plain["function"])
    return plain


def _refuse(where: str, why: str) -> NoReturn:
    raise InvalidRequest(f"{where} {why}", param=where)
