"""What one caller asks of the engine at once, and the outputs on their way back, to a thread or to an event loop.

It knows submissions and outputs. It does not know what is asked, or what becomes of the outputs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import NamedTuple, TypeAlias

from mainstem.engine.outputs import RequestOutput
from mainstem.engine.reply import Sink
from mainstem.engine.thread import EngineThread
from mainstem.errors import MainstemError

Submission: TypeAlias = Callable[[Sink], list[str]]
"""Queues requests, given where their outputs go; returns the requests' ids. Called in the engine's thread."""


class Arrival(NamedTuple):
    """An output, and which of the submissions it belongs to."""

    submission: int
    output: RequestOutput


class _Letter(NamedTuple):
    submission: int
    news: RequestOutput | MainstemError

    def open(self) -> Arrival:
        """What is in it; an error is raised."""
        if isinstance(self.news, MainstemError):
            raise self.news
        return Arrival(self.submission, self.news)


class Asked:
    """Submissions that go to the engine together and whose outputs come back as one sequence.

    Args:
        engine: whose thread submits them.
        submissions: if one of them fails, none goes on.
        num_replies: how many replies they have altogether.
    """

    def __init__(self, engine: EngineThread, submissions: Sequence[Submission], num_replies: int) -> None:
        self._engine = engine
        self._submissions = submissions
        self._num_replies = num_replies
        self._ids: list[list[str]] = [[] for _ in submissions]

    def outputs(self) -> Generator[Arrival]:
        """Submit, and yield the outputs until every reply has ended. Closing it aborts what is left.

        Raises:
            MainstemError: what submitting raises, or the first error that comes instead of an output.
        """
        letters: SimpleQueue[_Letter] = SimpleQueue()
        left = self._num_replies
        try:
            self._submit(letters.put).result()
            while left:
                arrival = letters.get().open()
                left -= arrival.output.finish_reason is not None
                yield arrival
        finally:
            if left:
                self.abort()

    async def outputs_async(self) -> AsyncGenerator[Arrival]:
        """What `outputs` does, for a task in an event loop."""
        letters: asyncio.Queue[_Letter] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(letter: _Letter) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(letters.put_nowait, letter)

        left = self._num_replies
        try:
            await asyncio.wrap_future(self._submit(deliver))
            while left:
                arrival = (await letters.get()).open()
                left -= arrival.output.finish_reason is not None
                yield arrival
        finally:
            if left:
                self.abort()

    def abort(self, submission: int | None = None) -> None:
        """Have one submission's replies, or all, end where they are; returns at once."""
        lists = self._ids if submission is None else [self._ids[submission]]
        # They are empty until the engine's thread has submitted, and read by it after that.
        self._engine.send(lambda: self._engine.core.abort(list(chain.from_iterable(lists))))

    def _submit(self, deliver: Callable[[_Letter], None]) -> Future[None]:
        def submit() -> None:
            for index, submission in enumerate(self._submissions):
                self._ids[index] += submission(partial(_post, deliver, index))

        return self._engine.ask(submit)


def _post(deliver: Callable[[_Letter], None], submission: int, news: RequestOutput | MainstemError) -> None:
    deliver(_Letter(submission, news))
