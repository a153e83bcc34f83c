"""Tests of the engine that many callers share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainstem.config import EngineConfig
from mainstem.engine import AsyncEngine, RequestOutput
from mainstem.engine.core import EngineCore
from mainstem.errors import EngineDied, EngineStopped, InvalidRequest, PromptTooLong
from mainstem.params import SamplingParams
from mainstem.tree import TokenArray
from tests.engine.support import DenseModel, greedy, random_tokens


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="4MiB"))
    yield engine
    await engine.check_integrity()
    await engine.shutdown(0.0)


async def collect(engine: AsyncEngine, prompt: TokenArray, params: SamplingParams) -> list[RequestOutput]:
    return [output async for output in engine.generate(prompt, params)]


async def until_idle(engine: AsyncEngine) -> None:
    async with asyncio.timeout(5):
        while engine.stats().running or engine.stats().waiting:
            await asyncio.sleep(0.005)


async def test_concurrent_callers_get_their_own_replies(engine: AsyncEngine, tiny_model: Path) -> None:
    prompts = [random_tokens(10 + n, seed=n) for n in range(8)]
    results = await asyncio.gather(*(collect(engine, prompt, greedy(6)) for prompt in prompts))
    dense = DenseModel(tiny_model)
    for prompt, outputs in zip(prompts, results, strict=True):
        tokens = [token for output in outputs for token in output.token_ids]
        assert tokens == dense.continue_greedily(prompt.tolist(), 6)


async def test_outputs_arrive_one_token_at_a_time(engine: AsyncEngine) -> None:
    outputs = await collect(engine, random_tokens(10), greedy(5))
    assert [len(output.token_ids) for output in outputs] == [1] * 5
    assert [output.finish_reason for output in outputs] == [None] * 4 + ["length"]
    assert [output.usage.completion_tokens for output in outputs] == [1, 2, 3, 4, 5]


async def test_every_reply_of_n_ends_once(engine: AsyncEngine) -> None:
    outputs = await collect(engine, random_tokens(10), greedy(4, n=3))
    assert sorted(output.index for output in outputs if output.finish_reason) == [0, 1, 2]


async def test_closing_a_reply_aborts_it_and_keeps_what_was_computed(engine: AsyncEngine) -> None:
    replies = engine.generate(random_tokens(50), greedy(1500))
    async for output in replies:
        if output.usage.completion_tokens >= 5:
            break
    await replies.aclose()
    await until_idle(engine)
    stats = engine.stats()
    assert (stats.requests_aborted, stats.cache.protected) == (1, 0)
    assert 50 + 5 - 1 <= stats.cache.evictable < 1000
    again = await collect(engine, random_tokens(50), greedy(1))
    assert again[-1].usage.cached_tokens == 49


async def test_cancelling_the_callers_task_aborts_all_n_replies(engine: AsyncEngine) -> None:
    task = asyncio.create_task(collect(engine, random_tokens(30), greedy(1500, n=4)))
    while engine.stats().running < 4:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(engine)
    assert engine.stats().requests_aborted == 4


async def test_what_cannot_be_served_is_refused_before_the_first_output(engine: AsyncEngine) -> None:
    with pytest.raises(PromptTooLong):
        await collect(engine, random_tokens(3000), greedy(1))
    with pytest.raises(InvalidRequest):
        await collect(engine, random_tokens(0), greedy(1))


async def test_reset_says_how_much_it_dropped(engine: AsyncEngine) -> None:
    await collect(engine, random_tokens(20), greedy(3))
    assert await engine.reset_cache() == 22
    assert await engine.reset_cache() == 0
    assert engine.stats().cache.free == engine.stats().cache.capacity


async def test_shutdown_lets_running_replies_finish(tiny_model: Path) -> None:
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="4MiB"))
    running = asyncio.create_task(collect(engine, random_tokens(20), greedy(30)))
    while not engine.stats().running:
        await asyncio.sleep(0.005)
    closing = asyncio.create_task(engine.shutdown(30.0))
    await asyncio.sleep(0)
    with pytest.raises(EngineStopped):
        await collect(engine, random_tokens(20), greedy(1))
    assert (await running)[-1].finish_reason == "length"
    await closing


async def test_shutdown_aborts_what_does_not_finish_in_time(tiny_model: Path) -> None:
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="4MiB"))
    running = asyncio.create_task(collect(engine, random_tokens(20), greedy(2000)))
    while not engine.stats().running:
        await asyncio.sleep(0.005)
    await engine.shutdown(0.0)
    assert (await running)[-1].finish_reason == "abort"


async def test_an_engine_that_has_died_answers_everyone(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="4MiB"))
    held, holding = threading.Event(), threading.Event()

    def die(_core: EngineCore) -> None:
        holding.set()
        held.wait(10)
        raise ZeroDivisionError("a step that no step survives")

    monkeypatch.setattr(EngineCore, "step", die)
    asking = [asyncio.create_task(collect(engine, random_tokens(20), greedy(3)))]
    await asyncio.to_thread(holding.wait, 10)
    # These come while the step runs that is the last one.
    asking += [asyncio.create_task(collect(engine, random_tokens(30), greedy(3)))]
    questions = [asyncio.create_task(engine.reset_cache()), asyncio.create_task(engine.check_integrity())]
    await asyncio.sleep(0.05)
    held.set()
    async with asyncio.timeout(5):
        for outcome in await asyncio.gather(*asking, *questions, return_exceptions=True):
            assert isinstance(outcome, EngineDied)
        assert engine.died
        with pytest.raises(EngineDied):
            await collect(engine, random_tokens(20), greedy(1))
        with pytest.raises(EngineDied):
            await engine.reset_cache()
        await engine.shutdown(30.0)


async def test_an_engine_that_has_stopped_says_so(tiny_model: Path) -> None:
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="4MiB"))
    await engine.shutdown(0.0)
    with pytest.raises(EngineStopped):
        await engine.reset_cache()
