"""What clients change between requests, at the head, in the middle and at the tail of a conversation.

Each time the tokens before the change are cached, those behind it are computed again for that reason, and what is new
is new.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mainstem.diagnosis import Cause
from mainstem.tokens import Conversation, Message, Tokenizer
from mainstem.tokens.conversation import Tool
from mainstem.tree import RadixCache, TokenArray
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


# Longer histories: what is dropped, shortened, put in or left out, in their first, their middle and their last third


def long_history() -> Messages:
    """Four tasks, each with a call, its result, and a conclusion that was thought about."""
    said = [history()[0]]
    for task in ("dates", "names", "paths", "sizes"):
        said += [
            Message(role="user", parts=(f"The test of {task} fails. Please repair it. {LAST_WORDS}",)),
            call("read", f'{{"path": "{task}.py"}}'),
            result(f"def {task}(text):\n    return text.split('-')[2]\n" * 4),
            Message(
                role="assistant",
                parts=(f"The split of {task} was wrong and is right now. {LAST_WORDS}",),
                reasoning=f"In {task}, months come before days, and nobody has noticed that for as long as two years.",
            ),
        ]
    return tuple(said)


def changed(talk: Talk, before: Messages, after: Messages) -> Told:
    talk.chat(before)
    return talk.chat((*after, Message(role="assistant", parts=("Done.",)), *NEXT))


def assert_class(found: Told, cause: Cause, openai_reason: str) -> None:
    change = found.difference.change if found.difference else None
    assert change is not None
    assert (change.cause, change.openai_reason, change.anthropic_type) == (cause, openai_reason, "messages_changed")
    assert found.difference is not None
    assert found.difference.token == found.record.num_cached > 0
    assert found.causes["diverged"] > 0


@pytest.mark.parametrize("dropped", [4, 8, 12])
def test_a_window_over_the_history(talk: Talk, dropped: int) -> None:
    old = long_history()
    found = changed(talk, old, (old[0], *old[1 + dropped :]))
    assert_class(found, Cause.HISTORY_WINDOWED, "context_compacted")


@pytest.mark.parametrize("index", [1, 4, 5, 8, 12, 13])  # of the user and of the model
@pytest.mark.parametrize(
    "after",
    [(), (Message(role="assistant", parts=("Done.",)), *NEXT), (Message(role="assistant", parts=("No.",)), *NEXT)],
    ids=["asked again", "went on", "with another reply"],
)
def test_a_message_that_says_something_else(talk: Talk, index: int, after: Messages) -> None:
    old = (*long_history(), Message(role="user", parts=("Is that all?",)))
    said = replace(old[index], parts=("I would rather not say, as it is a secret.",))
    talk.chat(old)
    found = talk.chat((*old[:index], said, *old[index + 1 :], *after))
    assert_class(found, Cause.HISTORY_EDITED, "input_changed")
    assert found.difference is not None
    assert found.difference.change is not None
    assert found.difference.change.part == f"messages[{index}].content"


@pytest.mark.parametrize("index", [1, 5, 13])
def test_a_message_that_is_longer_than_it_was(talk: Talk, index: int) -> None:
    old = (*long_history(), Message(role="user", parts=("Is that all?",)))
    talk.chat(old)
    said = replace(old[index], parts=(f"{old[index].text} Thanks.",))
    assert_class(talk.chat((*old[:index], said, *old[index + 1 :])), Cause.HISTORY_EDITED, "input_changed")


def test_a_message_that_was_reworded_among_replies_that_are_alike(talk: Talk) -> None:
    """The model said the same every time, also to the last one."""
    yes = Message(role="assistant", parts=("Done.",))
    old = [history()[0]]
    for number in range(3):
        old += [Message(role="user", parts=(f"List the files of folder {number}. {LAST_WORDS}",)), yes]
    talk.chat(tuple(old[:-1]))
    found = talk.chat((*old[:3], Message(role="user", parts=("Rather not.",)), *old[4:-1]))
    assert_class(found, Cause.HISTORY_EDITED, "input_changed")


@pytest.mark.parametrize("index", [3, 7, 15])
def test_an_output_that_was_left_out(talk: Talk, index: int) -> None:
    old = long_history()
    found = changed(talk, old, (*old[:index], result("[output omitted]"), *old[index + 1 :]))
    assert_class(found, Cause.HISTORY_ELIDED, "context_compacted")
    assert found.part == f"messages[{index}].content"


@pytest.mark.parametrize("index", [2, 6, 14])
def test_a_message_put_in(talk: Talk, index: int) -> None:
    old = long_history()
    found = changed(talk, old, (*old[:index], result("Nothing is there."), *old[index:]))
    assert_class(found, Cause.HISTORY_EDITED, "input_changed")


# What the template does otherwise with the same history


def rendered(
    tokenizer: Tokenizer,
    messages: Messages,
    *,
    date: tuple[int, str] | None = None,
    tools_before: int | None = None,
    thoughts: frozenset[int] | None = None,
) -> TokenArray:
    """The tokens that a template would make of a conversation.

    Args:
        tokenizer: of the model.
        messages: of the conversation.
        date: a message's index, and what the template writes before it.
        tools_before: the message before which it writes the tools.
        thoughts: the messages whose reasoning it writes; None for all.
    """
    text = ""
    for i, message in enumerate(messages):
        if date is not None and date[0] == i:
            text += f"<|im_start|>system\nToday is {date[1]}.<|im_end|>\n"
        if tools_before == i:
            written = "\n".join(json.dumps(tool.definition()) for tool in TOOLS)
            text += f"<|im_start|>system\n{written}<|im_end|>\n"
        text += f"<|im_start|>{message.role}\n"
        if message.reasoning and (thoughts is None or i in thoughts):
            text += f"<think>\n{message.reasoning}\n</think>\n"
        text += message.text
        text += "".join(f"\n<tool_call>{call.name} {call.arguments}</tool_call>" for call in message.tool_calls)
        text += "<|im_end|>\n"
    return tokenizer.encode(f"{text}<|im_start|>assistant\n")


@pytest.mark.parametrize("index", [1, 9, 16])
def test_a_template_that_writes_todays_date(talk: Talk, tokenizer: Tokenizer, index: int) -> None:
    old = long_history()
    talk.chat(old, tokens=rendered(tokenizer, old, date=(index, "Monday, 30 November 2026")))
    found = talk.chat(old, tokens=rendered(tokenizer, old, date=(index, "Tuesday, 1 December 2026")))
    assert_class(found, Cause.TEMPLATE, "input_changed")


@pytest.mark.parametrize(("before", "after"), [(1, 5), (5, 9), (13, 17)])
def test_a_template_that_moves_the_tools(talk: Talk, tokenizer: Tokenizer, before: int, after: int) -> None:
    """As those do that write the tools before the latest question."""
    old, new = long_history(), (*long_history(), Message(role="user", parts=("And the test of times?",)))
    talk.chat(old, TOOLS, tokens=rendered(tokenizer, old, tools_before=before))
    found = talk.chat(new, TOOLS, tokens=rendered(tokenizer, new, tools_before=after))
    assert_class(found, Cause.TEMPLATE, "input_changed")


@pytest.mark.parametrize("index", [4, 8, 16])
def test_reasoning_that_the_template_drops(talk: Talk, tokenizer: Tokenizer, index: int) -> None:
    old, new = long_history(), (*long_history(), Message(role="user", parts=("And the test of times?",)))
    talk.chat(old, tokens=rendered(tokenizer, old))
    left = frozenset({4, 8, 12, 16} - {index})
    found = talk.chat(new, tokens=rendered(tokenizer, new, thoughts=left))
    assert_class(found, Cause.REASONING_DROPPED, "input_changed")


@pytest.mark.parametrize("index", [4, 8, 16])
def test_reasoning_that_the_client_drops(talk: Talk, tokenizer: Tokenizer, index: int) -> None:
    old = long_history()
    new = (*old[:index], replace(old[index], reasoning=None), *old[index + 1 :], *NEXT)
    talk.chat(old, tokens=rendered(tokenizer, old))
    found = talk.chat(new, tokens=rendered(tokenizer, new))
    assert_class(found, Cause.REASONING_DROPPED, "input_changed")


# What the cache lost: all of a conversation, what is behind its middle, or its last message


@pytest.mark.parametrize("kept", [0, 9, 16])
@pytest.mark.parametrize(
    ("cause", "lose"),
    [
        ("evicted", lambda cache: cache.evict(cache.stats().evictable)),
        ("expired", lambda cache: cache.expire(0.0)),
        ("reset", lambda cache: cache.reset()),
    ],
)
def test_what_the_cache_lost(
    talk: Talk, tokenizer: Tokenizer, cause: str, lose: Callable[[RadixCache], int], kept: int
) -> None:
    old = long_history()
    talk.chat(old)
    # Somebody else's request runs over the same beginning.
    tokens = tokenizer.encode(
        tokenizer.chat.render(Conversation(old[:kept]), add_generation_prompt=False) if kept else ""
    )
    assert isinstance(talk.cache, RadixCache)
    match = talk.cache.match_prefix(tokens)
    talk.cache.lock(match.handle)
    lose(talk.cache)
    talk.cache.unlock(match.handle)
    found = talk.chat((*old, *NEXT))
    assert found.record.num_cached == match.length
    assert (match.length > 0) == (kept > 0)
    assert found.record.misses[0].cause.value == cause
    assert found.record.misses[0].start == match.length
    assert set(found.causes) == {cause, "first_seen"}


@pytest.mark.parametrize("turns", [1, 2, 4])
def test_a_reply_that_is_being_written(talk: Talk, tokenizer: Tokenizer, turns: int) -> None:
    """A second request goes on with a reply that the first one has not ended."""
    asked = Conversation(long_history()[: 4 * turns])
    first = talk.add(tokenizer.encode(tokenizer.chat.render(asked)), reply=30)
    for _ in range(20):
        talk.step()
    told = talk.run(np.append(first.tokens.array, [8, 9]))
    assert told.record.num_cached == first.num_prompt
    assert told.record.misses[0].cause.value == "in_flight"


@pytest.mark.parametrize("common", [1, 9, 17])
def test_what_another_tenant_has(talk: Talk, common: int) -> None:
    old = long_history()
    talk.chat(old, namespace=("tenant", "alice"))
    found = talk.chat((*old[:common], *NEXT), namespace=("tenant", "bob"))
    assert found.record.misses[0].cause.value == "other_namespace"
    assert set(found.causes) == {"other_namespace", "first_seen"}
