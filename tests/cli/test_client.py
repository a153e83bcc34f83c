"""The small client: when it sees a first token, and how it puts a streamed call together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainstem.cli.client import ChatClient, shows_a_token
from mainstem.cli.session import load_tools
from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer

FORCED: dict[str, Any] = {"tools": load_tools(), "tool_choice": {"type": "function", "function": {"name": "edit_file"}}}


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ({"delta": {"role": "assistant", "content": ""}, "finish_reason": None}, False),
        ({"delta": {"content": "A"}, "finish_reason": None}, True),
        ({"delta": {"content": ""}, "token_ids": [7], "finish_reason": None}, True),
        ({"delta": {"reasoning_content": "Well"}, "finish_reason": None}, True),
        ({"delta": {"tool_calls": [{"index": 0}]}, "finish_reason": None}, True),
        ({"delta": {}, "finish_reason": "length"}, True),
    ],
)
def test_a_first_token_is_seen_by_its_id_or_by_what_it_says(choice: dict[str, Any], shown: bool) -> None:
    assert shows_a_token(choice) is shown


def test_a_streamed_call_comes_whole_and_goes_back_as_it_came(roomy_model: Path) -> None:
    engine = AsyncEngine(EngineConfig(model=str(roomy_model), kv_memory="16MiB", device="cpu"), lambda *_: None)
    question = [{"role": "user", "content": "Repair it."}]
    with (
        BackgroundServer(engine, ServerConfig(port=0, drain_seconds=0)) as server,
        ChatClient(server.url + "/v1") as client,
    ):
        first = client.complete(question, max_tokens=300, temperature=0, return_token_ids=True, **FORCED)
        (call,) = first.tool_calls
        assert call["function"]["name"] == "edit_file"
        assert set(json.loads(call["function"]["arguments"])) == {"path", "old", "new"}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        second = client.complete([*question, first.message, result], max_tokens=1, **FORCED)
    assert second.cached_tokens == first.prompt_tokens + first.completion_tokens - 1
