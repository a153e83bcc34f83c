"""Stopping: running requests finish, new ones are refused, the process ends with status 0."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from mainstem.config import ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.errors import ConfigError
from mainstem.server import BackgroundServer, create_app, listen
from mainstem.server.run import CLOSE_SECONDS
from tests.server.conftest import KEYLESS, MODEL, wait_until

PROGRAM = """
import sys
from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import serve
engine = AsyncEngine.load(EngineConfig(model=sys.argv[1], kv_memory="4MiB", device="cpu"))
config = ServerConfig(port=0, drain_seconds=float(sys.argv[2]), served_model_name="tiny")
serve(engine, config, on_ready=lambda url: print(url, flush=True), on_drain=lambda: print("draining", flush=True))
print("ended", flush=True)
"""
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
STREAM: dict[str, Any] = {"model": MODEL, "prompt": [5, 6, 7], "stream": True, "extra_body": {"ignore_eos": True}}


@contextmanager
def process(folder: Path, drain_seconds: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its URL."""
    arguments = [sys.executable, "-c", PROGRAM, str(folder), str(drain_seconds)]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as child:
        try:
            assert child.stdout is not None
            yield child, child.stdout.readline().strip()
        finally:
            if child.poll() is None:
                child.kill()


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEYLESS, max_retries=0)


def test_sigterm_lets_a_stream_finish_and_refuses_new_requests(tiny_model: Path) -> None:
    with process(tiny_model, 30) as (child, url), client(url) as sdk, httpx.Client(base_url=url) as http:
        stream = sdk.completions.create(max_tokens=300, **STREAM)
        chunks = [next(stream)]
        child.send_signal(signal.SIGTERM)
        assert child.stdout is not None
        assert child.stdout.readline() == "draining\n"
        health = http.get("/health")
        assert health.status_code == 503
        assert int(health.headers["retry-after"]) > 0
        with pytest.raises(openai.InternalServerError) as refused:
            sdk.completions.create(model=MODEL, prompt="x")
        assert refused.value.status_code == 503
        assert refused.value.code == "shutting_down"
        chunks += stream
        assert chunks[-1].choices[0].finish_reason == "length"
        assert child.stdout.readline() == "ended\n"
        assert child.wait(10) == 0


def test_second_signal_ends_the_process_at_once(tiny_model: Path) -> None:
    with process(tiny_model, 600) as (child, url), client(url) as sdk:
        next(sdk.completions.create(max_tokens=2000, **STREAM))
        child.send_signal(signal.SIGINT)
        assert child.stdout is not None
        assert child.stdout.readline() == "draining\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(2) == -signal.SIGINT


def test_idle_server_stops_within_a_second(load_tiny: Callable[[], AsyncEngine]) -> None:
    with BackgroundServer(load_tiny(), ServerConfig(port=0)) as server, httpx.Client(base_url=server.url) as http:
        # Its connection stays open, and must not hold the server up.
        http.get("/health")
        started = time.monotonic()
        server.stop()
        wait_until(lambda: not any(thread.name == "mainstem-server" for thread in threading.enumerate()))
        assert time.monotonic() - started < 1


def test_stream_given_up_at_shutdown_is_told_so(load_tiny: Callable[[], AsyncEngine]) -> None:
    config = ServerConfig(port=0, drain_seconds=0.1, served_model_name=MODEL)
    with BackgroundServer(load_tiny(), config) as server, client(server.url) as sdk:
        stream = sdk.completions.create(max_tokens=2000, **STREAM)
        next(stream)
        server.stop()
        with pytest.raises(openai.APIError, match="shutting down"):
            for _ in stream:
                pass


def test_whole_reply_given_up_at_shutdown_is_a_503(load_tiny: Callable[[], AsyncEngine]) -> None:
    responses: list[httpx.Response] = []
    with BackgroundServer(load_tiny(), ServerConfig(port=0, drain_seconds=0.1, served_model_name=MODEL)) as server:
        body = {"prompt": [5, 6], "max_tokens": 2000, "ignore_eos": True}
        asking = threading.Thread(
            target=lambda: responses.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=20))
        )
        asking.start()
        wait_until(lambda: "requests_running 1" in httpx.get(f"{server.url}/metrics").text)
        server.stop()
        asking.join()
    assert responses[0].status_code == 503
    assert responses[0].json()["error"]["code"] == "shutting_down"


