"""OpenAI's Responses as its real client sees them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from mainstem.config import ServerConfig
from mainstem.params import SamplingParams
from mainstem.server import BackgroundServer
from mainstem.server.prompts import Prompt
from mainstem.server.response_objects import ResponseWriter
from mainstem.server.stored import ResponseStore, StoredResponse
from mainstem.server.turns import ReadyTurn
from mainstem.tokens import Message, ToolCall
from mainstem.tokens.responses import read_input
from mainstem.tools import ReplyParser
from mainstem.tools.syntax import Hermes
from tests.server.conftest import KEYLESS, MODEL
from tests.server.scripted import ScriptedGeneration
from tests.server.tools import RESPONSES_TOOLS, SCHEMA, check_answer, check_call

ROUTE = "/v1/responses"
ASKED = "What will the weather be in Rome?"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def ask(sdk: openai.OpenAI, **fields: Any) -> Any:
    return sdk.responses.create(**{"model": MODEL, "input": ASKED, "max_output_tokens": 12, **fields})


def test_a_reply_has_the_form_that_the_sdk_declares(http: httpx.Client) -> None:
    body = {"model": MODEL, "input": ASKED, "max_output_tokens": 4, "temperature": 0}
    response = Response.model_validate(http.post(ROUTE, json=body).json())
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.usage is not None
    assert response.usage.output_tokens == 4
    assert response.usage.input_tokens_details.cached_tokens >= 0


def test_a_conversation_is_continued_by_its_id(sdk: openai.OpenAI) -> None:
    first = ask(sdk, instructions="Be brief.", temperature=0, extra_body={"cache_salt": "chain"})
    second = ask(
        sdk,
        input="And tomorrow?",
        instructions="Be brief.",
        previous_response_id=first.id,
        temperature=0,
        extra_body={"cache_salt": "chain"},
    )
    said = [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And tomorrow?"},
    ]
    stateless = ask(sdk, input=said, instructions="Be brief.", temperature=0, extra_body={"cache_salt": "chain"})
    assert second.usage.input_tokens == stateless.usage.input_tokens
    assert stateless.usage.input_tokens_details.cached_tokens == second.usage.input_tokens - 1
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    assert second.previous_response_id == first.id


def test_instructions_are_not_carried_over(sdk: openai.OpenAI) -> None:
    first = ask(sdk, instructions="Be brief, please, and speak of nothing but the weather.", max_output_tokens=1)
    second = ask(sdk, input="And tomorrow?", previous_response_id=first.id)
    plain = ask(sdk, max_output_tokens=1)
    third = ask(sdk, input="And tomorrow?", previous_response_id=plain.id)
    instructions = first.usage.input_tokens - plain.usage.input_tokens
    assert instructions > 10
    # Only the replies differ: one token each, which may be a few when it comes back as text.
    assert abs(second.usage.input_tokens - third.usage.input_tokens) < 8


@pytest.mark.parametrize("metadata", [{str(i): "" for i in range(17)}, {"deep": {"a": "b"}}])
def test_metadata_that_every_reply_would_repeat_is_small(sdk: openai.OpenAI, metadata: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(sdk, metadata=metadata)
    assert refused.value.param == "metadata"


def test_an_unknown_response_is_named(sdk: openai.OpenAI) -> None:
    unstored = ask(sdk, store=False)
    for response_id in ("resp_0", unstored.id):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(sdk, previous_response_id=response_id)
        assert refused.value.code == "previous_response_not_found"
        assert refused.value.param == "previous_response_id"


def test_a_stored_response_can_be_had_and_forgotten(sdk: openai.OpenAI) -> None:
    response = ask(sdk)
    assert sdk.responses.retrieve(response.id).output_text == response.output_text
    sdk.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.delete(response.id)


def test_a_tenant_sees_its_own_responses_only(load_tiny: Any) -> None:
    with BackgroundServer(load_tiny(), ServerConfig(port=0, api_key="a,b", served_model_name=MODEL)) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="a", max_retries=0) as owner:
            response = ask(owner)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="b", max_retries=0) as other:
            with pytest.raises(openai.NotFoundError):
                other.responses.retrieve(response.id)
            with pytest.raises(openai.BadRequestError):
                ask(other, previous_response_id=response.id)


def test_no_more_responses_are_kept_than_the_setting_says(load_tiny: Any) -> None:
    with (
        BackgroundServer(load_tiny(), ServerConfig(port=0, stored_responses=2, served_model_name=MODEL)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYLESS, max_retries=0) as client,
    ):
        ids = [ask(client, max_output_tokens=1).id for _ in range(3)]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(ids[0])
        assert client.responses.retrieve(ids[1]).id == ids[1]


def test_a_store_is_bounded_by_size_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.server.stored.MAX_CHARACTERS", 10)
    store = ResponseStore(100)
    for name in "abc":
        store.add((), name, StoredResponse({"id": name}, (), 4))
    assert len(store) == 2
    assert store.get((), "a") is None
    assert store.drop((), "b")
    store.add((), "d", StoredResponse({"id": "d"}, (), 6))
    assert store.get((), "c") is not None


def test_a_tenant_with_many_responses_takes_none_of_another_ones() -> None:
    store = ResponseStore(4)
    response = StoredResponse(body={}, messages=(), size=1)
    store.add(("alice",), "hers", response)
    for number in range(20):
        store.add(("bob",), f"his {number}", response)
    assert store.get(("alice",), "hers") is response
    assert [number for number in range(20) if store.get(("bob",), f"his {number}")] == [17, 18, 19]
    assert store.drop(("alice",), "hers")
    assert not store.drop(("alice",), "hers")


def test_what_a_stored_response_repeats_counts_too(load_tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.server.stored.MAX_CHARACTERS", 50_000)
    with (
        BackgroundServer(load_tiny(), ServerConfig(port=0, served_model_name=MODEL)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYLESS, max_retries=0) as client,
    ):
        ids = [ask(client, max_output_tokens=1, metadata={"note": "x" * 20_000}).id for _ in range(3)]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(ids[0])
        assert client.responses.retrieve(ids[2]).id == ids[2]


def test_a_tool_that_must_be_called_is(sdk: openai.OpenAI) -> None:
    response = ask(sdk, tools=RESPONSES_TOOLS, tool_choice="required", max_output_tokens=400)
    assert response.status == "completed"
    assert response.output
    for item in response.output:
        assert item.type == "function_call"
        check_call(item.name, item.arguments)


def test_a_call_and_its_result_continue_the_conversation(sdk: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "name": "forecast"}
    first = ask(sdk, tools=RESPONSES_TOOLS, tool_choice=choice, max_output_tokens=400)
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sun."}
    second = ask(sdk, input=[result], tools=RESPONSES_TOOLS, previous_response_id=first.id)
    whole = [{"role": "user", "content": ASKED}, call.model_dump(exclude_none=True), result]
    stateless = ask(sdk, input=whole, tools=RESPONSES_TOOLS)
    assert stateless.usage.input_tokens == second.usage.input_tokens
    # The prompt, the call, and the end of the turn that follows it.
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens + first.usage.output_tokens - 1


def test_json_follows_its_schema(sdk: openai.OpenAI) -> None:
    text: Any = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}}
    response = ask(sdk, text=text, max_output_tokens=100)
    check_answer(response.output_text)


def test_logprobs_come_with_the_text(sdk: openai.OpenAI) -> None:
    include: Any = ["message.output_text.logprobs"]
    response = ask(sdk, include=include, top_logprobs=2, max_output_tokens=5, temperature=0)
    logprobs = response.output[0].content[0].logprobs
    assert len(logprobs) == response.usage.output_tokens
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs)


def test_a_stream_ends_with_the_whole_response(sdk: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_output_tokens": 10}
    whole = ask(sdk, **fields)
    events = list(ask(sdk, stream=True, **fields))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == whole.output_text
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert len(deltas) > 2


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": ...}, 400, "model"),
        ({"model": "other"}, 404, "model"),
        ({"input": ...}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": 5}, 400, "input"),
        ({"input": ["x"]}, 400, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, 400, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, 400, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input[0].content[0]"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, 400, "tools[0].name"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, 400, "tool_choice"),
        ({"tool_choice": 5}, 400, "tool_choice"),
        ({"background": True}, 400, "background"),
        ({"conversation": "c"}, 400, "conversation"),
        ({"prompt": {"id": "p"}}, 400, "prompt"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"truncation": "middle"}, 400, "truncation"),
        ({"text": {"format": {"type": "xml"}}}, 400, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "wish"}}}}, 400, "text.format.schema"),
        ({"top_logprobs": 21}, 400, "top_logprobs"),
        ({"temperature": 1000}, 400, "temperature"),
        ({"previous_response_id": 5}, 400, "previous_response_id"),
    ],
)
def test_what_is_wrong_is_named(http: httpx.Client, fields: dict[str, Any], status: int, param: str) -> None:
    body = {"model": MODEL, "input": ASKED, "max_output_tokens": 1, **fields}
    response = http.post(ROUTE, json={name: value for name, value in body.items() if value is not ...})
    assert response.status_code == status
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


# -- what items mean -------------------------------------------------------------------------------------------


def test_items_of_one_turn_become_one_message() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a":1}'}
    placed = read_input(
        [
            {"role": "user", "content": "hi"},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
            call,
            {**call, "call_id": "2"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
            {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "y"}]},
            {"type": "message", "role": "assistant", "content": "done"},
            {"type": "message", "role": "assistant", "content": "really"},
        ]
    )
    calls = (ToolCall("1", "f", '{"a":1}'), ToolCall("2", "f", '{"a":1}'))
    assert tuple(message for message, *_ in placed) == (
        Message(role="user", parts=("hi",)),
        Message(role="assistant", parts=("ok",), reasoning="hm", tool_calls=calls),
        Message(role="tool", parts=("x",), tool_call_id="1"),
        Message(role="tool", parts=("y",), tool_call_id="2"),
        Message(role="assistant", parts=("done",)),
        Message(role="assistant", parts=("really",)),
    )


# -- replies that a test wrote ---------------------------------------------------------------------------------

REPLY = (
    "<think>\nhm\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "forecast", "arguments": {"city":"Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now"}\n</tool_call>'
)
ECHO = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "instructions": None, "metadata": {}}


def write(text: str) -> tuple[dict[str, Any], list[Any], list[Message]]:
    """A scripted reply, whole and as the SDK's events, and what was kept of both."""
    service: Any = SimpleNamespace(model_name=MODEL, caching=True)
    kept: list[Message] = []

    def writer() -> ResponseWriter:
        ready = ReadyTurn(
            Prompt(None, ""),  # type: ignore[arg-type]  # not looked at
            SamplingParams(),
            lambda: ReplyParser(Hermes(), {"forecast", "now"}, reasoning=("<think>", "</think>")),
        )
        return ResponseWriter(service, ECHO, ready, top_logprobs=None, keep=lambda _, message: kept.append(message))

    async def run() -> tuple[dict[str, Any], list[Any]]:
        generation: Any = ScriptedGeneration(text)
        whole = await writer().whole(generation)
        events = []
        async for data in writer().events(generation):
            name, _, content = data.decode().partition("\n")
            event = EVENT.validate_python(json.loads(content.removeprefix("data: ")))
            assert name == f"event: {event.type}"
            events.append(event)
        return whole, events

    return *asyncio.run(run()), kept


def test_thoughts_text_and_calls_are_items_in_their_order() -> None:
    whole, events, kept = write(REPLY)
    response = Response.model_validate(whole)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output_text == "Let me see."
    assert response.output[2].arguments == '{"city":"Rome"}'  # type: ignore[union-attr]
    assert response.status == "completed"
    final = events[-1].response
    assert [item.type for item in final.output] == [item.type for item in response.output]
    for message in kept:
        assert (message.text, message.reasoning) == ("Let me see.", "hm")
        assert [call.arguments for call in message.tool_calls] == ['{"city":"Rome"}', "{}"]


def test_every_item_is_added_built_and_done_before_the_next() -> None:
    _, events, _ = write(REPLY)
    current: str | None = None
    built: dict[str, str] = {}
    for event in events[2:-1]:
        if event.type == "response.output_item.added":
            assert current is None
            assert event.output_index == len(built)
            current = event.item.id
            built[current] = ""
        elif event.type == "response.output_item.done":
            assert event.item.id == current
            current = None
        else:
            assert event.item_id == current
            if event.type.endswith(".delta"):
                built[event.item_id] += event.delta
    assert current is None
    assert list(built.values()) == ["hm", "Let me see.", '{"city":"Rome"}', "{}"]
