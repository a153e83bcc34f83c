"""Conversations of an agent, to be changed in one place by each test."""

from __future__ import annotations

from typing import Any

from mainstem.diagnosis import MessagePart, Prompt, message_of, prompt_of
from mainstem.tokens import Conversation, Message, Tool, ToolCall

SYSTEM = "You repair code.\nPolicy of 2024-05-01: never delete files.\n{}\nAnswer briefly."
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}}
TOOLS = (
    Tool("read", "Read a file.", SCHEMA),
    Tool("run", "Run a command.", {"type": "object", "properties": {"command": {"type": "string"}}}),
    Tool("write", "Write a file.", SCHEMA),
)


def call(name: str, arguments: str) -> Message:
    return Message(role="assistant", parts=("I look.",), tool_calls=(ToolCall("c1", name, arguments),))


def result(text: str) -> Message:
    return Message(role="tool", parts=(text,), tool_call_id="c1")


def history(volatile: str = "Begin.") -> tuple[Message, ...]:
    return (
        Message(role="system", parts=(SYSTEM.format("Be careful."),)),
        Message(role="user", parts=(f"The test of dates fails. {volatile} Please repair it.",)),
        call("read", '{"path": "dates.py", "lines": 40}'),
        result("def day(text):\n    return text.split('-')[2]\n" * 6),
        Message(role="assistant", parts=("I think that the split is wrong.",), reasoning="Months come before days."),
        Message(role="user", parts=("Go on.",)),
    )


def prompt(messages: tuple[Message, ...], tools: tuple[Tool, ...] = TOOLS, **options: Any) -> Prompt:
    return prompt_of(Conversation(messages, tools), **options)


def reply(text: str = "Done: the split is right now.", **fields: Any) -> MessagePart:
    return message_of(Message(role="assistant", parts=(text,), **fields))
