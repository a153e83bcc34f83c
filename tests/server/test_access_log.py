"""The access log: one line a request, which no client can forge."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from mainstem.config import ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.server.conftest import MODEL, wait_until


@pytest.fixture(scope="module")
def server(
    load_tiny: Callable[[], AsyncEngine], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BackgroundServer]:
    """Replaces the open server."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("alice sk-alice\n", encoding="utf-8")
    config = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL, api_key_file=str(keys), access_log=True)
    with BackgroundServer(load_tiny(), config) as running:
        yield running


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "mainstem.access")

    def read() -> list[str]:
        # The line is written when the reply is over, a moment after the client has it.
        wait_until(lambda: any(record.name == "mainstem.access" for record in caplog.records))
        return [record.getMessage() for record in caplog.records if record.name == "mainstem.access"]

    return read


ALICE = {"authorization": "Bearer sk-alice"}


def test_a_reply_is_a_line_with_tenant_and_cached_tokens(http: httpx.Client, lines: Callable[[], list[str]]) -> None:
    body = {"prompt": list(range(100, 140)), "max_tokens": 1}
    http.post("/v1/completions", json=body, headers={**ALICE, "x-request-id": "first"})
    (line,) = lines()
    assert re.fullmatch(r"alice POST /v1/completions 200 \d+\.\d{3}s cached=0/40( cause=\S+)? id=first", line)


def test_a_stream_is_a_line_too(http: httpx.Client, lines: Callable[[], list[str]]) -> None:
    body = {"prompt": list(range(200, 240)), "max_tokens": 3, "stream": True, "ignore_eos": True}
    assert "[DONE]" in http.post("/v1/completions", json=body, headers=ALICE).text
    assert " 200 " in lines()[0]
    assert " cached=0/40" in lines()[0]


def test_who_may_not_come_in_has_no_name(http: httpx.Client, lines: Callable[[], list[str]]) -> None:
    http.get("/v1/models", headers={"authorization": "Bearer sk-eve"})
    (line,) = lines()
    assert line.startswith("- GET /v1/models 401 ")
    assert "eve" not in line


def test_a_stream_that_its_client_left_is_cut(http: httpx.Client, lines: Callable[[], list[str]]) -> None:
    body = {"prompt": [5, 6], "max_tokens": 1900, "stream": True, "ignore_eos": True}
    with http.stream("POST", "/v1/completions", json=body, headers=ALICE) as response:
        next(response.iter_lines())
    assert lines()[0].endswith(" cut")


def test_no_client_writes_a_line_of_its_own(http: httpx.Client, lines: Callable[[], list[str]]) -> None:
    http.get("/v1/x%0Abob%20GET%20/v1/models%20200%20", headers=ALICE)
    (line,) = lines()
    assert "\n" not in line
    assert line.startswith("alice GET /v1/x\\nbob\\x20GET")
