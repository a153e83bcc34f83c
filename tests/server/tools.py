"""Tools whose arguments even random weights get right in few tokens, for each API, and a way to check them."""

from __future__ import annotations

import json
from typing import Any

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
}
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "forecast", "description": "Weather.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
MESSAGES_TOOLS: list[Any] = [
    {"name": "forecast", "description": "Weather.", "input_schema": PARAMETERS},
    {"name": "now", "input_schema": {"type": "object", "properties": {}}},
]
RESPONSES_TOOLS: list[Any] = [
    {"type": "function", "name": "forecast", "description": "Weather.", "parameters": PARAMETERS, "strict": False},
    {"type": "function", "name": "now", "parameters": None, "strict": False},
]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}


def check_call(name: str, arguments: str | dict[str, Any]) -> None:
    """It is a call of one of the tools, with arguments that follow its schema."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    if name == "now":
        assert given == {}
        return
    assert name == "forecast"
    assert given["city"] in ("Rome", "Oslo")
    assert set(given) <= {"city", "days"}
    assert given.get("days", 1) in range(1, 10)


def check_answer(text: str | None) -> None:
    """It is JSON that follows the schema."""
    given = json.loads(text or "")
    assert set(given) == {"answer", "sure"}
    assert given["answer"] in ("yes", "no")
    assert isinstance(given["sure"], bool)
