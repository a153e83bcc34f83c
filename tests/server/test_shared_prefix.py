"""Prefixes that the operator declares public, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.errors import ConfigError
from mainstem.server import BackgroundServer, create_app, read_shared_prefixes
from tests.server.conftest import MODEL
from tests.server.tools import CHAT_TOOLS

SYSTEM = "You are a helpful assistant. Answer the question in one sentence."
TOOL_SYSTEM = [{"role": "system", "content": "Use the tools again and again."}]


@pytest.fixture(scope="module")
def server(
    load_tiny: Callable[[], AsyncEngine], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BackgroundServer]:
    """Replaces the open server."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "system.txt").write_text(SYSTEM, encoding="utf-8")
    (folder / "tools.json").write_text(json.dumps({"messages": TOOL_SYSTEM, "tools": CHAT_TOOLS}), encoding="utf-8")
    config = ServerConfig(
        port=0,
        drain_seconds=0,
        served_model_name=MODEL,
        api_key="alice-key,bob-key",
        shared_prefix=f"{folder / 'system.txt'}, {folder / 'tools.json'}",
    )
    with BackgroundServer(load_tiny(), config) as running:
        yield running


def ask(http: httpx.Client, key: str, path: str, **body: Any) -> tuple[int, int]:
    """Cached and prompt tokens."""
    reply = http.post(path, json={"max_tokens": 1, **body}, headers={"authorization": f"Bearer {key}-key"})
    assert reply.status_code == 200, reply.text
    cached, _, total = reply.headers["x-cached-tokens"].partition("/")
    return int(cached), int(total)


def count(http: httpx.Client, **body: Any) -> int:
    reply = http.post("/tokenize", json=body, headers={"x-api-key": "alice-key"})
    return int(reply.json()["count"])


def test_the_first_request_finds_a_declared_system_message(http: httpx.Client) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "hello"}]
    cached, total = ask(http, "alice", "/v1/chat/completions", messages=messages)
    shared = count(http, messages=messages[:1], add_generation_prompt=False)
    assert shared <= cached < total
    # What follows it is alice's own.
    assert ask(http, "bob", "/v1/chat/completions", messages=messages) == (cached, total)
    assert ask(http, "alice", "/v1/chat/completions", messages=messages) == (total - 1, total)


def test_a_declared_text_is_shared_by_plain_completions_once_one_was_sent(http: httpx.Client) -> None:
    assert ask(http, "alice", "/v1/completions", prompt=SYSTEM + " Why?")[0] == 0
    cached, _ = ask(http, "bob", "/v1/completions", prompt=SYSTEM + "\n\nIndeed.")
    assert cached >= count(http, prompt=SYSTEM) - 1


def test_declared_tools_are_part_of_the_prefix(http: httpx.Client) -> None:
    question = {"role": "user", "content": "when?"}
    cached, total = ask(http, "bob", "/v1/chat/completions", messages=[*TOOL_SYSTEM, question], tools=CHAT_TOOLS)
    assert cached > count(http, messages=TOOL_SYSTEM, tools=CHAT_TOOLS, add_generation_prompt=False) - 2
    without, _ = ask(http, "bob", "/v1/chat/completions", messages=[*TOOL_SYSTEM, question])
    assert without < cached < total


def test_a_salt_closes_the_door_to_it(http: httpx.Client) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "hello"}]
    assert ask(http, "alice", "/v1/chat/completions", messages=messages, cache_salt="s")[0] == 0


def test_it_shows_in_the_metrics(http: httpx.Client) -> None:
    text = http.get("/metrics", headers={"x-api-key": "alice-key"}).text
    public = [line for line in text.splitlines() if line.startswith('mainstem_kv_tenant_tokens{tenant="public"}')]
    assert float(public[0].rpartition(" ")[2]) > 20


async def test_what_is_computed_at_start_up_is_one_form_and_no_request(
    load_tiny: Callable[[], AsyncEngine], tmp_path: Path
) -> None:
    (tmp_path / "system.txt").write_text(SYSTEM, encoding="utf-8")
    engine = load_tiny()
    app = create_app(engine, ServerConfig(shared_prefix=str(tmp_path / "system.txt")), MODEL)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http,
    ):
        message = {"messages": [{"role": "system", "content": SYSTEM}], "add_generation_prompt": False}
        tokens = (await http.post("/tokenize", json=message)).json()["count"]
        values = dict(
            line.rsplit(" ", 1) for line in (await http.get("/metrics")).text.splitlines() if not line.startswith("#")
        )
        assert tokens <= float(values['mainstem_kv_slots{state="evictable"}']) <= tokens + 4
        counted = {
            name: value
            for name, value in values.items()
            if name.partition("{")[0].endswith(("_total", "_count")) and float(value)
        }
        assert counted == {}
        assert (await http.get("/cache/explain/last")).status_code == 404


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("gone.txt", None, "cannot read"),
        ("empty.txt", b"", "empty"),
        ("bytes.txt", b"\xff", "not UTF-8"),
        ("list.json", b"[1]", "list of messages"),
        ("cut.json", b'{"messages": [', "Expecting"),
        ("role.json", b'{"messages": [{"role": "wizard", "content": "x"}]}', "messages.0..role"),
        ("deep.json", b"[" * 100_000, "recursion"),
    ],
)
def test_a_file_that_is_not_understood_is_refused(
    tmp_path: Path, name: str, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as refused:
        read_shared_prefixes(ServerConfig(shared_prefix=str(tmp_path / name)))
    assert refused.value.setting == "shared_prefix"


async def test_what_cannot_be_served_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("the river " * 3000, encoding="utf-8")
    config = ServerConfig(shared_prefix=str(tmp_path / "long.txt"))
    for engine_config, reason in (
        (EngineConfig(model=str(tiny_model), kv_memory="1MiB"), "at most 2048"),
        (EngineConfig(model=str(tiny_model), kv_memory="1MiB", prefix_cache="none"), "only --prefix-cache radix"),
    ):
        engine = AsyncEngine.load(engine_config)
        with pytest.raises(ConfigError, match=reason):
            create_app(engine, config)
        await engine.shutdown(0)
