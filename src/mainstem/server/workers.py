"""Threads for work on long texts, so that running streams go on meanwhile. Tenants take turns at them.

It knows who asks and how much there is to do, and nothing of what is done.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mainstem.server.auth import tenant_of
from mainstem.server.streaming import until_disconnect
from mainstem.tokens.conversation import TENANT_PARTS

if TYPE_CHECKING:
    from starlette.requests import Request

    from mainstem.tree import Namespace

T = TypeVar("T")

THREAD_CHARACTERS = 20_000  # or ids
# Of JSON, so many bytes are parsed and read in the time that a character takes to become tokens.
BYTES_PER_CHARACTER = 4
# What a message, a part of one or a tool call costs beside its text, in characters.
PIECE_CHARACTERS = 50
# Few: each thread that tokenizes remembers 10,000 words of its own (5 MiB), and Python runs one of them at a time.
NUM_WORKERS = max(2, min(4, os.cpu_count() or 2))


class _Job(NamedTuple):
    future: Future[Any]
    work: Callable[[], Any]


class Workers:
    """A few threads, and the work that waits for one: tenants take turns, and the work of one goes in its order.

    What is cancelled before it has begun is never begun. Safe to use from several threads and event loops.

    Args:
        number: of threads.
    """

    def __init__(self, number: int) -> None:
        self._threads = ThreadPoolExecutor(number, thread_name_prefix="mainstem-text")
        self._idle = number
        # Whose turn is next is first. Nobody without work is in it.
        self._waiting: OrderedDict[Hashable, OrderedDict[Future[Any], Callable[[], Any]]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_waiting(self) -> int:
        """Work that has not begun."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    def submit(self, tenant: Hashable, work: Callable[[], T]) -> Future[T]:
        """What `work` is going to give."""
        future: Future[T] = Future()
        with self._lock:
            if self._idle:
                self._threads.submit(self._run)
                self._idle -= 1
            self._waiting.setdefault(tenant, OrderedDict())[future] = work
        future.add_done_callback(partial(self._forget, tenant))
        return future

    def _run(self) -> None:
        """Work as long as there is anything to do."""
        while (job := self._next()) is not None:
            _do(*job)

    def _next(self) -> _Job | None:
        with self._lock:
            while self._waiting:
                tenant, own = self._waiting.popitem(last=False)
                job = _Job(*own.popitem(last=False))
                if own:
                    self._waiting[tenant] = own
                if job.future.set_running_or_notify_cancel():
                    return job
            self._idle += 1
            return None

    def _forget(self, tenant: Hashable, future: Future[Any]) -> None:
        with self._lock:
            own = self._waiting.get(tenant, OrderedDict())
            if own.pop(future, None) is not None and not own:
                del self._waiting[tenant]


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
        del future, work  # the error knows this frame, which must not know the error
    else:
        future.set_result(result)


_workers = Workers(NUM_WORKERS)


async def in_worker(namespace: Namespace, work: Callable[[], T]) -> T:
    """What `work` gives, from a worker thread, when it is the turn of the tenant to whom a namespace belongs."""
    return await asyncio.wrap_future(_workers.submit(namespace[:TENANT_PARTS], work))


async def off_loop(namespace: Namespace, size: int, work: Callable[[], T]) -> T:
    """What `work` gives; from a worker thread if there are many characters, or ids, to work on."""
    return await in_worker(namespace, work) if size > THREAD_CHARACTERS else work()


async def work_for(request: Request, size: int, work: Callable[[], T]) -> T:
    """As `off_loop`, for who sent a request, all of whose body has come.

    Raises:
        ClientGone: when the client goes away first; then the work is dropped, unless it has begun.
    """
    if size <= THREAD_CHARACTERS:
        return work()
    return await until_disconnect(request.receive, in_worker(tenant_of(request), work))
