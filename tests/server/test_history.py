"""Over HTTP, a reply that comes back costs nothing: whatever the API, and however the client writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from mainstem import LLM, SamplingParams
from mainstem.server import BackgroundServer
from tests.server.conftest import KEYLESS, MODEL, wait_until
from tests.server.tools import CHAT_TOOLS, MESSAGES_TOOLS, RESPONSES_TOOLS

RENDER = "/v1/chat/completions/render"
GO_ON = {"role": "user", "content": "Go on."}


@pytest.fixture
def claude(server: BackgroundServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEYLESS, max_retries=0) as client:
        yield client


def hello(name: str) -> dict[str, Any]:
    """A first message that no other test sends."""
    return {"role": "user", "content": f"Hello from {name}."}


def hit_at_least(usage: Any, before: Any) -> None:
    """The prompt and the reply before were cached, but for the last token, which has no KV."""
    assert usage.prompt_tokens_details.cached_tokens >= before.prompt_tokens + before.completion_tokens - 1


@pytest.mark.parametrize("stream", [False, True])
def test_each_turn_of_a_chat_hits_all_that_was_said(sdk: openai.OpenAI, stream: bool) -> None:
    messages: list[Any] = [hello(f"chat {stream}")]
    before = None
    for turn in range(6):
        kwargs: Any = {"model": MODEL, "messages": messages, "max_tokens": 30, "temperature": 1.0, "seed": turn}
        if stream:
            chunks = list(sdk.chat.completions.create(stream=True, stream_options={"include_usage": True}, **kwargs))
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            usage = chunks[-1].usage
        else:
            whole = sdk.chat.completions.create(**kwargs)
            text, usage = whole.choices[0].message.content or "", whole.usage
        if before is not None:
            hit_at_least(usage, before)
        before = usage
        messages += [{"role": "assistant", "content": text}, GO_ON]


def test_what_is_rendered_has_the_ids_of_the_reply(http: httpx.Client) -> None:
    messages: list[Any] = [hello("render")]
    asked = http.post(RENDER, json={"messages": messages}).json()
    body = {"messages": messages, "max_tokens": 30, "temperature": 1.0, "seed": 3, "return_token_ids": True}
    choice = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    messages += [{"role": "assistant", "content": choice["message"]["content"]}, GO_ON]
    shown = http.post(RENDER, json={"messages": messages}).json()
    said = asked["token_ids"] + choice["token_ids"]
    assert shown["token_ids"][: len(said)] == said
    assert shown["token_ids"][: len(said)] != http.post("/tokenize", json={"prompt": shown["prompt"]}).json()["tokens"]
    (reply,) = [span for span in shown["spans"] if span["origin"] == "generated"]
    assert reply["tokens"] == [len(asked["token_ids"]), len(said)]
    assert choice["message"]["content"] in shown["prompt"][slice(*reply["characters"])]
    assert http.post("/detokenize", json={"tokens": shown["token_ids"]}).json()["prompt"] == shown["prompt"]


def rewritten(call: Any) -> dict[str, Any]:
    """A call as a client sends it back that keeps it as an object, and writes keys in its own order."""
    arguments = json.dumps(dict(reversed(json.loads(call.function.arguments).items())), separators=(",", ":"))
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def test_calls_that_the_client_writes_otherwise_keep_their_tokens(sdk: openai.OpenAI) -> None:
    rewrote = 0
    named: Any = {"type": "function", "function": {"name": "forecast"}}
    for seed in range(3):
        messages: list[Any] = [hello(f"calls {seed}")]
        ask: Any = {"model": MODEL, "tools": CHAT_TOOLS, "max_tokens": 400, "seed": seed, "temperature": 1.0}
        first = sdk.chat.completions.create(messages=messages, tool_choice=named, **ask)
        calls: Any = first.choices[0].message.tool_calls
        back = [rewritten(call) for call in calls]
        rewrote += sum(a["function"]["arguments"] != b.function.arguments for a, b in zip(back, calls, strict=True))
        answers = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in calls]
        messages += [{"role": "assistant", "content": None, "tool_calls": back}, *answers]
        hit_at_least(sdk.chat.completions.create(messages=messages, **{**ask, "max_tokens": 4}).usage, first.usage)
    assert rewrote


def test_each_of_several_replies_can_be_continued(sdk: openai.OpenAI) -> None:
    messages: list[Any] = [hello("several")]
    whole = sdk.chat.completions.create(model=MODEL, messages=messages, n=3, max_tokens=30, temperature=1.0, seed=5)
    assert whole.usage is not None
    for choice in whole.choices:
        said = {"role": "assistant", "content": choice.message.content}
        usage = sdk.chat.completions.create(model=MODEL, messages=[*messages, said, GO_ON], max_tokens=2).usage  # type: ignore[list-item]
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        # All three have 30 tokens, or ended before; the first ones alone are more than the prompt.
        assert (usage.prompt_tokens_details.cached_tokens or 0) > whole.usage.prompt_tokens + 5


def test_a_reply_that_the_client_gave_up_keeps_its_tokens(sdk: openai.OpenAI, http: httpx.Client) -> None:
    messages: list[Any] = [hello("given up")]
    kwargs: Any = {"model": MODEL, "messages": messages, "max_tokens": 1500, "temperature": 1.0, "seed": 8}
    stream = sdk.chat.completions.create(
        stream=True, extra_body={"return_token_ids": True, "ignore_eos": True}, **kwargs
    )
    text = ""
    ids: list[int] = []
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        ids += getattr(chunk.choices[0], "token_ids", None) or []
        if len(ids) >= 40:
            break
    stream.close()
    messages += [{"role": "assistant", "content": text}, GO_ON]
    prompt = http.post(RENDER, json={"messages": messages[:1]}).json()["token_ids"]

    def kept() -> int:
        shown = http.post(RENDER, json={"messages": messages}).json()["token_ids"]
        return sum(a == b for a, b in zip(shown, prompt + ids, strict=False))

    # Text may lag behind tokens by a character in pieces.
    wait_until(lambda: kept() >= len(prompt) + len(ids) - 4)


def test_a_stop_string_within_a_token_leaves_the_tokens_before_it(sdk: openai.OpenAI) -> None:
    messages: list[Any] = [hello("stop")]
    ask: Any = {"model": MODEL, "max_tokens": 60, "temperature": 1.0, "seed": 4}
    whole = sdk.chat.completions.create(messages=messages, **ask).choices[0].message.content or ""
    stop = whole[len(whole) // 2 :][:3]
    first = sdk.chat.completions.create(messages=messages, stop=[stop], **ask)
    assert first.choices[0].finish_reason == "stop"
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, GO_ON]
    usage: Any = sdk.chat.completions.create(messages=messages, **ask).usage
    before: Any = first.usage
    # What the stop string took with it: at most three characters, of up to four bytes each.
    assert usage.prompt_tokens_details.cached_tokens >= before.prompt_tokens + before.completion_tokens - 1 - 12


@pytest.mark.parametrize("remembered", [False, True])
def test_responses_hit_all_that_was_said(sdk: openai.OpenAI, remembered: bool) -> None:
    ask: Any = {"model": MODEL, "tools": RESPONSES_TOOLS, "max_output_tokens": 400, "temperature": 1.0}
    one: Any = {"tool_choice": "required", "parallel_tool_calls": False, "extra_body": {"seed": 2}}
    items: list[Any] = [hello(f"responses {remembered}")]
    first: Any = sdk.responses.create(input=items, **one, **ask)
    calls = [item for item in first.output if item.type == "function_call"]
    assert calls
    answers = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    if remembered:
        second = sdk.responses.create(input=answers, previous_response_id=first.id, **ask)  # type: ignore[arg-type]
    else:
        back = [
            {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": spaced(call.arguments)}
            for call in calls
        ]
        again: Any = [*items, *back, *answers]
        second = sdk.responses.create(input=again, **ask)
    details: Any = second.usage
    assert details.input_tokens_details.cached_tokens >= first.usage.input_tokens + first.usage.output_tokens - 1


def spaced(arguments: str) -> str:
    return json.dumps(json.loads(arguments), indent=1)


ANY: Any = {"type": "any", "disable_parallel_tool_use": True}


def test_messages_hit_all_that_was_said(claude: anthropic.Anthropic) -> None:
    ask: Any = {"model": MODEL, "tools": MESSAGES_TOOLS, "max_tokens": 400}
    messages: list[Any] = [hello("messages")]
    first: Any = claude.messages.create(messages=messages, tool_choice=ANY, extra_body={"seed": 2}, **ask)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
        for block in first.content
        if block.type == "tool_use"
    ]
    assert results
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second: Any = claude.messages.create(messages=messages, **ask)
    before = first.usage
    asked = before.input_tokens + before.cache_read_input_tokens + before.cache_creation_input_tokens
    assert second.usage.cache_read_input_tokens >= asked + before.output_tokens - 1
    counted = claude.messages.count_tokens(model=MODEL, messages=messages, tools=MESSAGES_TOOLS)
    now = second.usage
    assert counted.input_tokens == now.input_tokens + now.cache_read_input_tokens + now.cache_creation_input_tokens


def test_what_one_salt_generated_is_not_used_for_another(http: httpx.Client) -> None:
    messages: list[Any] = [hello("salts")]
    body = {"messages": messages, "max_tokens": 30, "temperature": 1.0, "seed": 3, "cache_salt": "mine"}
    text = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": text}, GO_ON]
    for salt, expected in [
        ({"cache_salt": "mine"}, {"known", "generated", "new"}),
        ({"cache_salt": "theirs"}, {"new"}),
        ({}, {"new"}),
    ]:
        shown = http.post(RENDER, json={"messages": messages, **salt}).json()
        assert {span["origin"] for span in shown["spans"]} == expected


def test_chats_in_process_hit_all_that_was_said(tiny_model: Any) -> None:
    with LLM(str(tiny_model), kv_memory="4MiB", device="cpu") as llm:
        messages: list[Any] = [hello("process")]
        prompt, reply = 0, 1
        for seed in range(4):
            generation = llm.chat(messages, SamplingParams(max_tokens=30, temperature=1.0, seed=seed))
            assert generation.cached_tokens >= prompt + reply - 1
            prompt, reply = len(generation.prompt_token_ids), len(generation.token_ids)
            messages += [{"role": "assistant", "content": generation.text}, GO_ON]
        assert llm.history.stats().known_tokens > 0


@pytest.mark.parametrize("more", ["", "\n\n", "\n    ", " and"])
def test_a_reply_that_is_to_be_continued_keeps_each_of_its_characters(claude: anthropic.Anthropic, more: str) -> None:
    ask: Any = {"model": MODEL, "max_tokens": 12, "extra_body": {"temperature": 0}}
    question: Any = hello("prefill")
    first = claude.messages.create(messages=[question], **ask).content[0].text
    prefill: Any = {"role": "assistant", "content": first + more}
    counted = claude.messages.count_tokens(model=MODEL, messages=[question, prefill]).input_tokens
    plain: Any = {"role": "assistant", "content": first}
    without = claude.messages.count_tokens(model=MODEL, messages=[question, plain]).input_tokens
    assert (counted > without) == bool(more)
    assert claude.messages.create(messages=[question, prefill], **ask).content


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_body_that_goes_on_gives_the_reply_that_it_gives_alone(http: httpx.Client, path: str) -> None:
    field = "input" if path.endswith("responses") else "messages"
    limit = "max_output_tokens" if path.endswith("responses") else "max_tokens"
    said: list[Any] = [{**hello(f"bodies {path}"), "unread by the model": "long " * 1000}]
    for turn in range(3):
        body = {"model": MODEL, field: said, limit: 8, "temperature": 0}
        replies = []
        for reset in (False, True):
            if reset:
                http.post("/cache/reset").raise_for_status()
            answer = http.post(path, json=body).raise_for_status().json()
            replies.append(answer.get("choices") or answer.get("output") or answer.get("content"))
        warm, cold = (json.dumps(reply) for reply in replies)
        assert text_of(warm) == text_of(cold) != []
        said += [{"role": "assistant", "content": f"reply {turn}"}, GO_ON]


def text_of(reply: str) -> list[str]:
    return re.findall(r'"(?:text|content)": "([^"]*)"', reply)
