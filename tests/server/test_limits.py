"""What a request may cost before anyone looks at it."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest

from mainstem.server import BackgroundServer
from mainstem.server.limits import MAX_HEAD_BYTES, MAX_HEADER_BYTES, MAX_HEADERS, MAX_PATH_BYTES
from tests.server.conftest import assert_pool_at_rest

CHAT = "/v1/chat/completions"


def check_refused(response: httpx.Response, status: int) -> None:
    assert response.status_code == status
    assert response.json()["error"]["code"] == "request_too_large"
    assert response.headers["connection"] == "close"


def test_too_many_headers_are_refused(http: httpx.Client) -> None:
    headers = {f"x-{i}": "1" for i in range(MAX_HEADERS)}
    check_refused(http.get("/health", headers=headers), 431)
    few = {f"x-{i}": "1" for i in range(MAX_HEADERS - 20)}
    assert http.get("/health", headers=few).status_code == 200


def test_a_header_too_long_is_refused_and_named(http: httpx.Client) -> None:
    response = http.get("/health", headers={"x-long": "a" * MAX_HEADER_BYTES})
    check_refused(response, 431)
    assert "'x-long'" in response.json()["error"]["message"]
    assert http.get("/health", headers={"x-long": "a" * (MAX_HEADER_BYTES - 10)}).status_code == 200


def test_a_path_too_long_is_refused(http: httpx.Client) -> None:
    check_refused(http.get("/health?" + "a" * MAX_PATH_BYTES), 414)


def test_a_head_without_end_is_cut_off(server: BackgroundServer, http: httpx.Client) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"x: " + b"a" * 2 * MAX_HEAD_BYTES)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "x"}], "metadata": None},
        {"messages": None},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": None}]},
        {"messages": [{"role": "user", "content": "x"}], "response_format": None},
    ],
    ids=["a field that is ignored", "messages", "tools", "response_format"],
)
@pytest.mark.parametrize(("levels", "statuses"), [(150, {200, 400}), (250, {400})])
def test_nesting_is_limited(http: httpx.Client, body: dict[str, Any], levels: int, statuses: set[int]) -> None:
    deep: Any = {"type": "string"}
    for _ in range(levels):
        deep = {"properties": {"a": deep}} if levels < 200 else [deep]

    def fill(value: Any) -> Any:
        match value:
            case None:
                return deep
            case dict():
                return {key: fill(inner) for key, inner in value.items()}
            case list():
                return [fill(inner) for inner in value]
        return value

    response = http.post(CHAT, json={**fill(body), "max_tokens": 1})
    assert response.status_code in statuses, response.text
    if levels > 200:
        assert "nested too deeply" in response.json()["error"]["message"]
    assert_pool_at_rest(http)
