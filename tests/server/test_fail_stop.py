"""An engine that finds its own bookkeeping broken stops for good, and everyone is told: nobody waits for ever.

The fault is made by hand: no request is known that breaks an invariant.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.model.runner import ModelRunner
from mainstem.scheduler import Request, Scheduler
from mainstem.server import BackgroundServer
from tests.engine.support import kv_memory_for
from tests.server.conftest import MODEL, metric, wait_until


def broken(*_args: object, **_more: object) -> None:
    raise AssertionError("slots do not add up")


def load(folder: Path, **settings: Any) -> AsyncEngine:
    chosen: dict[str, Any] = {"kv_memory": "4MiB", "max_num_seqs": 2} | settings
    return AsyncEngine.load(EngineConfig(model=str(folder), kv_dtype="float32", device="cpu", **chosen))


def asks(prompt: int, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": [prompt, 6, 7], "max_tokens": 1900, "ignore_eos": True, **more}


def outcome(url: str, body: dict[str, Any]) -> Any:
    """The error that a client is given, in the reply or at the end of its stream."""
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
    if not body.get("stream"):
        assert response.status_code == 503
        return response.json()["error"]["code"]
    return json.loads(response.text.strip().rpartition("data: ")[2])["error"]["code"]


def a_reply_ends(_: pytest.MonkeyPatch) -> dict[str, Any]:
    return {}


def the_model_fails(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("the model")

    real = ModelRunner.execute
    calls = iter(range(10**6))
    patch.setattr(ModelRunner, "execute", lambda *args: (real if next(calls) < 50 else fail)(*args))
    return {}


def memory_runs_out(_: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"kv_memory": kv_memory_for(400), "max_model_len": 400}


@pytest.mark.parametrize("how", [a_reply_ends, the_model_fails, memory_runs_out])
def test_everyone_is_told_when_memory_cannot_be_given_back(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[pytest.MonkeyPatch], dict[str, Any]]
) -> None:
    settings = how(monkeypatch)
    monkeypatch.setattr(Scheduler, "_release", broken)
    config = ServerConfig(port=0, drain_seconds=30, served_model_name=MODEL)
    bodies = [asks(5, stream=True), asks(8, max_tokens=100), asks(9), asks(10, stream=True)]
    with BackgroundServer(load(tiny_model, **settings), config) as server, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda body: outcome(server.url, body), bodies)) == ["engine_died"] * 4
        assert_refuses(server.url)


def test_everyone_is_told_when_a_client_leaves_and_its_memory_cannot_be_given_back(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServerConfig(port=0, drain_seconds=30, served_model_name=MODEL)
    with (
        BackgroundServer(load(tiny_model), config) as server,
        httpx.Client(base_url=server.url, timeout=30) as http,
        ThreadPoolExecutor(2) as pool,
    ):
        with http.stream("POST", "/v1/completions", json=asks(5, stream=True)) as leaving:
            lines = leaving.iter_lines()
            next(lines)
            others = [pool.submit(outcome, server.url, asks(prompt)) for prompt in (8, 9)]
            wait_until(lambda: metric(http, "mainstem_num_requests_waiting") == 1)
            monkeypatch.setattr(Scheduler, "_release", broken)
        assert [other.result() for other in others] == ["engine_died"] * 2
        assert_refuses(server.url)


def test_a_request_that_got_lost_in_a_failed_step_ends_the_engine(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step is given up, but the scheduler knows it no more: nobody would ever answer it."""

    def lose(scheduler: Scheduler, request: Request) -> None:
        scheduler.running.remove(request)
        raise ZeroDivisionError("half done")

    monkeypatch.setattr(Scheduler, "finish", lose)
    config = ServerConfig(port=0, drain_seconds=30, served_model_name=MODEL)
    with BackgroundServer(load(tiny_model), config) as server:
        assert outcome(server.url, asks(5, max_tokens=3)) == "engine_died"


def test_a_stream_is_told_when_the_engine_dies_of_being_stopped(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)
    with (
        BackgroundServer(load(tiny_model), config) as server,
        httpx.stream("POST", f"{server.url}/v1/completions", json=asks(5, stream=True), timeout=30) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        monkeypatch.setattr(Scheduler, "_release", broken)
        server.stop()
        assert "engine_died" in "".join(lines)


def assert_refuses(url: str) -> None:
    """As a server whose engine has died does: with a reason, whatever is asked of it."""
    with httpx.Client(base_url=url, timeout=30) as http:
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
        for response in (
            http.get("/health"),
            http.post("/v1/completions", json=asks(5)),
            http.post("/v1/chat/completions", json={**chat, "stream": True}),
            http.post("/v1/responses", json={"input": "Hello"}),
            http.post("/cache/reset"),
        ):
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "engine_died"
            assert "Its log says why" in response.json()["error"]["message"]
        response = http.post("/v1/messages", json=chat)
        assert (response.status_code, response.json()["error"]["type"]) == (503, "overloaded_error")
        assert http.get("/metrics").status_code == 200


PROGRAM = """
import sys
from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.scheduler import Scheduler
from mainstem.server import serve

def broken(*args, **more):
    raise AssertionError("slots do not add up")

Scheduler._release = broken
engine = AsyncEngine.load(EngineConfig(model=sys.argv[1], kv_memory="4MiB", device="cpu"))
serve(engine, ServerConfig(port=0, drain_seconds=600), on_ready=lambda url: print(url, flush=True))
print("ended", flush=True)
"""


def test_ctrl_c_ends_the_process_though_its_engine_has_died(tiny_model: Path) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tiny_model)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as child:
        try:
            assert child.stdout is not None
            url = child.stdout.readline().strip()
            assert outcome(url, {"prompt": [5, 6, 7], "max_tokens": 3}) == "engine_died"
            child.send_signal(signal.SIGINT)
            output, errors = child.communicate(timeout=60)
        finally:
            if child.poll() is None:
                child.kill()
    assert (output, child.returncode) == ("ended\n", 0)
    assert "slots do not add up" in errors
