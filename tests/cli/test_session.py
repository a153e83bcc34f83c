"""The recorded agent session has the wanted length, grows evenly and is the same every time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest

from mainstem.cli.session import MAX_TOKENS, MIN_TOKENS, TURNS, AgentSession, Message, load_steps, load_tools
from mainstem.errors import ConfigError, MainstemError
from mainstem.model import ModelFiles
from mainstem.tokens import Tokenizer

# SmolLM2 makes about one token of 3.3 characters of these texts.
CHARACTERS_PER_TOKEN = 3.3
TOOLS = json.dumps(load_tools())


def count(messages: Sequence[Message]) -> int:
    """A stand-in for the chat template and tokenizer: proportional to length, plus the markup of each message."""
    texts = [TOOLS, *(message["content"] or str(message["tool_calls"]) for message in messages)]
    return sum(5 + round(len(text) / CHARACTERS_PER_TOKEN) for text in texts)


def reply(session: AgentSession) -> Message:
    """A reply that calls what it is to call."""
    match session.tool_choice:
        case {"function": {"name": name}}:
            function = {"name": name, "arguments": '{"path": "src/courier/job.py"}'}
            calls = [{"id": f"call_{session.turn}", "type": "function", "function": function}]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        case _:
            return {"role": "assistant", "content": "The attempts were not written to the database; now they are."}


def play(tokens: int) -> list[int]:
    """Prompt lengths of all turns."""
    session = AgentSession(tokens, count)
    lengths = []
    for _ in range(TURNS):
        session.ask()
        lengths.append(count(session.messages))
        session.answer(reply(session))
    return lengths


@pytest.mark.parametrize("tokens", [MIN_TOKENS, 4000, 6000, 7500, MAX_TOKENS])
def test_the_last_prompt_has_about_the_wanted_length(tokens: int) -> None:
    assert abs(play(tokens)[-1] - tokens) < 60


@pytest.mark.parametrize("tokens", [MIN_TOKENS, 4000, 7500])
def test_every_turn_adds_something(tokens: int) -> None:
    assert all(later - earlier > 40 for earlier, later in pairwise(play(tokens)))


def test_the_first_prompt_is_about_half_the_last() -> None:
    first = play(4000)[0]
    assert 1900 <= first <= 2000


def test_each_prompt_begins_with_the_one_before_it() -> None:
    session = AgentSession(4000, count)
    earlier: list[Message] = []
    for _ in range(TURNS):
        session.ask()
        assert session.messages[: len(earlier)] == earlier
        session.answer(reply(session))
        earlier = list(session.messages)
    assert [message["role"] for message in earlier[:5]] == ["system", "user", "assistant", "tool", "assistant"]


def test_each_result_answers_the_call_before_it() -> None:
    session = AgentSession(4000, count)
    for _ in range(TURNS):
        session.ask()
        session.answer(reply(session))
    pairs = [(a, b) for a, b in pairwise(session.messages) if b["role"] == "tool"]
    assert len(pairs) == TURNS - 1
    for call, result in pairs:
        assert result["tool_call_id"] == call["tool_calls"][0]["id"]
        assert result["content"].startswith(call["tool_calls"][0]["function"]["name"])


def test_only_tools_on_offer_are_called_and_the_last_reply_calls_none() -> None:
    offered = {tool["function"]["name"] for tool in load_tools()}
    assert {step.tool for step in load_steps()[1:]} == offered
    session = AgentSession(4000, count)
    for _ in range(TURNS - 1):
        session.ask()
        session.answer(reply(session))
    session.ask()
    assert session.tool_choice == "none"


def test_a_reply_without_the_call_asked_for_is_an_error() -> None:
    session = AgentSession(4000, count)
    session.ask()
    with pytest.raises(MainstemError, match="turn 1: the reply was to call run, but called nothing"):
        session.answer({"role": "assistant", "content": "I run the tests."})


def test_two_sessions_are_the_same() -> None:
    def messages() -> list[Message]:
        session = AgentSession(5000, count)
        for _ in range(TURNS):
            session.ask()
            session.answer(reply(session))
        return session.messages

    assert messages() == messages()


def test_a_cut_text_says_how_much_is_missing() -> None:
    step = load_steps()[1]
    lines = len(step.body.splitlines())
    assert f"[... {lines - 3} more lines]" in step.cut(3)
    assert "more lines]" not in step.cut(lines)


def test_no_long_line_is_said_twice_in_a_row() -> None:
    lines = [line for step in load_steps() for line in step.body.splitlines() if len(line) > 40]
    repeated = sum(a == b for a, b in pairwise(lines))
    assert repeated <= 8, "only the log of the fault itself may repeat"


@pytest.mark.parametrize("tokens", [2500, 4000, 6000, 7500])
def test_with_the_embedded_model_each_prompt_extends_the_tokens_of_the_last(
    tokens: int, embedded_model: ModelFiles
) -> None:
    tokenizer, tools = Tokenizer.load(embedded_model.folder), load_tools()
    session = AgentSession(tokens, lambda messages: len(tokenizer.encode_chat(messages, tools=tools)))
    earlier: list[int] = []
    for _ in range(TURNS):
        session.ask()
        prompt = tokenizer.encode_chat(session.messages, tools=tools).tolist()
        assert prompt[: len(earlier)] == earlier
        assert len(prompt) > len(earlier) + 40
        earlier = prompt
        session.answer(reply(session))
    assert abs(len(earlier) - tokens) < 60


@pytest.mark.parametrize("tokens", [MIN_TOKENS - 1, MAX_TOKENS + 1])
def test_a_length_the_texts_cannot_make_is_refused(tokens: int) -> None:
    with pytest.raises(ConfigError, match="--tokens must be between 2000 and 8000"):
        AgentSession(tokens, count)
