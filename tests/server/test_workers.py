"""Work on long texts: away from the event loop, and on few threads."""

from __future__ import annotations

import asyncio
import threading

from mainstem.server.workers import NUM_WORKERS, THREAD_CHARACTERS, in_worker, off_loop


async def test_long_texts_are_worked_on_away_from_the_loop_and_short_ones_in_it() -> None:
    here = threading.get_ident()
    assert await off_loop(THREAD_CHARACTERS + 1, threading.get_ident) != here
    assert await off_loop(THREAD_CHARACTERS, threading.get_ident) == here


async def test_however_much_there_is_to_do_few_threads_do_it() -> None:
    all_busy = threading.Barrier(NUM_WORKERS)

    def work() -> int:
        all_busy.wait(10)
        return threading.get_ident()

    threads = await asyncio.gather(*(in_worker(work) for _ in range(4 * NUM_WORKERS)))
    assert len(set(threads)) == NUM_WORKERS
