"""Why tokens were not cached, as clients are told: usage, header, the hosted diagnostics, /metrics, /cache/explain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.engine.support import kv_memory_for
from tests.server.conftest import MODEL, metric

SYSTEM = (
    "You are a coding agent. Now it is {}. Read files before you change them, run the tests after every change, and "
    "answer in short sentences that anybody can follow."
)
QUESTION = "Find the river that runs to the sea, and say where it begins, how long it is and what it carries."
NEXT = "And now the same for another river, please; take one that runs to the north, and be brief."
CAUSES = (
    "first_seen",
    "diverged",
    "evicted",
    "expired",
    "reset",
    "other_namespace",
    "rounding",
    "in_flight",
    "never_cached",
)


def told(system: str, *texts: str) -> list[dict[str, Any]]:
    """A conversation whose messages are the user's and the assistant's in turn."""
    roles = ["user", "assistant"] * len(texts)
    said = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return [{"role": "system", "content": system}, *said]


def chat(http: httpx.Client, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": messages, "max_tokens": 6, "temperature": 0, "ignore_eos": True, **fields}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response


def misses(response: httpx.Response) -> dict[str, int]:
    """Uncached tokens by cause; they are all that was not cached."""
    usage = response.json()["usage"]
    by_cause: dict[str, int] = usage["mainstem"]["misses"]
    assert sum(by_cause.values()) == usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    return by_cause


def explained(http: httpx.Client, response: httpx.Response) -> dict[str, Any]:
    """What /cache/explain says of a reply, checked to agree with itself and with the reply."""
    told: dict[str, Any] = http.get(f"/cache/explain/{response.json()['id']}").json()
    assert sum(cause["tokens"] for cause in told["causes"]) == told["uncached_tokens"]
    assert told["prompt_tokens"] == response.json()["usage"]["prompt_tokens"]
    bounds = [part["tokens"] for part in told["parts"]]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds)][:-1], "parts overlap or leave a gap"
    assert [stretch["tokens"][0] for stretch in told["uncached"][1:]] == [
        stretch["tokens"][1] for stretch in told["uncached"][:-1]
    ]
    return told


def counts(http: httpx.Client) -> dict[str, float]:
    return {cause: metric(http, f'mainstem_prefix_cache_misses_total{{cause="{cause}"}}') for cause in CAUSES}


@pytest.fixture
def sdk_anthropic(server: BackgroundServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def small(tiny_model: Path) -> Iterator[httpx.Client]:
    """A server whose pool holds one conversation and not two."""
    config = EngineConfig(model=str(tiny_model), kv_memory=kv_memory_for(400), max_model_len=400, device="cpu")
    with (
        BackgroundServer(
            AsyncEngine.load(config), ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)
        ) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):
        yield client


# Scenarios, as a user would meet them


def test_a_conversation_that_goes_on(http: httpx.Client) -> None:
    system, question = "Be brief, and say nothing about trees.", "Who was the first to run around the sea, and why?"
    first = chat(http, told(system, question))
    assert misses(first) == {"first_seen": first.json()["usage"]["prompt_tokens"]}
    assert first.headers["x-cache-miss-cause"] == "first_seen"
    again = chat(http, told(system, question))
    assert misses(again) == {"rounding": 1}  # the last token, for its logits
    reply = first.json()["choices"][0]["message"]["content"]
    second = chat(http, told(system, question, reply, NEXT))
    assert set(misses(second)) == {"first_seen"}
    assert explained(http, second)["first_difference"] is None


def test_a_history_that_was_rewritten(http: httpx.Client) -> None:
    """With the clock in the system's text."""
    first = chat(http, told(SYSTEM.format("10:00:01"), QUESTION))
    before = counts(http)
    reply = first.json()["choices"][0]["message"]["content"]
    second = chat(http, told(SYSTEM.format("10:02:44"), QUESTION, reply, NEXT))
    by_cause = misses(second)
    assert by_cause["diverged"] > by_cause["first_seen"] > 0
    assert second.headers["x-cache-miss-cause"] == "diverged:timestamp"
    grown = counts(http)
    assert grown["diverged"] - before["diverged"] == by_cause["diverged"]
    card = explained(http, second)
    difference = card["first_difference"]
    assert difference["part"] == "messages[0].content"
    assert "10:00:01" in difference["earlier"]
    assert "10:02:44" in difference["now"]
    assert difference["change"]["class"] == "timestamp"
    assert difference["change"]["fix"]
    assert card["compared_with"]["id"] == first.json()["id"]
    lost = next(cause for cause in card["causes"] if cause["cause"] == "diverged")
    assert 0 < lost["seconds"] <= card["prefill_seconds"]


def test_a_pool_that_thrashes(small: httpx.Client) -> None:
    conversations = [told(SYSTEM.format(name), f"{name}: {QUESTION} {NEXT}") for name in ("one", "two")]
    for conversation in conversations:
        chat(small, conversation)
    returned = chat(small, conversations[0])
    assert set(misses(returned)) == {"evicted", "rounding"} or set(misses(returned)) == {"evicted", "first_seen"}
    assert returned.headers["x-cache-miss-cause"] == "evicted"
    evicted = next(cause for cause in explained(small, returned)["causes"] if cause["cause"] == "evicted")
    assert evicted["reason"] == "lru"
    assert evicted["idle_seconds"] >= 0
    assert evicted["room_for"].startswith("chatcmpl-")
    assert evicted["room_for"] != returned.json()["id"]
    assert evicted["fix"]


def test_a_cache_that_was_reset(http: httpx.Client) -> None:
    conversation = told(SYSTEM.format("reset"), QUESTION)
    chat(http, conversation)
    http.post("/cache/reset")
    by_cause = misses(chat(http, conversation))
    assert by_cause.pop("rounding") == 1
    assert set(by_cause) == {"reset"}
