"""Tool calls and JSON in chat completions, as the real OpenAI client sees them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from mainstem.params import SamplingParams
from mainstem.server.chat import ChatShape
from mainstem.server.prompts import Prompt
from mainstem.server.protocol import ChatBody
from mainstem.server.replies import _ChoicesWriter
from mainstem.server.turns import ReadyTurn
from mainstem.tools import ReplyParser
from mainstem.tools.syntax import Hermes
from tests.server.conftest import MODEL, metric
from tests.server.scripted import ScriptedGeneration
from tests.server.tools import CHAT_TOOLS, SCHEMA, check_answer, check_call

HELLO: list[Any] = [{"role": "user", "content": "What will the weather be in Rome?"}]
JSON_SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.5, "seed": 3},
    {"top_p": 0.5, "seed": 4, "frequency_penalty": 1.5, "presence_penalty": -1},
    {"logprobs": True, "top_logprobs": 2, "seed": 5},
    {"extra_body": {"top_k": 3, "repetition_penalty": 1.3, "ignore_eos": True}, "seed": 6},
]


def ask(sdk: openai.OpenAI, **fields: Any) -> Any:
    return sdk.chat.completions.create(
        model=MODEL, messages=HELLO, **{"tools": CHAT_TOOLS, "max_tokens": 400, **fields}
    )


@pytest.mark.parametrize("sampling", SAMPLING, ids=lambda sampling: "+".join(sampling))
def test_required_always_gives_valid_calls(sdk: openai.OpenAI, sampling: dict[str, Any]) -> None:
    choice = ask(sdk, tool_choice="required", **sampling).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls
    for call in choice.message.tool_calls:
        check_call(call.function.name, call.function.arguments)
        assert call.id.startswith("call_")
    assert len({call.id for call in choice.message.tool_calls}) == len(choice.message.tool_calls)


def test_a_named_tool_is_called_once(sdk: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "forecast"}}
    for seed in range(3):
        (call,) = ask(sdk, tool_choice=choice, seed=seed).choices[0].message.tool_calls
        assert call.function.name == "forecast"
        check_call("forecast", call.function.arguments)


def test_without_parallel_calls_there_is_one(sdk: openai.OpenAI) -> None:
    for seed in range(3):
        message = ask(sdk, tool_choice="required", parallel_tool_calls=False, seed=seed).choices[0].message
        assert len(message.tool_calls) == 1


def test_only_allowed_tools_are_called(sdk: openai.OpenAI) -> None:
    tools = [{"type": "function", "function": {"name": "now"}}]
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}}
    message = ask(sdk, tool_choice=choice, seed=1).choices[0].message
    assert {call.function.name for call in message.tool_calls} == {"now"}


def test_replies_side_by_side_follow_their_grammars(sdk: openai.OpenAI) -> None:
    choices = ask(sdk, tool_choice="required", n=4, seed=1, parallel_tool_calls=False).choices
    assert len({choice.message.tool_calls[0].function.arguments for choice in choices}) > 1
    for choice in choices:
        check_call(choice.message.tool_calls[0].function.name, choice.message.tool_calls[0].function.arguments)


def test_a_seeded_call_is_repeated(sdk: openai.OpenAI) -> None:
    def arguments() -> list[str]:
        calls = ask(sdk, tool_choice="required", seed=11).choices[0].message.tool_calls
        return [call.function.arguments for call in calls]

    assert arguments() == arguments()


def test_a_streamed_call_is_the_same_as_a_whole_one(sdk: openai.OpenAI) -> None:
    whole = ask(sdk, tool_choice="required", seed=2).choices[0]
    calls: dict[int, dict[str, str]] = {}
    finish = None
    for chunk in ask(sdk, tool_choice="required", seed=2, stream=True):
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
        for delta in chunk.choices[0].delta.tool_calls or []:
            call = calls.setdefault(delta.index, {"name": "", "arguments": ""})
            assert (delta.id is None) == bool(call["name"])
            call["name"] += delta.function.name or ""
            call["arguments"] += delta.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert finish == "tool_calls"
    assert list(calls) == list(range(len(calls)))
    expected = [{"name": call.function.name, "arguments": call.function.arguments} for call in whole.message.tool_calls]
    assert list(calls.values()) == expected


def test_the_sdks_own_accumulator_takes_the_stream(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(
        model=MODEL, messages=HELLO, tools=CHAT_TOOLS, tool_choice="required", max_tokens=400, seed=2
    ) as stream:
        final = stream.get_final_completion()
    ChatCompletion.model_validate(final.model_dump())
    assert final.choices[0].message.tool_calls
    for call in final.choices[0].message.tool_calls:
        check_call(call.function.name, call.function.arguments)


def test_a_call_that_is_cut_off_is_text_and_says_length(sdk: openai.OpenAI) -> None:
    choice = ask(sdk, tool_choice="required", max_tokens=6, temperature=0).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert choice.message.content.startswith("<tool")


def test_a_stop_string_ends_a_forced_reply_too(sdk: openai.OpenAI) -> None:
    choice = ask(sdk, tool_choice="required", stop='"name"', temperature=0).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == "<tool_call>\n{"


def test_none_keeps_the_tools_in_the_prompt_and_gives_no_call(sdk: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "extra_body": {"cache_salt": "none"}}
    free = ask(sdk, **fields)
    never = ask(sdk, tool_choice="none", **fields)
    assert never.usage.prompt_tokens == free.usage.prompt_tokens
    assert never.usage.prompt_tokens_details.cached_tokens == free.usage.prompt_tokens - 1
    assert never.choices[0].message.tool_calls is None


@pytest.mark.parametrize("sampling", SAMPLING, ids=lambda sampling: "+".join(sampling))
def test_json_follows_its_schema(sdk: openai.OpenAI, sampling: dict[str, Any]) -> None:
    choice = ask(sdk, tools=openai.omit, response_format=JSON_SCHEMA, **sampling).choices[0]
    assert choice.finish_reason == "stop"
    check_answer(choice.message.content)


def test_a_json_object_is_one(http: httpx.Client) -> None:
    body = {"messages": HELLO, "response_format": {"type": "json_object"}, "max_tokens": 300, "top_k": 4}
    choices = http.post("/v1/chat/completions", json={**body, "n": 8, "seed": 1}).json()["choices"]
    whole = [choice["message"]["content"] for choice in choices if choice["finish_reason"] == "stop"]
    assert whole
    assert all(isinstance(json.loads(text), dict) for text in whole)


def test_with_tools_and_a_schema_a_reply_is_one_or_the_other(sdk: openai.OpenAI) -> None:
    for seed in range(4):
        message = ask(sdk, response_format=JSON_SCHEMA, seed=seed).choices[0].message
        if message.tool_calls:
            for call in message.tool_calls:
                check_call(call.function.name, call.function.arguments)
        else:
            check_answer(message.content)


def test_masks_are_counted_and_timed(sdk: openai.OpenAI, http: httpx.Client) -> None:
    before = metric(http, "mainstem_grammar_masks_total")
    usage = ask(sdk, tool_choice="required", seed=7).usage
    assert metric(http, "mainstem_grammar_masks_total") - before == usage.completion_tokens
    assert metric(http, "mainstem_grammar_mask_seconds_total") > 0


# -- replies that a test wrote ---------------------------------------------------------------------------------

REPLY = (
    "<think>\nhm\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "forecast", "arguments": {"city":"Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


def shape(text: str, **ending: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A scripted reply, whole and as a stream."""
    service: Any = SimpleNamespace(model_name=MODEL, caching=True)

    def new() -> _ChoicesWriter:
        ready = ReadyTurn(
            Prompt(None, ""),  # type: ignore[arg-type]  # not looked at
            SamplingParams(),
            lambda: ReplyParser(Hermes(), {"forecast", "now"}, reasoning=("<think>", "</think>")),
        )
        chat = ChatShape(service, ChatBody.model_validate({"messages": []}), ready)
        return _ChoicesWriter(chat, include_usage=True)

    async def run() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        generation: Any = ScriptedGeneration(text, **ending)
        whole = await new().whole(generation)
        events = [event async for event in new().events(generation)]
        return whole, [json.loads(event.removeprefix(b"data: ")) for event in events]

    return asyncio.run(run())


def test_thoughts_text_and_calls_have_their_own_fields() -> None:
    whole, chunks = shape(REPLY)
    choice = ChatCompletion.model_validate(whole, strict=True).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.model_extra == {"reasoning_content": "hm"}
    calls = whole["choices"][0]["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "forecast", "arguments": '{"city":"Rome"}'},
        {"name": "now", "arguments": "{}"},
    ]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Let me see."
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    streamed = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["index"] for call in streamed] == [0, 0, 1, 1]
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert chunks[-1]["usage"] == whole["usage"]


def test_a_malformed_call_is_content() -> None:
    whole, chunks = shape("<tool_call>{nothing}</tool_call>")
    assert whole["choices"][0]["message"]["content"] == "<tool_call>{nothing}</tool_call>"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert "tool_calls" not in whole["choices"][0]["message"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == "stop"


def test_a_reply_that_was_cut_after_a_call_says_length() -> None:
    whole, _ = shape('<tool_call>{"name": "now"}</tool_call>', finish_reason="length")
    assert whole["choices"][0]["finish_reason"] == "length"
    assert len(whole["choices"][0]["message"]["tool_calls"]) == 1
