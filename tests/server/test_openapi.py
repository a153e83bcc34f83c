"""The OpenAPI document, and what requests that schemathesis makes of it, right and wrong ones, get for an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import content_type_conformance, not_a_server_error, status_code_conformance
from schemathesis.core.result import Ok

from mainstem.config import ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from mainstem.server.index import ENDPOINTS
from tests.server.conftest import MODEL, assert_pool_at_rest

EXAMPLES = 4
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of")
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]


@pytest.fixture(scope="module")
def server(load_tiny: Callable[[], AsyncEngine]) -> Iterator[BackgroundServer]:
    """Replaces the one whose replies are long by default."""
    config = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL, default_max_tokens=3)
    with BackgroundServer(load_tiny(), config) as running:
        yield running


def test_every_endpoint_of_the_index_is_in_the_document(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    described = {(method.upper(), path) for path, operations in paths.items() for method in operations}
    assert {(method, path) for method, path, _ in ENDPOINTS} - described == {("GET", "/openapi.json")}


def test_bodies_are_described_by_the_classes_that_check_them(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["messages"]
    reference = body["properties"]["stream_options"]["anyOf"][0]["$ref"]
    assert reference.rpartition("/")[2] in document["components"]["schemas"]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
def test_what_schemathesis_sends_is_answered_and_leaves_nothing_behind(
    server: BackgroundServer, http: httpx.Client, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    tried = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # there is nothing to get wrong

        @seed(0)
        @settings(
            max_examples=EXAMPLES,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def try_one(case: Case[Any]) -> None:
            nonlocal tried
            tried += 1
            keep_short(case.body)
            case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=20)

        try_one()
    assert tried >= 8 * EXAMPLES
    assert_pool_at_rest(http)


def keep_short(body: Any) -> None:
    """Long replies show nothing that short ones do not."""
    if isinstance(body, dict):
        for name in LENGTHS:
            if isinstance(body.get(name), int):
                body[name] = min(body[name], 3)
