"""A server over a tiny real model, shared by the tests of a module, and the clients that talk to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer

MODEL = "tiny"
KEYLESS = "none"


@pytest.fixture(scope="session")
def load_tiny(tiny_model: Path) -> Callable[[], AsyncEngine]:
    """Makes a fresh engine over the tiny model: 2,048 tokens of context, 8,192 slots."""
    return lambda: AsyncEngine.load(
        EngineConfig(model=str(tiny_model), kv_memory="4MiB", kv_dtype="float32", device="cpu")
    )


@pytest.fixture(scope="module")
def server(load_tiny: Callable[[], AsyncEngine]) -> Iterator[BackgroundServer]:
    with BackgroundServer(load_tiny(), ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)) as running:
        yield running


@pytest.fixture
def http(server: BackgroundServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture
def sdk(server: BackgroundServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYLESS, max_retries=0) as client:
        yield client


def metric(http: httpx.Client, name: str) -> float:
    """The value of one series of /metrics; `name` includes its labels."""
    for line in http.get("/metrics").text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"/metrics has no {name}")


def wait_until(condition: Callable[[], bool], *, seconds: float = 5.0) -> None:
    """Returns as soon as the condition holds; fails when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def assert_pool_at_rest(http: httpx.Client) -> None:
    """Nothing runs, no slot is held, and every slot is accounted for."""
    assert metric(http, "mainstem_num_requests_running") == 0
    assert metric(http, "mainstem_num_requests_waiting") == 0
    free, evictable, protected = (
        metric(http, f'mainstem_kv_slots{{state="{state}"}}') for state in ("free", "evictable", "protected")
    )
    assert protected == 0
    assert free + evictable == 8192
