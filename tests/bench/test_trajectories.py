"""Tests of recordings as workloads: what is rendered, what extends what, what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainstem.bench.recordings import RecordedCall, Recording
from mainstem.bench.workload import Workload
from mainstem.bench.workloads.trajectories import Session, Turn, tokenize, trajectories
from mainstem.tokens import TokenArray, Tokenizer
from tests.support.tiny_models import save_tiny_tokenizer

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": [{"type": "text", "text": "The river"}, {"type": "text", "text": "and the sea"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "rain"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "name": "look", "content": "the quick brown fox"},
    {"role": "assistant", "content": "A tree of tokens."},
    {"role": "user", "content": "again and again"},
    {"role": "assistant", "content": "Naïve café 🌳"},
]
TOOLS = ({"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}},)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def recorded(messages: Sequence[dict[str, Any]], tools: Sequence[Any] = ()) -> Recording:
    calls = [
        RecordedCall(tuple(messages[:index]), tuple(tools), message, 1.5)
        for index, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    return Recording("test", "a recording", tuple(calls))


def tokenized(recording: Recording, tokenizer: Tokenizer) -> Session:
    (session,) = tokenize([recording], tokenizer).sessions
    return session


def prompts(turns: Sequence[Turn]) -> list[TokenArray]:
    """The whole prompts of turns."""
    whole: list[TokenArray] = []
    for index, turn in enumerate(turns):
        before = [whole[-1], turns[index - 1].reply] if turn.extends else []
        whole.append(np.concatenate([*before, turn.appended]))
    return whole


def test_prompts_are_what_the_server_would_make_of_the_messages(tokenizer: Tokenizer) -> None:
    recording = recorded(MESSAGES, TOOLS)
    turns = tokenized(recording, tokenizer).turns
    for call, prompt, turn in zip(recording.calls, prompts(turns), turns, strict=True):
        assert np.array_equal(prompt, tokenizer.encode_chat(call.messages, tools=TOOLS))
        assert len(prompt) == turn.prompt_tokens


def test_a_reply_ends_with_the_token_that_ends_the_turn(tokenizer: Tokenizer) -> None:
    turns = tokenized(recorded(MESSAGES), tokenizer).turns
    said = [tokenizer.decode(turn.reply) for turn in turns]
    assert said[1:] == ["A tree of tokens.", "Naïve café 🌳"]
    assert '"name": "look", "arguments": {"at": "rain"}' in said[0]
    assert all(turn.reply[-1] in tokenizer.eos_token_ids for turn in turns)


def test_turns_extend_the_ones_before_them(tokenizer: Tokenizer) -> None:
    assert [turn.extends for turn in tokenized(recorded(MESSAGES, TOOLS), tokenizer).turns] == [False, True, True]


def test_an_edited_history_is_a_prompt_of_its_own(tokenizer: Tokenizer) -> None:
    recording = recorded(MESSAGES, TOOLS)
    last = recording.calls[-1]
    edited = (*last.messages[:3], {**last.messages[3], "content": "left out"}, *last.messages[4:])
    calls = (*recording.calls[:-1], last._replace(messages=edited))
    turns = tokenized(recording._replace(calls=calls), tokenizer).turns
    assert [turn.extends for turn in turns] == [False, True, False]
    assert len(turns[2].appended) == turns[2].prompt_tokens


def test_a_template_that_refuses_tools_gets_them_as_text(tmp_path: Path) -> None:
    template = (
        "{# it says tools, but takes none #}{% for message in messages %}"
        "{% if message.role == 'tool' or message.tool_calls %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = Tokenizer.load(save_tiny_tokenizer(tmp_path, chat_template=template))
    turns = tokenized(recorded(MESSAGES, TOOLS), tokenizer).turns
    first, second, _ = (tokenizer.decode(prompt) for prompt in prompts(turns))
    assert "<tools>" in first
    assert '"name": "look"' in tokenizer.decode(turns[0].reply)
    assert "<tool_response>\nthe quick brown fox\n</tool_response>" in second
    assert [turn.extends for turn in turns] == [False, True, True]


def test_a_template_that_drops_the_past_differently_still_gives_a_reply(tmp_path: Path) -> None:
    template = (
        "{% for message in messages %}{{ message.role + ': ' + message.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant, thinking: ' }}{% endif %}"
    )
    tokenizer = Tokenizer.load(save_tiny_tokenizer(tmp_path, chat_template=template))
    turns = tokenized(recorded([MESSAGES[5], MESSAGES[4], *MESSAGES[5:]]), tokenizer).turns
    assert [tokenizer.decode(turn.reply) for turn in turns] == ["A tree of tokens.", "Naïve café 🌳"]
    assert not any(turn.extends for turn in turns)


def test_a_recording_that_the_template_refuses_is_named(tmp_path: Path) -> None:
    template = "{{ raise_exception('not today') }}"
    tokenizer = Tokenizer.load(save_tiny_tokenizer(tmp_path, chat_template=template))
    found = tokenize([recorded(MESSAGES[:5])], tokenizer)
    assert found.sessions == []
    assert found.refusals[0].name == "a recording"
    assert "not today" in found.refusals[0].reason


def session(*lengths: tuple[int, int]) -> Session:
    """A session of turns with so many appended tokens and so long replies."""
    turns: list[Turn] = []
    total = 0
    for index, (appended, reply) in enumerate(lengths):
        total += appended
        tokens = np.arange(appended, dtype=np.int32)
        turns.append(Turn(index > 0, tokens, np.arange(reply, dtype=np.int32), 2.0, total))
        total += reply
    return Session("test", "a session", tuple(turns))


def made(sessions: Sequence[Session], **options: Any) -> Workload:
    return trajectories(sessions, 448, **options).workload


def test_a_session_ends_before_the_first_turn_that_does_not_fit() -> None:
    result = trajectories([session((10, 5), (10, 5), (10, 5)), session((40, 1))], 448, max_len=30)
    assert [call.turn for call in result.workload.calls] == [1, 2]
    assert result.turns_left_out == 2
    assert trajectories([session((10, 5), (10, 5))], 448).turns_left_out == 0


def test_as_many_sessions_as_asked_go_on_at_once() -> None:
    calls = made([session((5, 1), (5, 1)) for _ in range(5)], concurrency=2).calls
    first_of = {call.session: call for call in calls if call.turn == 1}
    assert [first_of[number].after for number in range(5)] == [None, None, 1, 3, 5]
    # The next session of a lane waits for the last call of the one before it, and extends nothing.
    assert not any(call.extends for call in first_of.values())


def test_waits_are_those_of_the_recording_if_asked_for() -> None:
    sessions = [session((5, 1), (5, 1))]
    assert [call.wait for call in made(sessions).calls] == [0.0, 0.0]
    assert [call.wait for call in made(sessions, waits=True).calls] == [2.0, 2.0]


def test_prompts_and_replies_add_up_in_the_workload(tokenizer: Tokenizer) -> None:
    turns = tokenized(recorded(MESSAGES, TOOLS), tokenizer)
    workload = made([turns])
    assert workload.prompt_lengths == tuple(turn.prompt_tokens for turn in turns.turns)
    assert [call.reply_tokens for call in workload.calls] == [len(turn.reply) for turn in turns.turns]
