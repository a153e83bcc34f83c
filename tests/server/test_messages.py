"""Anthropic's Messages as its real client sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from mainstem.config import ServerConfig
from mainstem.params import SamplingParams
from mainstem.server import BackgroundServer
from mainstem.server.messages import MessagesBody, MessageWriter
from mainstem.server.prompts import Prompt
from mainstem.server.turns import ReadyTurn
from mainstem.tools import ReplyParser
from mainstem.tools.syntax import Hermes
from tests.server.conftest import KEYLESS, MODEL
from tests.server.scripted import ScriptedGeneration
from tests.server.tools import CHAT_TOOLS, MESSAGES_TOOLS, SCHEMA, check_answer, check_call

ROUTE = "/v1/messages"
HELLO: list[Any] = [{"role": "user", "content": "What will the weather be in Rome?"}]
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@pytest.fixture
def claude(server: BackgroundServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEYLESS, max_retries=0) as client:
        yield client


def ask(claude: anthropic.Anthropic, **fields: Any) -> Any:
    return claude.messages.create(**{"model": MODEL, "messages": HELLO, "max_tokens": 12, **fields})


def test_a_reply_has_the_form_that_the_sdk_declares(http: httpx.Client) -> None:
    response = http.post(ROUTE, json={"model": MODEL, "messages": HELLO, "max_tokens": 4, "temperature": 0})
    message = Message.model_validate(response.json(), strict=True)
    assert message.role == "assistant"
    assert message.content[0].type == "text"
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 4
    assert response.headers["request-id"] == response.headers["x-request-id"]


def test_usage_adds_up_and_says_what_was_cached(claude: anthropic.Anthropic) -> None:
    messages = [{"role": "user", "content": "a question of its own, for counting"}]
    cold, warm = (ask(claude, messages=messages, max_tokens=1).usage for _ in range(2))
    total = claude.messages.count_tokens(model=MODEL, messages=messages).input_tokens  # type: ignore[arg-type]
    for usage in (cold, warm):
        counted = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
        assert counted == total
    assert cold.cache_read_input_tokens < 8  # the beginning of every prompt
    assert warm.cache_read_input_tokens == total - 1
    assert warm.cache_creation_input_tokens == 1


def test_the_same_conversation_has_the_same_prompt_in_both_apis(
    claude: anthropic.Anthropic, sdk: openai.OpenAI
) -> None:
    chat: list[Any] = [
        {"role": "system", "content": "Be brief."},
        *HELLO,
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "forecast", "arguments": '{"city": "Rome"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "Sun."},
        {"role": "user", "content": "Thanks."},
    ]
    marker = {"cache_control": {"type": "ephemeral"}}
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": HELLO[0]["content"], **marker}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "a", "name": "forecast", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "Sun."}], **marker},
                {"type": "text", "text": "Thanks."},
            ],
        },
    ]
    system: Any = [{"type": "text", "text": "Be brief.", **marker}]
    tools: Any = [{**MESSAGES_TOOLS[0], **marker}]
    first = sdk.chat.completions.create(
        model=MODEL, messages=chat, tools=CHAT_TOOLS[:1], max_tokens=1, extra_body={"cache_salt": "both"}
    ).usage
    second = ask(
        claude, system=system, messages=messages, tools=tools, max_tokens=1, extra_body={"cache_salt": "both"}
    ).usage
    assert first is not None
    assert second.cache_read_input_tokens == first.prompt_tokens - 1
    assert second.cache_creation_input_tokens == 1


def test_a_tool_that_must_be_called_is(claude: anthropic.Anthropic) -> None:
    reply = ask(claude, tools=MESSAGES_TOOLS, tool_choice={"type": "any"}, max_tokens=400)
    assert reply.stop_reason == "tool_use"
    assert reply.content
    for block in reply.content:
        assert block.type == "tool_use"
        assert block.id.startswith("toolu_")
        check_call(block.name, block.input)


def test_a_named_tool_is_called_once(claude: anthropic.Anthropic) -> None:
    choice = {"type": "tool", "name": "forecast"}
    (block,) = ask(claude, tools=MESSAGES_TOOLS, tool_choice=choice, max_tokens=400).content
    assert block.name == "forecast"


def test_json_follows_its_schema(claude: anthropic.Anthropic) -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    check_answer(ask(claude, output_config=config, max_tokens=100).content[0].text)


def test_a_stream_is_a_whole_reply_in_pieces(claude: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"tools": MESSAGES_TOOLS, "max_tokens": 400, "extra_body": {"seed": 3}}
    whole = ask(claude, tool_choice={"type": "any"}, **fields)
    with claude.messages.stream(model=MODEL, messages=HELLO, tool_choice={"type": "any"}, **fields) as stream:
        final = stream.get_final_message()
    assert [(b.type, b.name, b.input) for b in final.content] == [(b.type, b.name, b.input) for b in whole.content]  # type: ignore[union-attr]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_stop_sequence_is_named(claude: anthropic.Anthropic) -> None:
    text = ask(claude, extra_body={"temperature": 0}, max_tokens=30).content[0].text
    reply = ask(claude, extra_body={"temperature": 0}, max_tokens=30, stop_sequences=[text[5:8]])
    assert reply.stop_reason == "stop_sequence"
    assert reply.stop_sequence == text[5:8]
    assert "".join(block.text for block in reply.content) == text[: text.index(text[5:8])]


def test_a_reply_goes_on_with_what_was_put_into_its_mouth(claude: anthropic.Anthropic, http: httpx.Client) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "The weather will"}]
    usage = ask(claude, messages=begun, max_tokens=1).usage
    prompt = "<|im_start|>user\n" + HELLO[0]["content"] + "<|im_end|>\n<|im_start|>assistant\nThe weather will"
    count = http.post("/tokenize", json={"prompt": prompt, "add_special_tokens": False}).json()["count"]
    assert usage.cache_read_input_tokens + usage.cache_creation_input_tokens == count


@pytest.mark.parametrize(
    ("fields", "status", "kind", "named"),
    [
        ({"max_tokens": ...}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": -1}, 400, "invalid_request_error", "max_tokens must be at least 1, or 0 to compute the prompt"),
        (
            {"diagnostics": "x"},
            400,
            "invalid_request_error",
            "'diagnostics' must be an object, but it is the string 'x'",
        ),
        (
            {"diagnostics": {"previous_message_id": 5}},
            400,
            "invalid_request_error",
            "'diagnostics.previous_message_id' must be a string, but it is 5",
        ),
        ({"messages": [{"role": None, "content": "x"}]}, 400, "invalid_request_error", "got null"),
        ({"model": ...}, 400, "invalid_request_error", "model"),
        ({"model": "other"}, 404, "not_found_error", "other"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request_error", "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "invalid_request_error", "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0]",
        ),
        ({"system": 5}, 400, "invalid_request_error", "system"),
        ({"tools": [{"input_schema": {}}]}, 400, "invalid_request_error", "tools[0].name"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, 400, "invalid_request_error", "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
        ({"tool_choice": "any"}, 400, "invalid_request_error", "tool_choice"),
        ({"mcp_servers": [{}]}, 400, "invalid_request_error", "mcp_servers"),
        ({"output_config": {"format": {"type": "xml"}}}, 400, "invalid_request_error", "output_config.format"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "wish"}}}},
            400,
            "invalid_request_error",
            "output_config.format.schema",
        ),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop"),
        ({"temperature": "hot"}, 400, "invalid_request_error", "temperature"),
        ({"messages": [{"role": "user", "content": "x " * 5000}]}, 400, "invalid_request_error", "tokens"),
    ],
)
def test_what_is_wrong_is_said_in_anthropics_form(
    http: httpx.Client, fields: dict[str, Any], status: int, kind: str, named: str
) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 1, **fields}
    response = http.post(ROUTE, json={name: value for name, value in body.items() if value is not ...})
    assert response.status_code == status
    error = response.json()
    assert set(error) == {"type", "error", "request_id"}
    assert error["type"] == "error"
    assert error["error"]["type"] == kind
    assert named in error["error"]["message"]
    assert error["request_id"] == response.headers["request-id"]


@pytest.mark.parametrize("send", [{"content": b"{"}, {"content": b"{}", "headers": {"content-type": "text/plain"}}])
def test_a_body_that_cannot_be_read_is_refused_in_anthropics_form(http: httpx.Client, send: Any) -> None:
    headers = {"content-type": "application/json", **send.get("headers", {})}
    error = http.post(ROUTE, content=send["content"], headers=headers).json()
    assert error["error"]["type"] == "invalid_request_error"
    assert http.get(ROUTE).json()["type"] == "error"


def test_keys_come_in_anthropics_header(load_tiny: Any) -> None:
    with BackgroundServer(load_tiny(), ServerConfig(port=0, api_key="secret", served_model_name=MODEL)) as server:
        with anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0) as client:
            assert ask(client).type == "message"
        with (
            anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError) as refused,
        ):
            ask(client)
    assert refused.value.type == "authentication_error"


# -- replies that a test wrote ---------------------------------------------------------------------------------

REPLY = (
    "<think>\nhm\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "forecast", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now"}\n</tool_call>'
)


def write(text: str, **ending: Any) -> tuple[dict[str, Any], list[Any]]:
    """A scripted reply, whole and as the SDK's events."""
    service: Any = SimpleNamespace(model_name=MODEL, caching=True)
    body = MessagesBody.model_validate({"model": MODEL, "messages": [], "max_tokens": 50})

    def writer() -> MessageWriter:
        ready = ReadyTurn(
            Prompt(None, ""),  # type: ignore[arg-type]  # not looked at
            SamplingParams(),
            lambda: ReplyParser(Hermes(), {"forecast", "now"}, reasoning=("<think>", "</think>")),
        )
        return MessageWriter(service, body, ready)

    async def run() -> tuple[dict[str, Any], list[Any]]:
        generation: Any = ScriptedGeneration(text, **ending)
        whole = await writer().whole(generation)
        events = []
        async for data in writer().events(generation):
            name, _, content = data.decode().partition("\n")
            event = EVENT.validate_python(json.loads(content.removeprefix("data: ")), strict=True)
            assert name == f"event: {event.type}"
            events.append(event)
        return whole, events

    return asyncio.run(run())