@pytest.mark.parametrize("drain_seconds", [0, 30])
def test_half_a_body_does_not_hold_up_the_end(
    load_tiny: Callable[[], AsyncEngine], drain_seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServerConfig(port=0, drain_seconds=drain_seconds, served_model_name=MODEL)
    with (
        BackgroundServer(load_tiny(), config) as server,
        connection_to(server) as half_a_body,
        connection_to(server) as half_a_head,
    ):
        half_a_body.sendall(HEAD + b'content-length: 100\r\n\r\n{"prompt"')
        half_a_head.sendall(HEAD)
        time.sleep(0.1)
        began = time.monotonic()
        server.stop()
        reply = half_a_body.makefile("rb").read()
        wait_until(lambda: not any(thread.name == "mainstem-server" for thread in threading.enumerate()))
        assert time.monotonic() - began < 1
    assert reply.startswith(b"HTTP/1.1 503 ")
    assert b"shutting_down" in reply
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_client_that_does_not_read_is_cut_off(
    load_tiny: Callable[[], AsyncEngine], caplog: pytest.LogCaptureFixture
) -> None:
    config = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)
    # More than the kernel takes: some send up to 4 MiB ahead of the reader.
    body = b'{"prompt": [5], "max_tokens": 1900, "ignore_eos": true, "stream": true, "logprobs": 20, "n": 4}'
    with BackgroundServer(load_tiny(), config) as server, connection_to(server, receive_buffer=4096) as silent:
        silent.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: "requests_running 4" in httpx.get(f"{server.url}/metrics").text)
        wait_until(lambda: "requests_running 0" in httpx.get(f"{server.url}/metrics").text, seconds=60)
        began = time.monotonic()
        server.stop()
        wait_until(lambda: not any(thread.name == "mainstem-server" for thread in threading.enumerate()))
    assert CLOSE_SECONDS < time.monotonic() - began < CLOSE_SECONDS + 2
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@contextmanager
def connection_to(server: BackgroundServer, *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.socket() as connection:
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect((host, int(port)))
        yield connection


def test_restarted_server_serves_on_the_same_port(load_tiny: Callable[[], AsyncEngine]) -> None:
    with (
        BackgroundServer(load_tiny(), ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)) as first,
        client(first.url) as sdk,
    ):
        kwargs: Any = {"model": MODEL, "prompt": [5, 6, 7, 8], "max_tokens": 8, "temperature": 0}
        text = sdk.completions.create(**kwargs).choices[0].text
        port = int(first.url.rpartition(":")[2])
        first.stop()
        wait_until(lambda: not any(thread.name == "mainstem-server" for thread in threading.enumerate()))
        with BackgroundServer(load_tiny(), ServerConfig(port=port, drain_seconds=0, served_model_name=MODEL)):
            reply = sdk.completions.create(**kwargs)
            assert reply.choices[0].text == text
            assert reply.usage is not None
            assert reply.usage.prompt_tokens_details is not None
            assert reply.usage.prompt_tokens_details.cached_tokens == 0


def test_port_in_use_is_said_plainly(load_tiny: Callable[[], AsyncEngine]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = ServerConfig(port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match="in use"), BackgroundServer(load_tiny(), config):
            pass


def test_address_of_another_machine_is_said_plainly() -> None:
    with pytest.raises(ConfigError, match="--host"):
        listen(ServerConfig(host="192.0.2.1", port=0))


def test_two_apps_in_one_process_share_nothing(load_tiny: Callable[[], AsyncEngine]) -> None:
    config = ServerConfig(port=0, drain_seconds=0)
    with BackgroundServer(load_tiny(), config) as one, BackgroundServer(load_tiny(), config) as other:
        httpx.post(f"{one.url}/v1/completions", json={"prompt": [5, 6], "max_tokens": 2})
        assert "mainstem_prompt_tokens_total 2.0" in httpx.get(f"{one.url}/metrics").text
        assert "mainstem_prompt_tokens_total 0.0" in httpx.get(f"{other.url}/metrics").text


async def test_app_runs_under_any_asgi_server(load_tiny: Callable[[], AsyncEngine]) -> None:
    app = create_app(load_tiny(), ServerConfig(served_model_name="mine"))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://app") as http:
        reply = await http.post("/v1/completions", json={"model": "mine", "prompt": [5], "max_tokens": 2})
    assert reply.json()["model"] == "mine"
