"""The engine for many callers at once: a thread steps it, asyncio tasks read its outputs.

Every touch of the core happens in the engine's thread; callers leave commands for it. It knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from mainstem.config import EngineConfig
from mainstem.engine.build import BuiltEngine, build_engine
from mainstem.engine.outputs import EngineStats, RequestOutput
from mainstem.errors import EngineStopped, MainstemError
from mainstem.model import Progress, no_progress
from mainstem.params import SamplingParams
from mainstem.tree import Namespace, TokenArray

log = logging.getLogger(__name__)
T = TypeVar("T")
News = RequestOutput | MainstemError

# How often, at most, an idle engine verifies its invariants.
IDLE_CHECK_S = 60.0


class _Mailbox:
    """One caller's outputs on their way from the engine's thread to an event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[News] = asyncio.Queue()


class AsyncEngine:
    """An engine in a thread of its own, which loads the model, steps it, and ends with `shutdown`.

    The model is loaded in that thread and not in the caller's because OpenMP gives every thread that computes a team of
    its own; with two teams on the same cores, their members wait for work in a slower way.

    Attributes:
        config: the settings it was made from.
        model_name: short name of the model.
        budget: where its memory goes.
        tokenizer: of the model; safe to use from any thread.
        max_model_len: longest prompt plus reply, in tokens.
    """

    def __init__(self, config: EngineConfig, progress: Progress) -> None:
        self.config = config
        self._wakeup = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._outbox: list[tuple[_Mailbox, News]] = []
        self._accepting = True
        self._stopping = False
        self._live = 0  # replies that callers still wait for
        self._last_check = time.monotonic()
        built: Future[BuiltEngine] = Future()
        self._thread = threading.Thread(target=self._run, args=(built, progress), name="mainstem-engine", daemon=True)
        self._thread.start()
        self._core, self.model_name, self.budget = built.result()
        self.tokenizer = self._core.tokenizer
        self.max_model_len = self._core.max_model_len
        self._stats = self._core.stats()

    @classmethod
    def load(cls, config: EngineConfig, *, progress: Progress = no_progress) -> AsyncEngine:
        """Load the model and make the engine; see `build_engine` for what it raises."""
        return cls(config, progress)

    # -- life -----------------------------------------------------------------------------------------------------

    async def shutdown(self, drain_s: float) -> None:
        """Take no new request, let running ones go on for `drain_s` seconds, abort the rest, end the thread."""
        self._accepting = False
        deadline = time.monotonic() + drain_s
        while self._live and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        with self._wakeup:
            self._commands.append(self._core.abort_all)
            self._stopping = True
            self._wakeup.notify()
        await asyncio.to_thread(self._thread.join)

    # -- requests -------------------------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """Whether new requests are taken: not once the engine shuts down, or has died."""
        return self._accepting

    async def generate(
        self,
        prompt: TokenArray,
        params: SamplingParams,
        *,
        namespace: Namespace = (),
        request_id: str | None = None,  # noqa: ARG002 - callers name their requests; the engine's records will use it
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of all `params.n` replies, interleaved, until each has ended.

        Closing the generator aborts what is left within a step; what was computed stays cached.

        Raises:
            InvalidRequest, PromptTooLong: before the first output.
            EngineStopped: when the engine no longer takes requests.
            EngineFailed: when computing failed.
        """
        self._core.check(prompt, params)
        if not self._accepting:
            raise EngineStopped("the engine is shutting down and takes no new requests")
        box = _Mailbox()
        arrival = time.perf_counter()
        ids: list[str] = []

        def deliver(news: News) -> None:
            self._outbox.append((box, news))

        def submit() -> None:
            try:
                ids.extend(self._core.submit(prompt, params, deliver, namespace=namespace, arrival=arrival))
            except MainstemError as error:
                deliver(error)

        left = params.n
        self._live += params.n
        try:
            self._send(submit)
            while left:
                news = await box.queue.get()
                if isinstance(news, MainstemError):
                    raise news
                if news.finish_reason is not None:
                    left -= 1
                yield news
        finally:
            self._live -= params.n
            if left:
                self._send(lambda: self._core.abort(ids))

    async def reset_cache(self) -> int:
        """Forget every cached token that no running request uses; returns how many."""
        return await asyncio.wrap_future(self._ask(self._core.reset_cache))

    async def check_integrity(self) -> None:
        """Verify every invariant between two steps.

        Raises:
            AssertionError: naming the broken one.
        """
        await asyncio.wrap_future(self._ask(self._core.check_integrity))

    def stats(self) -> EngineStats:
        """The engine's counts after its latest step."""
        return self._stats

    # -- the engine's thread ---------------------------------------------------------------------------------------

    def _send(self, command: Callable[[], Any]) -> None:
        with self._wakeup:
            self._commands.append(command)
            self._wakeup.notify()

    def _ask(self, question: Callable[[], T]) -> Future[T]:
        """Have `question` answered in the engine's thread."""
        answer: Future[T] = Future()

        def command() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        if self._stopping:
            answer.set_exception(EngineStopped("the engine is not running"))
        else:
            self._send(command)
        return answer

    def _run(self, built: Future[BuiltEngine], progress: Progress) -> None:
        try:
            engine = build_engine(self.config, progress)
        except BaseException as error:
            built.set_exception(error)
            return
        self._core = engine.core
        built.set_result(engine)
        self._loop()

    def _loop(self) -> None:
        try:
            while self._wait_for_work():
                for command in self._take_commands():
                    command()
                if self._core.has_work():
                    self._core.step()
                self._stats = self._core.stats()
                self._post()
        except BaseException:
            log.critical("the engine's thread has died", exc_info=True)
            self._accepting = False
            self._core.fail_all(EngineStopped("the engine has died; see the server's log"))
            self._post()
            raise

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; false when the engine is to end."""
        if not self._core.has_work():
            self._check_when_idle()
        with self._wakeup:
            while not (self._commands or self._core.has_work()):
                if self._stopping:
                    return False
                self._wakeup.wait()
            return True

    def _take_commands(self) -> list[Callable[[], None]]:
        with self._wakeup:
            commands = list(self._commands)
            self._commands.clear()
        return commands

    def _check_when_idle(self) -> None:
        if time.monotonic() - self._last_check < IDLE_CHECK_S:
            return
        self._last_check = time.monotonic()
        try:
            self._core.check_integrity()
        except AssertionError:
            log.critical("an invariant of the engine is broken", exc_info=True)

    def _post(self) -> None:
        """Hand the step's outputs to their event loops, one call a loop."""
        outbox, self._outbox = self._outbox, []
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Mailbox, News]]] = {}
        for box, news in outbox:
            by_loop.setdefault(box.loop, []).append((box, news))
        for loop, letters in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, letters)
            except RuntimeError:  # the loop is closed: nobody reads any more
                log.debug("outputs of %d replies had no reader", len(letters))


def _put_all(letters: list[tuple[_Mailbox, News]]) -> None:
    for box, news in letters:
        box.queue.put_nowait(news)