def test_thoughts_text_and_calls_are_blocks_in_their_order() -> None:
    whole, _ = write(REPLY)
    message = Message.model_validate(whole, strict=True)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[1].text == "Let me see."  # type: ignore[union-attr]
    assert message.content[2].input == {"city": "Rome"}  # type: ignore[union-attr]
    assert message.stop_reason == "tool_use"


def test_events_come_in_the_order_that_clients_expect() -> None:
    whole, events = write(REPLY)
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert events[0].message.usage.cache_read_input_tokens == 4
    assert events[0].message.stop_reason is None
    assert events[-2].delta.stop_reason == "tool_use"
    assert events[-2].usage.output_tokens == whole["usage"]["output_tokens"]
    open_block: int | None = None
    blocks: list[list[Any]] = []
    for event in events[1:-2]:
        if event.type == "content_block_start":
            assert open_block is None
            assert event.index == len(blocks)
            open_block = event.index
            blocks.append([event.content_block.type])
        elif event.type == "content_block_delta":
            assert event.index == open_block
            blocks[-1].append(event.delta)
        else:
            assert event.type == "content_block_stop"
            assert event.index == open_block
            open_block = None
    assert open_block is None
    assert [block[0] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert blocks[0][-1].type == "signature_delta"
    assert "".join(delta.text for delta in blocks[1][1:]) == "Let me see."
    assert json.loads("".join(delta.partial_json for delta in blocks[2][1:])) == {"city": "Rome"}


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ({"finish_reason": "stop"}, "end_turn"),
        ({"finish_reason": "length"}, "model_context_window_exceeded"),
        ({"finish_reason": "stop", "stop_reason": "END"}, "stop_sequence"),
    ],
)
def test_how_a_reply_ends_is_said_in_anthropics_words(ending: dict[str, Any], reason: str) -> None:
    whole, events = write("yes", **ending)
    assert whole["stop_reason"] == events[-2].delta.stop_reason == reason
    assert whole["stop_sequence"] == ending.get("stop_reason")


def test_an_empty_reply_has_no_blocks() -> None:
    whole, events = write("")
    assert whole["content"] == []
    assert [event.type for event in events] == ["message_start", "message_delta", "message_stop"]


def test_a_breakpoint_on_a_message_is_refused_as_the_hosted_api_does(http: httpx.Client) -> None:
    message = {"role": "user", "content": "Hello.", "cache_control": {"type": "ephemeral"}}
    body = {"model": "tiny", "max_tokens": 4, "messages": [message]}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = http.post(path, json=body)
        assert response.status_code == 400
        assert "messages[0].cache_control" in response.json()["error"]["message"]
