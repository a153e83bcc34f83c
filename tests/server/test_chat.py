"""Chat completions as the real OpenAI client sees them."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.server.conftest import MODEL, assert_pool_at_rest

HELLO: list[Any] = [{"role": "user", "content": "the river runs to the sea"}]
# The tiny model would end its turn at random.
LONG = {"ignore_eos": True}


def test_reply_has_every_field_of_openais_schema(http: httpx.Client) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 4, **LONG}
    reply = http.post("/v1/chat/completions", json=body).json()
    ChatCompletion.model_validate(reply, strict=True)
    assert reply["object"] == "chat.completion"
    assert reply["model"] == MODEL
    choice = reply["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["refusal"] is None
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 4
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + 4


def test_usage_reports_cached_tokens_even_when_there_are_none(sdk: openai.OpenAI) -> None:
    def usage(text: str) -> Any:
        messages: Any = [{"role": "user", "content": text}]
        return sdk.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=2, extra_body={"cache_salt": "a"}
        ).usage

    cold, warm = usage("a new question"), usage("a new question")
    assert cold.prompt_tokens_details.cached_tokens == 0
    assert cold.prompt_tokens_details.cache_write_tokens == cold.prompt_tokens
    assert warm.prompt_tokens_details.cached_tokens == warm.prompt_tokens - 1
    assert cold.completion_tokens_details.reasoning_tokens == 0


def test_stream_gives_the_same_text_as_a_whole_reply(sdk: openai.OpenAI) -> None:
    kwargs: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 24, "temperature": 0, "extra_body": LONG}
    whole = sdk.chat.completions.create(**kwargs).choices[0]
    chunks = list(sdk.chat.completions.create(stream=True, **kwargs))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_sends_tokens_one_by_one(sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20, stream=True, extra_body=LONG)
    with_text = [chunk for chunk in stream if chunk.choices[0].delta.content]
    assert len(with_text) > 5


def test_usage_chunk_comes_last_and_only_on_request(sdk: openai.OpenAI) -> None:
    kwargs: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 3, "stream": True, "extra_body": LONG}
    plain = list(sdk.chat.completions.create(**kwargs))
    assert all(chunk.usage is None and "usage" not in chunk.model_fields_set for chunk in plain)
    *chunks, last = sdk.chat.completions.create(stream_options={"include_usage": True}, **kwargs)
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 3
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == last.usage.prompt_tokens - 1


def test_stream_is_framed_as_server_sent_events(http: httpx.Client) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 3, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        text = response.read().decode()
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert text.endswith("data: [DONE]\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in text.removesuffix("\n\n").split("\n\n"))


def test_n_replies_are_counted_as_one_prompt(sdk: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "three different answers, please"}]
    extra = {**LONG, "cache_salt": "three"}
    kwargs: Any = {"model": MODEL, "messages": messages, "n": 3, "max_tokens": 8, "seed": 5, "extra_body": extra}
    reply = sdk.chat.completions.create(**kwargs)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in reply.choices}) == 3
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 24
    assert reply.usage.prompt_tokens < 40
    details = reply.usage.prompt_tokens_details
    assert details is not None
    assert details.cached_tokens == 0


def test_streamed_choices_are_interleaved_and_equal_the_whole_ones(sdk: openai.OpenAI) -> None:
    kwargs: Any = {"model": MODEL, "messages": HELLO, "n": 2, "max_tokens": 12, "seed": 9, "extra_body": LONG}
    whole = [choice.message.content for choice in sdk.chat.completions.create(**kwargs).choices]
    texts, order = ["", ""], []
    for chunk in sdk.chat.completions.create(stream=True, **kwargs):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        order.append(choice.index)
    assert texts == whole
    assert sorted(order) != order


def test_seeded_replies_repeat(sdk: openai.OpenAI) -> None:
    def text(seed: int) -> str | None:
        reply = sdk.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16, seed=seed, extra_body=LONG)
        return reply.choices[0].message.content

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_stop_string_ends_the_text_before_it(sdk: openai.OpenAI) -> None:
    kwargs: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 24, "temperature": 0, "extra_body": LONG}
    full = sdk.chat.completions.create(**kwargs).choices[0].message.content or ""
    stop = full[10:13]
    for given in (stop, ["never said", stop]):
        choice = sdk.chat.completions.create(stop=given, **kwargs).choices[0]
        assert choice.message.content == full[: full.index(stop)]
        assert choice.finish_reason == "stop"


def test_stop_token_ends_the_reply(http: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 12, "temperature": 0, "return_token_ids": True, **LONG}
    ids = http.post("/v1/chat/completions", json=body).json()["choices"][0]["token_ids"]
    choice = http.post("/v1/chat/completions", json={**body, "stop_token_ids": [ids[5]]}).json()["choices"][0]
    assert choice["token_ids"] == ids[: ids.index(ids[5]) + 1]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == ids[5]


def test_logprobs_have_openais_shape(sdk: openai.OpenAI) -> None:
    choice = sdk.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=5, logprobs=True, top_logprobs=3, temperature=0, extra_body=LONG
    ).choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    assert len(content) == 5
    for position in content:
        assert len(position.top_logprobs) == 3
        assert position.logprob == position.top_logprobs[0].logprob <= 0
        assert position.bytes is not None
        assert bytes(position.bytes).decode("utf-8", "replace") == position.token
    said = b"".join(bytes(position.bytes or []) for position in content)
    assert said.decode("utf-8", "replace") == choice.message.content


def test_streamed_logprobs_equal_the_whole_ones(sdk: openai.OpenAI) -> None:
    kwargs: Any = {
        "model": MODEL,
        "messages": HELLO,
        "max_tokens": 5,
        "logprobs": True,
        "temperature": 0,
        "extra_body": LONG,
    }
    whole = sdk.chat.completions.create(**kwargs).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    streamed = [
        entry
        for chunk in sdk.chat.completions.create(stream=True, **kwargs)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in whole.content]
    for one, other in zip(streamed, whole.content, strict=True):
        assert math.isclose(one.logprob, other.logprob, abs_tol=1e-3)
        assert one.top_logprobs == []


@pytest.mark.parametrize(
    "content",
    ["hello", [{"type": "text", "text": "hello"}], [{"type": "input_text", "text": "hello"}]],
    ids=["string", "part", "input part"],
)
def test_forms_of_the_same_content_make_the_same_prompt(http: httpx.Client, content: Any) -> None:
    plain = http.post("/tokenize", json={"messages": [{"role": "user", "content": "hello"}]}).json()
    assert http.post("/tokenize", json={"messages": [{"role": "user", "content": content}]}).json() == plain


def test_assistant_message_without_content_is_accepted(sdk: openai.OpenAI) -> None:
    messages: Any = [*HELLO, {"role": "assistant", "content": None}, {"role": "user", "content": "go on"}]
    assert sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=2).choices


def test_fields_that_change_nothing_are_accepted(http: httpx.Client) -> None:
    body = {
        "messages": HELLO,
        "max_completion_tokens": 2,
        "user": "someone",
        "metadata": {"a": "b"},
        "store": False,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "service_tier": "auto",
        "something_new": [1, {"a": None}],
        "temperature": None,
        "stop": None,
        "n": None,
        "stream": None,
        "stream_options": None,
        "tools": None,
        "seed": None,
        **LONG,
    }
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 2


def test_tools_reach_the_prompt(http: httpx.Client) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    without = http.post("/tokenize", json={"messages": HELLO}).json()
    tokens = http.post("/tokenize", json={"messages": HELLO, "tools": [tool]}).json()["tokens"]
    assert without["count"] < len(tokens)
    assert "look_up" in http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    reply = http.post("/v1/chat/completions", json={"messages": HELLO, "tools": [tool], "max_tokens": 1}).json()
    assert reply["usage"]["prompt_tokens"] == len(tokens)


def test_concurrent_clients_get_what_they_would_get_alone(sdk: openai.OpenAI, http: httpx.Client) -> None:
    def text(question: int) -> str | None:
        messages: Any = [{"role": "user", "content": f"question {question} about the sea"}]
        reply = sdk.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=16,
            seed=100 + question,
            extra_body={**LONG, "cache_salt": "together"},
        )
        return reply.choices[0].message.content

    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(text, range(24)))
    assert together == [text(question) for question in range(24)]
    assert len(set(together)) == 24
    assert_pool_at_rest(http)


def test_a_reply_without_a_limit_ends_at_the_default_one(tiny_model: Path) -> None:
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="1MiB"))
    with BackgroundServer(engine, ServerConfig(port=0, default_max_tokens=7)) as server:
        body = {"messages": [{"role": "user", "content": "Go on."}], "ignore_eos": True}
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
        longer = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "max_tokens": 9}).json()
    assert reply["usage"]["completion_tokens"] == 7
    assert reply["choices"][0]["finish_reason"] == "length"
    assert longer["usage"]["completion_tokens"] == 9
