"""How the measuring client finds out how a server wants to be asked, and what it notes of replies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mainstem.bench.http import CompletionsClient, Dialect
from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.errors import MainstemError
from mainstem.server import BackgroundServer
from tests.bench.fake_server import EXTENSIONS, Habits, fake_server


def client(url: str, **options: Any) -> CompletionsClient:
    """A client for a server that answers at once."""
    given: dict[str, Any] = {"model": None, "api_key": None, "connections": 8, "silence_s": 20.0}
    return CompletionsClient(url, **(given | options))


@pytest.mark.parametrize(
    ("habits", "dialect"),
    [
        (Habits(), Dialect(token_ids=True, extensions=True, streams_ids=True)),
        (Habits(streams_ids=False), Dialect(token_ids=True, extensions=True, streams_ids=False)),
        (Habits(takes_extensions=False), Dialect(token_ids=True, extensions=False, streams_ids=False)),
        (Habits(takes_ids=False), Dialect(token_ids=False, extensions=True, streams_ids=False)),
        (Habits(streams_ids=False, tokenizes=False), Dialect(token_ids=False, extensions=True, streams_ids=False)),
        (
            Habits(takes_ids=False, takes_extensions=False),
            Dialect(token_ids=False, extensions=False, streams_ids=False),
        ),
    ],
)
async def test_the_best_dialect_that_a_server_takes_is_found(habits: Habits, dialect: Dialect) -> None:
    with fake_server(habits) as url:
        async with client(url) as server:
            assert server.dialect == dialect


async def test_a_reply_is_noted_with_its_ids_times_and_usage() -> None:
    with fake_server(Habits()) as url:
        async with client(url) as server:
            reply = await server.complete([7, 8, 9, 10], 3)
    assert reply.token_ids == [500, 501, 502]
    assert reply.text == " w0 w1 w2"
    assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (4, 2, 3)
    assert len(reply.token_times) == 3
    assert reply.ttft > 0
    assert reply.seconds_per_token == pytest.approx((reply.token_times[2] - reply.token_times[0]) / 2)


async def test_a_server_without_usage_leaves_tokens_unknown_and_the_reply_counted() -> None:
    with fake_server(Habits(tells_usage=False)) as url:
        async with client(url) as server:
            reply = await server.complete([7], 3)
    assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (None, None, 3)


async def test_extending_in_ids_takes_the_ids_of_the_reply() -> None:
    with fake_server(Habits()) as url:
        async with client(url) as server:
            prompt = server.prompt([7, 8])
            assert server.extend(prompt, await server.complete(prompt, 2), [9]) == [7, 8, 500, 501, 9]


async def test_where_the_stream_has_no_ids_the_server_is_asked_for_them() -> None:
    with fake_server(Habits(streams_ids=False)) as url:
        async with client(url) as server:
            reply = await server.complete([7], 2)
    assert reply.token_ids == [1002, 1002]


async def test_extending_in_text_puts_a_word_for_every_token() -> None:
    with fake_server(Habits(takes_ids=False)) as url:
        async with client(url) as server:
            prompt = server.prompt([0, 1])
            assert prompt == " ba be"
            assert server.extend(prompt, await server.complete(prompt, 1), [2]) == " ba be w0 bi"


async def test_fields_beyond_openais_are_sent_only_where_they_are_taken() -> None:
    for habits in (Habits(), Habits(takes_extensions=False)):
        with fake_server(habits) as url:
            async with client(url) as server:
                await server.complete(server.prompt([7]), 3)
        body = habits.asked[-1]
        assert body["temperature"] == 0
        assert all((name in body) == habits.takes_extensions for name in EXTENSIONS)


async def test_the_first_model_is_asked_unless_one_is_named() -> None:
    for wanted, named in ((None, "a"), ("b", "b")):
        habits = Habits(models=("a", "b"), context=512)
        with fake_server(habits) as url:
            async with client(url, model=wanted) as server:
                assert server.context == 512
        assert habits.asked[0]["model"] == named


async def test_mainstems_own_server_is_spoken_to_in_ids(tiny_model: Path) -> None:
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="4MiB", device="cpu"))
    with BackgroundServer(engine, ServerConfig(port=0, drain_seconds=0)) as running:
        async with client(f"{running.url}/v1") as server:
            assert server.dialect == Dialect(token_ids=True, extensions=True, streams_ids=True)
            assert server.context == 2048
            prompt = server.prompt(range(100, 200))
            first = await server.complete(prompt, 5)
            second = await server.complete(server.extend(prompt, first, [50]), 5)
    assert (first.completion_tokens, first.cached_tokens) == (5, 0)
    assert (second.prompt_tokens, second.cached_tokens) == (106, 104)


async def test_nobody_at_the_address_is_said_so() -> None:
    with pytest.raises(MainstemError, match=r"no answer from http://127\.0\.0\.1:9/v1: .*is the server running\?"):
        await client("http://127.0.0.1:9/v1").__aenter__()


async def test_an_address_without_v1_is_said_so() -> None:
    with fake_server(Habits()) as url, pytest.raises(MainstemError, match=r"does its URL end in /v1\?"):
        await client(url.removesuffix("/v1")).__aenter__()


async def test_a_server_without_models_needs_a_name() -> None:
    with fake_server(Habits(models=())) as url:
        with pytest.raises(MainstemError, match="lists no model; name one with --model"):
            await client(url).__aenter__()
        async with client(url, model="hidden") as server:
            assert server.context is None


async def test_a_reply_that_breaks_off_is_an_error_in_the_servers_words() -> None:
    with fake_server(Habits(fails_at=2)) as url:
        async with client(url) as server:
            with pytest.raises(MainstemError, match="gave up: out of memory"):
                await server.complete([7], 3)


async def test_a_silent_server_is_given_up() -> None:
    habits = Habits()
    with fake_server(habits) as url:
        async with client(url, silence_s=0.1) as server:
            habits.token_s = 0.5
            with pytest.raises(MainstemError, match=r"sent nothing for 0\.1 s; .* --timeout"):
                await server.complete([7], 1)


async def test_no_more_than_the_given_number_run_at_once() -> None:
    habits = Habits()
    with fake_server(habits) as url:
        async with client(url, connections=2) as server, asyncio.TaskGroup() as group:
            habits.gathers = 2
            for _ in range(6):
                group.create_task(server.complete([7], 3))
    assert habits.most_running == 2
