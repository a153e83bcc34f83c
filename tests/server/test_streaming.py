"""Merging streams and watching for disconnects, alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from mainstem.errors import EngineFailed
from mainstem.server.generation import merge
from mainstem.server.streaming import ClientGone, EventStream, event, until_disconnect


class Letters:
    """A stream of letters that remembers whether it was closed."""

    def __init__(self, letters: str, *, error: Exception | None = None, endless: bool = False) -> None:
        self.letters, self.error, self.endless, self.closed = letters, error, endless, False

    async def stream(self) -> AsyncGenerator[str]:
        try:
            for letter in self.letters:
                await asyncio.sleep(0)
                yield letter
            if self.error:
                raise self.error
            if self.endless:
                await asyncio.sleep(3600)
        finally:
            self.closed = True


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_merge_keeps_the_order_within_each_stream(count: int) -> None:
    sources = [Letters("abc") for _ in range(count)]
    got: dict[int, str] = dict.fromkeys(range(count), "")
    async for position, letter in merge([source.stream() for source in sources]):
        got[position] += letter
    assert got == dict.fromkeys(range(count), "abc")
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_a_merge_closes_every_stream(count: int) -> None:
    sources = [Letters("a", endless=True) for _ in range(count)]
    merged = merge([source.stream() for source in sources])
    for _ in range(count):
        await anext(merged)
    await merged.aclose()
    assert all(source.closed for source in sources)


async def test_an_error_in_one_stream_closes_the_others() -> None:
    sources = [Letters("a", endless=True), Letters("", error=ValueError("broken"))]
    with pytest.raises(ValueError, match="broken"):
        async for _ in merge([source.stream() for source in sources]):
            pass
    assert all(source.closed for source in sources)


async def test_cancelling_a_merge_closes_every_stream() -> None:
    sources = [Letters("ab", endless=True) for _ in range(2)]
    merged = merge([source.stream() for source in sources])

    async def consume() -> None:
        async for _ in merged:
            pass

    task = asyncio.create_task(consume())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(source.closed for source in sources)


async def stays() -> dict[str, Any]:
    await asyncio.sleep(3600)
    raise AssertionError


async def leaves() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def test_work_is_done_while_the_client_stays() -> None:
    assert await until_disconnect(stays, asyncio.sleep(0.01, "done")) == "done"


async def test_work_is_cancelled_and_awaited_when_the_client_leaves() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            ended.append("cleaned up")

    with pytest.raises(ClientGone):
        await until_disconnect(leaves, work())
    assert ended == ["cleaned up"]


async def test_errors_of_the_work_pass_through() -> None:
    async def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await until_disconnect(stays, work())


def test_event_is_one_line_of_data() -> None:
    assert event({"text": "a\n\nb ü"}) == 'data: {"text":"a\\n\\nb ü"}\n\n'.encode()


async def sent_by(events: AsyncGenerator[bytes], receive: Any) -> tuple[list[dict[str, Any]], bool]:
    """What an event stream sends, and whether it released what its events come from."""
    sent: list[dict[str, Any]] = []
    closed = False

    async def send(message: Any) -> None:
        sent.append(message)

    async def close() -> None:
        nonlocal closed
        closed = True

    await EventStream(events, close=close, headers={})({}, receive, send)
    return sent, closed


async def test_error_in_mid_stream_is_the_last_event() -> None:
    async def events() -> AsyncGenerator[bytes]:
        yield event({"a": 1})
        raise EngineFailed("the engine failed")

    sent, closed = await sent_by(events(), stays)
    assert closed
    last = sent[-1]
    assert not last["more_body"]
    assert json.loads(last["body"].removeprefix(b"data: "))["error"]["message"] == "the engine failed"
    assert b"[DONE]" not in b"".join(message.get("body", b"") for message in sent)


async def test_unforeseen_error_in_mid_stream_tells_the_log_and_not_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def events() -> AsyncGenerator[bytes]:
        yield event({"a": 1})
        raise ZeroDivisionError("a secret of ours")

    sent, closed = await sent_by(events(), stays)
    assert closed
    assert b"internal_error" in sent[-1]["body"]
    assert b"secret" not in sent[-1]["body"]
    assert "a secret of ours" in caplog.text


async def test_stream_that_never_began_is_released_too() -> None:
    async def events() -> AsyncGenerator[bytes]:
        yield event({"a": 1})

    _, closed = await sent_by(events(), leaves)
    assert closed
