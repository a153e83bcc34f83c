"""Breakpoints are found in the prompt that a template made, wherever it put the messages."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

from mainstem.tokens.breakpoints import MAX_BREAKPOINTS, locate
from mainstem.tokens.conversation import Breakpoint, Conversation, Message, Tool
from mainstem.tokens.known_prompt import KnownPrompt, Part


def ids_of(text: str) -> Any:
    """One token a character."""
    return np.frombuffer(text.encode("utf-32-le"), np.int32)


def lengths(conversation: Conversation, text: str) -> list[tuple[int, str | None]]:
    half = len(text) // 2
    parts = [Part.of(part, ids_of(part), "new") for part in (text[:half], text[half:])]
    known = KnownPrompt(ids_of(text), text, (), (parts[0],), parts[1])
    return [(mark.length, mark.ttl) for mark in locate(conversation, known, ids_of)]


def rendered(messages: list[Message], tools: str = "") -> tuple[str, list[tuple[int, str | None]]]:
    """A prompt as a template may make it, and where its breakpoints are by construction."""
    text, marks = "<begin>", list[tuple[int, str | None]]()
    for index, message in enumerate(messages):
        if tools and message.role != "system" and all(m.role == "system" for m in messages[:index]):
            text += f"[{tools}]"
        text += f"<{message.role}>"
        ends = (len(text) + len("\n".join(message.parts[: mark.part + 1])) for mark in message.breakpoints)
        marks += [(end, mark.ttl) for end, mark in zip(ends, message.breakpoints, strict=True)]
        text += message.text + "<end>"
    return text + "<assistant>", marks


@pytest.mark.parametrize("seed", range(30))
def test_the_last_four_marks_are_found_where_they_are(seed: int) -> None:
    draw = random.Random(seed)
    messages = []
    for number in range(draw.randint(1, 12)):
        role = "system" if number < 2 and draw.random() < 0.5 else ("user", "assistant")[number % 2]
        # Texts differ, but the parts of one may be as those of another.
        parts = tuple(draw.choice(["yes", "no", "go on", f"word {number}"]) for _ in range(draw.randint(1, 9)))
        parts = (*parts, f"number {number}")
        wishes = tuple(Breakpoint(i, draw.choice([None, "1h"])) for i in range(len(parts)) if draw.random() < 0.6)
        messages.append(Message(role=role, parts=parts, breakpoints=wishes))
    text, marks = rendered(messages)
    assert lengths(Conversation(tuple(messages)), text) == marks[-MAX_BREAKPOINTS:]


def test_a_mark_on_the_tools_is_before_the_first_turn() -> None:
    messages = [Message(role="system", parts=("Be short.",)), Message(role="user", parts=("Hello",))]
    text, _ = rendered(messages, tools="search")
    tools = (Tool(name="search", breakpoint=Breakpoint(0, "5m")),)
    assert lengths(Conversation(tuple(messages), tools), text) == [(text.index("Hello"), "5m")]


def test_white_space_that_a_template_strips_does_not_matter() -> None:
    message = Message(role="user", parts=("  one", "two  "), breakpoints=(Breakpoint(0, None), Breakpoint(1, None)))
    text = "<user>one\ntwo<end>"
    assert lengths(Conversation((message,)), text) == [(len("<user>one"), None), (len("<user>one\ntwo"), None)]


def test_a_message_that_the_template_changed_has_no_mark() -> None:
    mark = (Breakpoint(0, None),)
    messages = (
        Message(role="user", parts=("Hello",), breakpoints=mark),
        Message(role="user", parts=("x",), breakpoints=mark),
    )
    assert lengths(Conversation(messages), "<user>HELLO<user>x") == [(len("<user>HELLO<user>x"), None)]


def test_a_message_that_is_there_twice_is_marked_where_it_stands() -> None:
    twice = "The same file was read again, and it has more than sixty-four characters in it."
    mark = (Breakpoint(0, None),)
    messages = [
        Message(role="user", parts=(twice,)),
        Message(role="assistant", parts=("yes",), breakpoints=mark),
        Message(role="user", parts=(f"It said: {twice}",)),
    ]
    text, marks = rendered(messages)
    assert lengths(Conversation(tuple(messages)), text) == marks


def test_a_mark_is_never_beyond_its_message() -> None:
    message = Message(role="user", parts=("assistant",), breakpoints=(Breakpoint(0, None),))
    text, marks = rendered([message])  # ends with the same word
    assert lengths(Conversation((message,)), text) == marks


def test_blank_text_is_marked_where_it_stands() -> None:
    message = Message(role="user", parts=("   ",), breakpoints=(Breakpoint(0, None),))
    text, marks = rendered([message])
    assert lengths(Conversation((message,)), text) == marks


def test_texts_that_repeat_themselves_are_searched_in_linear_time() -> None:
    size = 200_000
    messages = (
        Message(role="user", parts=("ab" + "a" * size,)),
        Message(role="user", parts=("b",), breakpoints=(Breakpoint(0, None),)),
    )
    text, _ = rendered([messages[0]])
    began = time.perf_counter()
    assert lengths(Conversation(messages), text + "a" * 2 * size) == []
    assert time.perf_counter() - began < 2.0  # from the right it takes half a minute


def test_of_very_many_marks_in_one_message_the_last_four_are_found_at_once() -> None:
    parts = ("a",) * 30_000
    message = Message(role="user", parts=parts, breakpoints=tuple(Breakpoint(i, None) for i in range(len(parts))))
    text, _ = rendered([Message(role="user", parts=parts)])
    began = time.perf_counter()
    found = lengths(Conversation((message,)), text)
    assert time.perf_counter() - began < 2.0  # building the text before each mark takes ten seconds
    end = text.index("<end>")
    assert found == [(end - 2 * i, None) for i in (3, 2, 1, 0)]


def test_messages_that_a_template_leaves_out_are_looked_for_only_so_often() -> None:
    gone = [Message(role="user", parts=(f"gone {i}",), breakpoints=(Breakpoint(0, None),)) for i in range(20_000)]
    text, _ = rendered([Message(role="user", parts=("x" * 400_000,))])
    began = time.perf_counter()
    assert lengths(Conversation(tuple(gone)), text) == []
    assert time.perf_counter() - began < 8.0
