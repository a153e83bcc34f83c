"""Rendering: the text is that of `transformers`, also where it goes on from an earlier prompt, which then costs little."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mainstem.errors import InvalidRequest
from mainstem.tokens import Conversation, Message, Tool, ToolCall
from mainstem.tokens.program import program
from mainstem.tokens.rendering import ChatTemplate
from mainstem.tokens.resuming import Rendered, render
from mainstem.tokens.templates import CHATML_WITH_TOOLS
from tests.support.tiny_models import save_tiny_tokenizer

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "chat-templates"
KNOWN = sorted(FOLDER.rglob("*.jinja"))
MOMENT = datetime(2026, 3, 4, 12, 0, 0)
TOOL = Tool("look_up", "Finds <things>.", {"type": "object", "properties": {"where": {"type": "string"}}})


@cache
def loaded(folder: Path) -> Any:
    return PreTrainedTokenizerFast.from_pretrained(folder, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def chat_of(folder: Path, source: str) -> ChatTemplate:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = source
    return ChatTemplate(tokenizer, speaks_chatml=False)


def as_transformers(chat: ChatTemplate, conversation: Conversation) -> str | None:
    """The text by `apply_chat_template`; None if the template refuses the conversation."""
    uses_tools = bool(conversation.tools) or any(message.tool_calls for message in conversation.messages)
    template = chat._template_for(uses_tools=uses_tools)
    as_objects = uses_tools and chat._arguments_as_objects
    messages = [chat._as_template_sees(m, template, as_objects=as_objects) for m in conversation.messages]
    tools = chat.offered(conversation.tools)
    try:
        return chat._apply(template, messages, tools, add_generation_prompt=True, at=MOMENT)
    except Exception:  # a template refuses in its own way
        return None


def by_mainstem(chat: ChatTemplate, conversation: Conversation) -> str | None:
    try:
        return chat.render(conversation, at=MOMENT)
    except InvalidRequest:
        return None


def grown(rng: random.Random, messages: list[Message], turns: int, *, tools: bool) -> None:
    """Append so many turns."""
    for _ in range(turns):
        number = len(messages)
        messages.append(Message(role="user", parts=(f"question {number} <{rng.random()}>",)))
        for _ in range(rng.randrange(3) if tools else 0):
            call = ToolCall(f"call{len(messages):05}", "look_up", f'{{"where": "ü {rng.random()}", "n": [1, true]}}')
            thought = rng.choice([None, "a thought"])
            messages.append(Message(role="assistant", parts=("so",), reasoning=thought, tool_calls=(call,)))
            messages.append(Message(role="tool", parts=("found",), tool_call_id=call.id, name="look_up"))
        messages.append(Message(role="assistant", parts=(f" reply {number}\n",), reasoning=rng.choice([None, "hm"])))


def conversations(seed: int, *, tools: bool) -> list[Conversation]:
    """One that grows, one message more at a time, and branches of it that change or drop what was said."""
    rng = random.Random(seed)
    messages: list[Message] = [Message(role="system", parts=("instructions",))] if seed % 3 else []
    grown(rng, messages, 4, tools=tools)
    offered = (TOOL,) if tools else ()
    found = []
    for stop in range(1, len(messages) + 1):
        found.append(Conversation(tuple(messages[:stop]), offered))
        if rng.random() < 0.3:
            changed = list(messages[:stop])
            at = rng.randrange(stop)
            changed[at] = replace(changed[at], parts=("changed",))
            found.append(Conversation(tuple(changed[: rng.randint(at + 1, stop)]), offered))
    return found


@pytest.mark.skipif(not KNOWN, reason="needs the templates in ../shared/data/chat-templates")
@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_known_templates_write_what_transformers_makes_of_them(folder: Path, path: Path) -> None:
    chat = chat_of(folder, path.read_text(encoding="utf-8"))
    accepted = 0
    for tools in (False, True):
        for seed in range(2):
            for conversation in conversations(seed, tools=tools):
                expected = as_transformers(chat, conversation)
                assert by_mainstem(chat, conversation) == expected
                accepted += expected is not None
    assert accepted > 0
