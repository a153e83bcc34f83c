"""What a client sees of the prefix cache: usage, header, namespaces, reset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.engine.support import kv_memory_for, random_tokens
from tests.server.conftest import MODEL, assert_pool_at_rest, metric, wait_until


def cached(http: httpx.Client, prompt: list[int], **fields: Any) -> int:
    """How many tokens of the prompt were cached when it was sent."""
    reply = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1, "ignore_eos": True, **fields}).json()
    tokens: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_ten_turns_computes_only_what_is_new(sdk: openai.OpenAI, stream: bool) -> None:
    conversation = [50 + stream, *range(100, 300)]
    known = 0
    for turn in range(10):
        kwargs: Any = {
            "model": MODEL,
            "prompt": conversation,
            "max_tokens": 12,
            "extra_body": {"return_token_ids": True, "ignore_eos": True},
        }
        if stream:
            chunks = list(sdk.completions.create(stream=True, stream_options={"include_usage": True}, **kwargs))
            reply: list[int] = [token for chunk in chunks[:-1] for token in chunk.choices[0].token_ids]
            usage = chunks[-1].usage
        else:
            whole = sdk.completions.create(**kwargs)
            reply = whole.choices[0].token_ids
            usage = whole.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens == len(conversation)
        assert usage.prompt_tokens_details.cached_tokens == known
        # The last token of a reply has no KV yet; everything before it has.
        known = len(conversation) + len(reply) - 1
        conversation = [*conversation, *reply, *range(20 + turn, 35 + turn)]


@pytest.mark.parametrize("stream", [False, True])
def test_header_tells_cached_and_prompt_tokens(http: httpx.Client, stream: bool) -> None:
    body = {"prompt": [60 + stream, *range(100, 140)], "max_tokens": 2, "stream": stream}
    assert http.post("/v1/completions", json=body).headers["x-cached-tokens"] == "0/41"
    assert http.post("/v1/completions", json=body).headers["x-cached-tokens"] == "40/41"


def test_header_is_left_out_while_a_prompts_share_is_unknown(http: httpx.Client) -> None:
    body = {"prompt": [[11, 62], [12, 64]], "max_tokens": 20, "ignore_eos": True}
    assert http.post("/v1/completions", json=body).headers["x-cached-tokens"] == "0/4"
    assert "x-cached-tokens" not in http.post("/v1/completions", json={**body, "stream": True}).headers


def test_salts_do_not_share(http: httpx.Client) -> None:
    prompt = [65, *range(100, 120)]
    assert cached(http, prompt) == 0
    assert cached(http, prompt, cache_salt="one") == 0
    assert cached(http, prompt, cache_salt="one") == 20
    assert cached(http, prompt, cache_salt="two") == 0
    assert cached(http, prompt) == 20


def test_reset_forgets_everything(http: httpx.Client) -> None:
    prompt = [66, *range(100, 120)]
    cached(http, prompt)
    held = metric(http, 'mainstem_kv_slots{state="evictable"}')
    assert http.post("/cache/reset").json() == {"dropped_tokens": held}
    wait_until(lambda: metric(http, 'mainstem_kv_slots{state="free"}') == 8192)
    assert cached(http, prompt) == 0


def test_reset_leaves_running_requests_alone(http: httpx.Client) -> None:
    body = {"prompt": [67, *range(100, 120)], "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    undisturbed = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        events = response.iter_lines()
        next(events)
        assert http.post("/cache/reset").status_code == 200
        for _ in events:
            pass
    assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == undisturbed
    assert_pool_at_rest(http)


def test_a_preempted_reply_says_what_was_cached_when_it_came(tiny_model: Path) -> None:
    config = EngineConfig(
        model=str(tiny_model),
        kv_memory=kv_memory_for(700),
        kv_dtype="float32",
        max_model_len=400,
        device="cpu",
        schedule="fcfs",
    )
    prefix = random_tokens(100, seed=1).tolist()
    prompts = [[*prefix, *random_tokens(40, seed=2 + number).tolist()] for number in range(8)]
    engine = AsyncEngine.load(config)
    with (
        BackgroundServer(engine, ServerConfig(port=0, served_model_name=MODEL)) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        ask = {"model": MODEL, "temperature": 0, "ignore_eos": True}
        http.post("/v1/completions", json={**ask, "prompt": prefix, "max_tokens": 1}).raise_for_status()
        reply = http.post("/v1/completions", json={**ask, "prompt": prompts, "max_tokens": 120}).raise_for_status()
        assert engine.stats().preemptions > 0
    assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 100 * len(prompts)
