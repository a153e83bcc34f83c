"""What clients change between requests, at the head, in the middle and at the tail of a conversation.

Each time the tokens before the change are cached, those behind it are computed again for that reason, and what is new
is new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mainstem.diagnosis import Cause
from mainstem.tokens import Message, Tokenizer
from mainstem.tokens.conversation import Tool
from tests.diagnosis.conversations import TOOLS, call, history, result
from tests.diagnosis.test_compare import VOLATILE
from tests.explain.talk import Talk, Told

HEAD, MIDDLE, TAIL = 0, 3, 5
NEXT = (call("run", '{"command": "pytest"}'), result("3 passed"))
LAST_WORDS = "That is all, and nothing else is to be done before the tests pass again on every machine."
Messages = tuple[Message, ...]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model)


@pytest.fixture
def talk(tokenizer: Tokenizer) -> Talk:
    return Talk(tokenizer)


def told(text: str, index: int) -> Messages:
    """The history with a text in one message."""
    messages = list(history())
    messages[index] = replace(messages[index], parts=(f"{messages[index].text}\n{text}\n{LAST_WORDS}",))
    return tuple(messages)


def assert_parted(found: Told, cause: Cause, part: str) -> None:
    """All before the first difference was cached, and what is behind it was computed because of it."""
    difference = found.difference
    assert difference is not None
    assert difference.change is not None
    assert (difference.change.cause, difference.change.part) == (cause, part)
    assert found.part == part
    assert difference.earlier != difference.now
    assert difference.change.fix
    assert difference.token == found.record.num_cached
    assert set(found.causes) == {"diverged", "first_seen"}
    lost_at = next(miss.start for miss in found.record.misses if miss.cause == "diverged")
    assert lost_at >= difference.token


@pytest.mark.parametrize("index", [HEAD, MIDDLE, TAIL])
@pytest.mark.parametrize(("old", "new", "cause"), VOLATILE)
def test_what_is_different_each_time(talk: Talk, index: int, old: str, new: str, cause: Cause) -> None:
    talk.chat(told(old, index))
    found = talk.chat((*told(new, index), *NEXT))
    assert_parted(found, cause, f"messages[{index}].content")
    change = found.difference.change if found.difference else None
    assert change is not None
    assert change.openai_reason == "input_changed"
    assert change.anthropic_type == ("system_changed" if index == HEAD else "messages_changed")


@pytest.mark.parametrize(
    ("index", "cause"),
    [(HEAD, Cause.SYSTEM_EDITED), (MIDDLE, Cause.HISTORY_EDITED), (TAIL, Cause.HISTORY_EDITED)],
)
def test_an_edit(talk: Talk, index: int, cause: Cause) -> None:
    talk.chat(told("Prefer tabs.", index))
    assert_parted(talk.chat((*told("Prefer spaces.", index), *NEXT)), cause, f"messages[{index}].content")


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda tools: (*tools, Tool("list", "List a folder.")), Cause.TOOLS_ADDED),
        (lambda tools: (Tool("list", "List a folder."), *tools), Cause.TOOLS_ADDED),
        (lambda tools: (tools[0], Tool("list", "List a folder."), *tools[1:]), Cause.TOOLS_ADDED),
        (lambda tools: tools[1:], Cause.TOOLS_REMOVED),
        (lambda tools: (tools[0], tools[2]), Cause.TOOLS_REMOVED),
        (lambda tools: tools[:-1], Cause.TOOLS_REMOVED),
        (lambda tools: tools[::-1], Cause.TOOLS_REORDERED),
        (lambda tools: (tools[0], tools[2], tools[1]), Cause.TOOLS_REORDERED),
        (lambda tools: (replace(tools[0], description="Read one file."), *tools[1:]), Cause.TOOLS_EDITED),
        (lambda tools: (*tools[:2], replace(tools[2], description="Write one file.")), Cause.TOOLS_EDITED),
    ],
)
def test_tools_that_change(talk: Talk, change: Callable[[tuple[Tool, ...]], tuple[Tool, ...]], cause: Cause) -> None:
    talk.chat(history(), TOOLS)
    found = talk.chat((*history(), *NEXT), change(TOOLS))
    assert found.difference is not None
    assert found.difference.change is not None
    assert found.difference.change.cause is cause
    assert found.difference.change.openai_reason == found.difference.change.anthropic_type == "tools_changed"
    assert found.causes["diverged"] > found.causes["first_seen"] / 2


def test_the_same_schema_in_another_order_of_keys_costs_nothing(talk: Talk) -> None:
    talk.chat(history(), TOOLS)
    swapped = [replace(tool, parameters=dict(reversed(list((tool.parameters or {}).items())))) for tool in TOOLS]
    assert set(talk.chat(history(), tuple(swapped)).causes) == {"rounding"}


@pytest.mark.parametrize(
    ("change", "cause", "reason"),
    [
        (lambda old: (old[0], *old[3:]), Cause.HISTORY_WINDOWED, "context_compacted"),
        (lambda old: (*old[:3], *old[5:]), Cause.HISTORY_ELIDED, "context_compacted"),
        (
            lambda old: (*old[:3], replace(old[3], parts=("[output omitted]",)), *old[4:]),
            Cause.HISTORY_ELIDED,
            "context_compacted",
        ),
        (
            lambda old: (*old[:2], result("Nothing is there."), *old[2:]),
            Cause.HISTORY_EDITED,
            "input_changed",
        ),
    ],
)
def test_a_history_that_is_shortened_or_filled(
    talk: Talk, change: Callable[[Messages], Messages], cause: Cause, reason: str
) -> None:
    old = (*history()[:-1], Message(role="user", parts=(f"Go on. {LAST_WORDS}",)))
    talk.chat(old)
    found = talk.chat((*change(old), Message(role="assistant", parts=("Done.",)), *NEXT))
    assert found.difference is not None
    assert found.difference.change is not None
    assert (found.difference.change.cause, found.difference.change.openai_reason) == (cause, reason)
    assert found.difference.change.anthropic_type == "messages_changed"
    assert found.causes["diverged"] > 0


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_the_same_text_in_other_tokens(talk: Talk, tokenizer: Tokenizer, position: float) -> None:
    messages = told("Please.", TAIL)
    first = talk.chat(messages)
    tokens = talk.recorder.tokens_of(first.record)[: first.record.num_prompt].tolist()
    at = next(i for i in range(int(position * len(tokens)), len(tokens)) if len(tokenizer.token_bytes(tokens[i])) > 2)
    spelt = [tokenizer.encode(chr(byte)).item() for byte in tokenizer.token_bytes(tokens[at])]
    found = talk.chat(messages, tokens=np.array([*tokens[:at], *spelt, *tokens[at + 1 :]], np.int32))
    assert found.difference is not None
    assert found.difference.change is not None
    assert found.difference.change.cause is Cause.RETOKENIZED
    assert found.difference.token == found.record.num_cached
    assert found.causes["diverged"] > 0


@pytest.mark.parametrize("length", [1, 2, 4])
def test_another_question_is_no_fault(talk: Talk, length: int) -> None:
    """A branch: what both have is cached, the rest is new."""
    start = history()[:length]
    talk.chat((*start, Message(role="user", parts=("What is the name of the longest river?",))))
    found = talk.chat((*start, Message(role="user", parts=("How many tests are there, and which of them fail?",))))
    assert set(found.causes) == {"first_seen"}
    assert found.record.num_cached > 0
