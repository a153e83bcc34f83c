"""Prompts stay the same where a client's requests differ in nothing that matters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer

ASKED = [{"role": "user", "content": "Where?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "a city"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
}
SWAPPED = {
    "required": ["city", "days"],
    "properties": {"days": {"minimum": 1, "type": "integer"}, "city": {"description": "a city", "type": "string"}},
    "type": "object",
}


def load(tiny_model: Path, **settings: Any) -> AsyncEngine:
    return AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="4MiB", device="cpu", **settings))


@pytest.fixture(scope="module", params=[True, False], ids=["canonical", "as sent"])
def server(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[tuple[str, bool]]:
    """The server's address, and whether it orders the keys of schemas."""
    engine = load(tiny_model, canonical_tools=request.param)
    with BackgroundServer(engine, ServerConfig(port=0, drain_seconds=0, served_model_name="tiny")) as running:
        yield running.url, request.param


def chat(schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    tool = {"type": "function", "function": {"name": "forecast", "parameters": schema}}
    return "/v1/chat/completions", {"model": "tiny", "messages": ASKED, "tools": [tool], "max_tokens": 1}


def responses(schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    tool = {"type": "function", "name": "forecast", "parameters": schema}
    return "/v1/responses", {"model": "tiny", "input": ASKED, "tools": [tool], "max_output_tokens": 16}


def messages(schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    tool = {"name": "forecast", "input_schema": schema}
    return "/v1/messages", {"model": "tiny", "messages": ASKED, "tools": [tool], "max_tokens": 1}


@pytest.mark.parametrize("api", [chat, responses, messages])
def test_keys_of_schemas_may_change_places_between_requests(server: tuple[str, bool], api: Any) -> None:
    url, canonical = server
    httpx.post(url + "/cache/reset")

    def cached(schema: dict[str, Any]) -> tuple[int, int]:
        path, body = api(schema)
        reply = httpx.post(url + path, json=body, timeout=30)
        assert reply.is_success, reply.text
        header = reply.headers["x-cached-tokens"]
        known, _, length = header.partition("/")
        return int(known), int(length)

    cached(SCHEMA)
    known, length = cached(SWAPPED)
    if canonical:
        assert known == length - 1
    else:
        assert known < length - 20


def test_a_forced_call_follows_the_order_that_is_shown(tiny_model: Path) -> None:
    with BackgroundServer(load(tiny_model), ServerConfig(port=0, drain_seconds=0, served_model_name="tiny")) as server:

        def grammar(schema: dict[str, Any]) -> str:
            _, body = chat(schema)
            rendered = httpx.post(
                server.url + "/v1/chat/completions/render", json={**body, "tool_choice": "required"}, timeout=30
            ).json()
            return str(rendered["grammar"])

        assert grammar(SWAPPED) == grammar(SCHEMA)
