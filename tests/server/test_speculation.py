"""A server that drafts says over HTTP what one that does not says, and tells how much of it was guessed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.server.conftest import KEYLESS, MODEL, assert_pool_at_rest, metric

PROMPT = "again and again and again and"
TOLD: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 60, "extra_body": {"ignore_eos": True}}
ASKED: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 2},
    {"temperature": 0, "stop": ["a"]},
    {"temperature": 0.2, "seed": 3, "n": 3},
]


@pytest.fixture(scope="module")
def drafting(tiny_model: Path) -> Iterator[BackgroundServer]:
    config = EngineConfig(
        model=str(tiny_model), kv_memory="4MiB", kv_dtype="float32", device="cpu", speculate="tree,ngram"
    )
    engine = AsyncEngine.load(config)
    with BackgroundServer(engine, ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)) as running:
        yield running


def told(server: BackgroundServer, **asked: Any) -> list[Any]:
    """All choices, whole and streamed."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYLESS, max_retries=0) as sdk:
        whole = sdk.completions.create(**TOLD, **asked).choices
        texts = dict.fromkeys(range(len(whole)), "")
        reasons: dict[int, Any] = {}
        for event in sdk.completions.create(**TOLD, **asked, stream=True):
            for part in event.choices:
                texts[part.index] += part.text
                reasons[part.index] = part.finish_reason
    assert texts == {choice.index: choice.text for choice in whole}
    assert reasons == {choice.index: choice.finish_reason for choice in whole}
    return [choice.model_dump() for choice in whole]


@pytest.mark.parametrize("asked", ASKED)
def test_replies_are_those_without_drafts(
    server: BackgroundServer, drafting: BackgroundServer, asked: dict[str, Any]
) -> None:
    assert told(drafting, **asked) == told(server, **asked)


def test_metrics_count_drafts(drafting: BackgroundServer) -> None:
    with httpx.Client(base_url=drafting.url) as http:
        before = {name: metric(http, f"mainstem_{name}_total") for name in ("generation_tokens", *DRAFT_COUNTERS)}
        for _ in range(8):
            told(drafting, temperature=0)
        grown = {name: metric(http, f"mainstem_{name}_total") - value for name, value in before.items()}
        assert grown["generation_tokens"] == 8 * 2 * 60
        drafted, accepted = (grown[name] for name in DRAFT_COUNTERS)
        assert drafted >= accepted > 0
        assert_pool_at_rest(http)


DRAFT_COUNTERS = ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
