"""Work on long texts: away from the event loop, on few threads, and fair to tenants."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from mainstem.server.workers import NUM_WORKERS, THREAD_CHARACTERS, Workers, in_worker, off_loop

TENANT = ("tenant", "a")


async def test_long_texts_are_worked_on_away_from_the_loop_and_short_ones_in_it() -> None:
    here = threading.get_ident()
    assert await off_loop(TENANT, THREAD_CHARACTERS + 1, threading.get_ident) != here
    assert await off_loop(TENANT, THREAD_CHARACTERS, threading.get_ident) == here


async def test_however_much_there_is_to_do_few_threads_do_it() -> None:
    all_busy = threading.Barrier(NUM_WORKERS)

    def work() -> int:
        all_busy.wait(10)
        return threading.get_ident()

    threads = await asyncio.gather(*(in_worker(TENANT, work) for _ in range(4 * NUM_WORKERS)))
    assert len(set(threads)) == NUM_WORKERS


@contextmanager
def all_busy(workers: Workers, number: int) -> Iterator[None]:
    """Every thread of the workers has something to do, for a tenant `a`."""
    ready, go_on = threading.Barrier(number + 1), threading.Event()

    def block() -> None:
        ready.wait(10)
        go_on.wait(10)

    for _ in range(number):
        workers.submit("a", block)
    ready.wait(10)
    try:
        yield
    finally:
        go_on.set()


def noting(order: list[str], name: str) -> Callable[[], None]:
    return partial(order.append, name)


def test_a_tenant_does_not_wait_for_the_queue_of_another() -> None:
    workers, order = Workers(1), list[str]()
    with all_busy(workers, 1):
        waiting = [workers.submit("a", noting(order, f"a{i}")) for i in range(20)]
        waiting += [workers.submit("b", noting(order, f"b{i}")) for i in range(3)]
    for future in waiting:
        future.result(10)
    assert order[:6] == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert order[6:] == [f"a{i}" for i in range(3, 20)]


async def test_work_that_nobody_waits_for_any_more_is_not_begun() -> None:
    workers, order = Workers(1), list[str]()
    with all_busy(workers, 1):
        waiting = [asyncio.wrap_future(workers.submit(name, noting(order, name))) for name in "abab"]
        for left in (waiting[0], waiting[1], waiting[3]):
            left.cancel()
        await asyncio.sleep(0)  # asyncio hands it on in the next round
        assert workers.num_waiting == 1
    await waiting[2]
    assert order == ["a"]


def test_nothing_is_kept_of_work_that_is_done_or_failed() -> None:
    class Text:
        pass

    def use(_: Text, *, fails: bool) -> None:
        if fails:
            raise ValueError("no such text")

    workers = Workers(1)
    gone = []
    gc.disable()
    try:
        for fails in (False, True):
            text = Text()
            gone.append(weakref.ref(text))
            future = workers.submit("a", partial(use, text, fails=fails))
            if fails:
                with pytest.raises(ValueError, match="no such text"):
                    future.result(10)
            else:
                future.result(10)
            del text, future
        workers.submit("a", int).result(10)
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()
    assert workers.num_waiting == 0


def test_several_event_loops_share_the_threads() -> None:
    together = threading.Barrier(2)

    def wait() -> str:
        together.wait(10)
        return threading.current_thread().name

    def ask(names: list[str]) -> None:
        names.append(asyncio.run(in_worker(TENANT, wait)))

    names: list[str] = []
    loops = [threading.Thread(target=ask, args=(names,)) for _ in range(2)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join(10)
    assert len(names) == 2
    assert all(name.startswith("mainstem-text") for name in names)
