"""Tests over HTTP that what one key asks for does not hold up another, counted in steps and not in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from unittest import mock

import httpx
import numpy as np
import pytest

from mainstem.config import ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.scheduler import Request, Scheduler, SchedulerOutput
from mainstem.server import BackgroundServer
from tests.server.conftest import MODEL, metric, wait_until

FLOOD, BATCHES, LENGTH, REPLY = 200, 4, 100, 64
# One to make way, one for what is left of a prompt that is being computed, and its own; twice that.
MOST_STEPS = 6


@pytest.fixture(scope="module")
def engine(load_tiny: Callable[[], AsyncEngine]) -> AsyncEngine:
    return load_tiny()


@pytest.fixture(scope="module")
def server(engine: AsyncEngine) -> Iterator[BackgroundServer]:
    """Replaces the open server: two tenants."""
    config = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL, api_key="flood-key,small-key")
    with BackgroundServer(engine, config) as running:
        yield running


def of_flood(state: str) -> str:
    """The metric of who floods, the first key's tenant."""
    name = f"key-{sha256(b'flood-key').hexdigest()[:8]}"
    return f'mainstem_tenant_requests{{state="{state}",tenant="{name}"}}'


class Steps:
    """Counts the engine's steps, and notes after how many each request had its first token."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._steps = 0
        self._came: dict[Request, int] = {}
        self.waited: dict[tuple[object, ...], list[int]] = {}

    def add(self, request: Request) -> None:
        self._came[request] = self._steps
        Scheduler.add(self._scheduler, request)

    def schedule(self) -> SchedulerOutput:
        output = Scheduler.schedule(self._scheduler)
        self._steps += 1
        for request, _, _ in output.sources:
            if request in self._came and request.num_generated == 0:
                self.waited.setdefault(request.namespace[:2], []).append(self._steps - self._came.pop(request))
        return output


def test_a_flood_of_one_key_does_not_hold_up_another(engine: AsyncEngine, http: httpx.Client) -> None:
    operator = httpx.Client(base_url=http.base_url, headers={"authorization": "Bearer flood-key"})
    scheduler = engine._engine.core.scheduler
    steps = Steps(scheduler)
    rng = np.random.default_rng(0)

    def ask(key: str, count: int, reply: int) -> httpx.Response:
        body = {
            "prompt": rng.integers(3, 448, (count, LENGTH)).tolist(),
            "max_tokens": reply,
            "ignore_eos": True,
            "temperature": 0,
        }
        return http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})

    with (
        mock.patch.object(scheduler, "add", steps.add),
        mock.patch.object(scheduler, "schedule", steps.schedule),
        ThreadPoolExecutor(BATCHES) as others,
        operator,
    ):
        flood = [others.submit(ask, "flood-key", FLOOD // BATCHES, REPLY) for _ in range(BATCHES)]
        wait_until(lambda: engine.stats().waiting > FLOOD // 2)
        states = {state: metric(operator, of_flood(state)) for state in ("waiting", "running")}
        assert states["waiting"] > 0
        assert states["running"] > 0
        assert http.get("/metrics", headers={"authorization": "Bearer small-key"}).status_code == 403
        small = ask("small-key", 1, 1)
        assert not any(batch.done() for batch in flood)
        assert {reply.status_code for reply in (small, *(batch.result() for batch in flood))} == {200}
    by_tenant = {len(waited): waited for waited in steps.waited.values()}
    assert max(by_tenant[1]) <= MOST_STEPS
    assert max(by_tenant[FLOOD]) > 10 * MOST_STEPS
    assert scheduler.counts.preemptions <= 1
