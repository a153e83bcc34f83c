"""Two independent conformance tools against the server, with replies such as a capable model would give.

What the embedded model says to them is told in docs/api.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.server import BackgroundServer
from tests.server.conftest import KEYLESS, MODEL
from tests.server.scripted import ScriptedEngine

# What the last question has in it, and the reply.
REPLIES: dict[str, str | list[dict[str, Any]]] = {
    "Get the current weather in Paris and in Tokyo": [{"city": "Paris"}, {"city": "Tokyo"}],
    "weather in Paris right now": [{"city": "Paris"}],
    "17 + 25": "42",
    "Design review": [
        {
            "title": "Design review",
            "start": "2026-10-01T15:00:00Z",
            "attendees": [{"name": "Ana", "email": "ana@example.com"}, {"name": "Bo", "email": "bo@example.com"}],
            "location": {"city": "Berlin", "room": "4.12"},
        }
    ],
    "Grüße aus Zürich": [{"title": "Grüße aus Zürich", "body": "Café ☕ in 東京 — naïve résumé 🚀"}],
    "What time is it": [{}],
    "something about Lisbon": [{"city": "Lisbon"}],
    "temp_c": "It is 18 degrees and clear in Paris.",
    "9.11 or 9.9": [{"answer": "9.9"}],
    "weather in San Francisco": [{"location": "San Francisco"}],
}
# The first key that the arguments have tells the tool.
NAMES = {
    "attendees": "create_event",
    "title": "save_note",
    "answer": "record_answer",
    "city": "get_weather",
    "location": "get_weather",
}
NO_IMAGES = "Image Input"
MODEL_IS_OPTIONAL = "Error Handling"


def reply(prompt: str) -> str:
    """The reply to the last question of a prompt; calls are in the Hermes form."""
    question = prompt.rpartition("<|im_start|>user")[2]
    said = next((said for asked, said in REPLIES.items() if asked in question), "One, two, three.")
    if isinstance(said, str):
        return said
    return "\n".join(
        f"<tool_call>\n{json.dumps(call(arguments), ensure_ascii=False)}\n</tool_call>" for arguments in said
    )


def call(arguments: dict[str, Any]) -> dict[str, Any]:
    name = next((name for key, name in NAMES.items() if key in arguments), "get_server_time")
    return {"name": name, "arguments": arguments}


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[BackgroundServer]:
    """Replaces the server that computes its replies."""
    engine = ScriptedEngine(EngineConfig(model=str(tiny_model), kv_memory="4MiB", device="cpu"), lambda *_: None)
    engine.script = reply
    with BackgroundServer(engine, ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)) as running:
        yield running


def test_every_scenario_of_canitoolcall_passes(server: BackgroundServer) -> None:
    probe = pytest.importorskip("canitoolcall.probe")
    report = probe.probe(f"{server.url}/v1", MODEL)
    failed = [(outcome.scenario_id, outcome.detail) for outcome in report.outcomes if outcome.status != "pass"]
    warned = [(outcome.scenario_id, outcome.warnings) for outcome in report.outcomes if outcome.warnings]
    assert len(report.outcomes) == 27
    assert failed == []
    assert warned == []


@pytest.mark.parametrize(
    ("form", "count", "known"),
    [
        ("openai-chat", 9, {NO_IMAGES, MODEL_IS_OPTIONAL}),
        ("open-responses", 13, {NO_IMAGES}),
        ("anthropic", 9, {NO_IMAGES}),
    ],
)
def test_every_case_of_llm_comply_passes_but_the_known_ones(
    server: BackgroundServer, form: str, count: int, known: set[str]
) -> None:
    pytest.importorskip("llm_comply")
    arguments = ["-u", f"{server.url}/v1", "-k", KEYLESS, "-m", MODEL, "--format", form, "--json"]
    command = [sys.executable, "-m", "llm_comply.cli", *arguments]
    results = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120).stdout)["results"]
    assert len(results) == count
    assert {result["name"]: result["errors"] for result in results if result["status"] == "failed"}.keys() == known
