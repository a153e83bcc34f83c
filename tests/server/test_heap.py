"""Freed memory goes back to the operating system while a server runs."""

from __future__ import annotations

import asyncio
import contextlib

import psutil
import pytest

from mainstem.server.heap import give_back, malloc_trim


@pytest.mark.skipif(malloc_trim() is None, reason="the C library has no malloc_trim")
def test_what_is_free_between_what_stays_is_given_back() -> None:
    process = psutil.Process()
    # Below the size from which glibc asks the system for each by itself, and each with its own pages.
    pieces = [bytearray(60_000) for _ in range(1_000)]
    stay = pieces[::10]
    del pieces
    before = process.memory_info().rss

    async def wait() -> None:
        task = asyncio.create_task(give_back(interval_s=0.01))
        await asyncio.sleep(0.2)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(wait())
    assert before - process.memory_info().rss > 25_000_000
    assert len(stay) == 100
