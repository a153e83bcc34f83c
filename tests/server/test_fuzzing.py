"""Bodies that are almost right get an answer or a refusal, and leave nothing behind; see `fuzzing` for more of them."""

from __future__ import annotations

from collections.abc import Callable

from mainstem.config import ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.server.conftest import MODEL
from tests.server.fuzzing import BODIES, fuzz


async def test_almost_right_bodies_are_answered_or_refused(load_tiny: Callable[[], AsyncEngine]) -> None:
    engine = load_tiny()
    config = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL, default_max_tokens=4)
    with BackgroundServer(engine, config) as server:
        statuses, failures = await fuzz(server.url, 400, seed=11)
        await engine.check_integrity()
        cache = engine.stats().cache
    assert failures == []
    assert (cache.protected, cache.free + cache.evictable) == (0, cache.capacity)
    # Most are wrong, yet every path has served some.
    assert {path for path, status in statuses if status == 200} == set(BODIES)
    assert {path for path, status in statuses if status == 400} == set(BODIES) - {"/cache/reset"}
