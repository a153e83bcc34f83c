"""API keys: who may come in, and that tenants do not share what is cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from mainstem.config import ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.errors import ConfigError
from mainstem.server import BackgroundServer
from tests.server.conftest import MODEL

BODY = {"prompt": list(range(100, 140)), "max_tokens": 1}


@pytest.fixture(scope="module")
def server(load_tiny: Callable[[], AsyncEngine]) -> Iterator[BackgroundServer]:
    """Replaces the open server."""
    config = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL, api_key="first-key, schlüssel")
    with BackgroundServer(load_tiny(), config) as running:
        yield running


@pytest.mark.parametrize("route", ["/v1/models", "/metrics", "/", "/unknown"])
def test_nothing_is_shown_without_a_key(http: httpx.Client, route: str) -> None:
    response = http.get(route)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"
    assert "first-key" not in response.text


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions", "/cache/reset", "/tokenize"])
def test_nothing_is_done_without_a_key(http: httpx.Client, route: str) -> None:
    assert http.post(route, json=BODY).status_code == 401


def test_health_is_open(http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer   first-key"},
        {"authorization": "Bearer schlüssel".encode()},
        {"x-api-key": "first-key"},
    ],
    ids=["bearer", "any case", "second key", "x-api-key"],
)
def test_each_key_is_accepted(http: httpx.Client, headers: dict[str, str]) -> None:
    assert http.post("/v1/completions", json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-ke"},
        {"authorization": "Bearer first-keyy"},
        {"authorization": "Bearer first-key, schlüssel".encode()},
        {"authorization": "Bearer"},
        {"authorization": "Basic first-key"},
        {"authorization": "first-key"},
        {"x-api-key": ""},
        {"x-api-key": b"\xff\xfe"},
    ],
    ids=str,
)
def test_anything_else_is_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    assert http.post("/v1/completions", json=BODY, headers=headers).status_code == 401


def test_what_concerns_everyone_is_for_operators(http: httpx.Client) -> None:
    operator, other = httpx.Headers({"x-api-key": "first-key"}), httpx.Headers({b"x-api-key": "schlüssel".encode()})
    assert http.get("/metrics", headers=operator).status_code == 200
    assert http.post("/cache/reset", headers=operator).status_code == 200
    assert http.post("/cache/reset", headers=other).json() == {"dropped_tokens": 0}, "it resets its own only"
    refused = http.get("/metrics", headers=other)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "operator_required"


def test_sdk_raises_authentication_error(server: BackgroundServer) -> None:
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as sdk,
        pytest.raises(openai.AuthenticationError),
    ):
        sdk.completions.create(model=MODEL, prompt="x")


def test_tenants_do_not_share_the_cache(http: httpx.Client) -> None:
    def cached(key: str, **fields: str) -> str:
        body = {**BODY, "prompt": [9, *range(100, 140)], **fields}
        headers: Any = {"authorization": f"Bearer {key}".encode()}
        return http.post("/v1/completions", json=body, headers=headers).headers["x-cached-tokens"]

    assert cached("first-key") == "0/41"
    assert cached("first-key") == "40/41"
    assert cached("schlüssel") == "0/41"
    assert cached("schlüssel") == "40/41"
    # A salt narrows a tenant's own part; it opens nobody else's.
    assert cached("first-key", cache_salt="x") == "0/41"
    assert cached("schlüssel", cache_salt="x") == "0/41"


@pytest.mark.parametrize("setting", ["", ",", "a,", "a,,b", " "])
def test_setting_with_an_empty_key_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="empty key"):
        ServerConfig(api_key=setting)
