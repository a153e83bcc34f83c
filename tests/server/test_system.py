"""The routes around generation, and what every reply has."""

from __future__ import annotations

from pathlib import Path

import httpx
import openai
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.engine.core import EngineCore
from mainstem.server import BackgroundServer, create_app
from tests.server.conftest import MODEL


def test_models_lists_the_one_that_is_served(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == [MODEL]
    assert sdk.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("gpt-9")


def test_health_is_ok(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}


def test_replies_are_not_held_back_for_acknowledgements(http: httpx.Client) -> None:
    # A socket with Nagle's algorithm makes the client's delayed acknowledgement, 40 ms, part of every reply.
    seconds = sorted(http.get("/health").elapsed.total_seconds() for _ in range(15))
    assert seconds[7] < 0.03


def test_unknown_route_has_openais_error_shape(http: httpx.Client) -> None:
    response = http.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_url"
    assert "/v1/nothing" in response.json()["error"]["message"]


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "%00"])
def test_malformed_host_header_is_no_error_of_the_server(http: httpx.Client, host: str) -> None:
    assert http.get("/", headers={"host": host}).status_code in (200, 400)
    assert http.get("/nowhere", headers={"host": host}).status_code in (404, 400)


def test_wrong_method_says_the_right_one(http: httpx.Client) -> None:
    response = http.get("/v1/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert "POST" in response.json()["error"]["message"]


def test_request_id_is_taken_over_or_made(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "my-id.7"}).headers["x-request-id"] == "my-id.7"
    made = {http.get("/health").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    for unfit in ("a b", "x" * 129):
        assert http.get("/health", headers={"x-request-id": unfit}).headers["x-request-id"] != unfit


@pytest.mark.parametrize("route", ["/v1/completions", "/nowhere"])
def test_errors_have_a_request_id_too(http: httpx.Client, route: str) -> None:
    assert http.post(route, json={}).headers["x-request-id"]


@pytest.mark.parametrize("text", ["the river", "", "Straße 東京 🌳", "  a\n\tb", "<|im_start|>user"])
def test_tokenizing_and_back_gives_the_same_text(http: httpx.Client, text: str) -> None:
    tokens = http.post("/tokenize", json={"prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == 2048
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": text}


def test_tokenized_messages_are_what_a_chat_computes(http: httpx.Client) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    tokens = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    rendered = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert rendered.endswith("<|im_start|>assistant\n")
    reply = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()
    assert reply["usage"]["prompt_tokens"] == len(tokens)
    open_end = http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()["tokens"]
    assert open_end == tokens[: len(open_end)]


def test_long_texts_are_tokenized_as_short_ones_are(http: httpx.Client) -> None:
    short = http.post("/tokenize", json={"prompt": "the river runs "}).json()["tokens"]
    long = http.post("/tokenize", json={"prompt": "the river runs " * 4000}).json()["tokens"]
    assert long[: len(short) - 1] == short[:-1]
    assert http.post("/detokenize", json={"tokens": long}).json()["prompt"] == "the river runs " * 4000


def test_index_shows_a_command_that_works(http: httpx.Client, server: BackgroundServer) -> None:
    response = http.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert f"{server.url}/v1" in response.text
    assert MODEL in response.text


def test_index_escapes_the_host_header(http: httpx.Client) -> None:
    page = http.get("/", headers={"host": "<script>alert(1)</script>"}).text
    assert "<script>" not in page


async def test_a_server_whose_engine_has_died_says_so(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="1MiB"))
    transport = httpx.ASGITransport(create_app(engine, ServerConfig()))
    monkeypatch.setattr("mainstem.engine.core.EngineCore.step", broken_step)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        reply = await http.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 2})
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "engine_died"
        for response in (
            await http.get("/health"),
            await http.post("/v1/completions", json={"prompt": [5, 6]}),
            await http.post("/cache/reset"),
        ):
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "engine_died"
    await engine.shutdown(0)


def broken_step(_core: EngineCore) -> None:
    raise ZeroDivisionError("a step that no step survives")


async def test_a_server_whose_engine_has_stopped_is_not_healthy(tiny_model: Path) -> None:
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="1MiB"))
    app = create_app(engine, ServerConfig())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        assert (await http.get("/health")).status_code == 200
        await engine.shutdown(0)
        reply = await http.get("/health")
    assert reply.status_code == 503
    assert reply.headers["retry-after"]
