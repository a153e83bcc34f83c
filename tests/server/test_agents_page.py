"""The examples of docs/agents.md whose clients the tests have anyway."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.server import BackgroundServer
from tests.clients.run import ADDRESS, REQUIREMENTS, example
from tests.server.scripted import ScriptedEngine

CALL = '<tool_call>\n{"name": "forecast", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[BackgroundServer]:
    """Replaces the server that computes its replies."""
    engine = ScriptedEngine(EngineConfig(model=str(tiny_model), kv_memory="4MiB", device="cpu"), lambda *_: None)
    engine.script = lambda prompt: "Yes, it will." if "Rain in Oslo." in prompt else CALL
    with BackgroundServer(engine, ServerConfig(port=0, drain_seconds=0, served_model_name="smollm2")) as running:
        yield running


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_an_example_calls_the_tool_and_answers(server: BackgroundServer, name: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(example(name).text.replace(ADDRESS, server.url), name, "exec"), {})
    assert "Yes, it will." in said.getvalue()
    assert "cached" in said.getvalue()


def test_every_client_that_is_run_has_an_example() -> None:
    assert all(ADDRESS in example(name).text for name in REQUIREMENTS)
