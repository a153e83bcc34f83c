"""The thread that owns an engine: it loads the model, steps it, and does what others ask in between.

Every touch of the core happens here; others leave commands. So no interrupt can hit the core in the middle of a step,
and any number of threads may share an engine. It knows nothing of asyncio and HTTP.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from mainstem.config import EngineConfig
from mainstem.engine.build import BuiltEngine, build_engine
from mainstem.engine.core import EngineCore
from mainstem.engine.outputs import EngineStats
from mainstem.errors import EngineDied, EngineStopped
from mainstem.model import Progress

log = logging.getLogger(__name__)
T = TypeVar("T")

# How often, at most, an idle engine verifies its invariants.
IDLE_CHECK_S = 60.0


# A thread must not be in the middle of a step when the interpreter is taken down.
EXIT_WAIT_S = 5.0
_running: weakref.WeakSet[EngineThread] = weakref.WeakSet()


def _do_nothing() -> None:
    pass


@atexit.register
def _stop_all() -> None:
    engines = list(_running)
    for engine in engines:
        engine.stop()
    for engine in engines:
        engine.join(EXIT_WAIT_S)


class EngineThread:
    """An engine in a thread of its own, from its making to `stop`.

    The model is loaded in that thread and not in the caller's because OpenMP gives every thread that computes a team of
    its own; with two teams on the same cores, their members wait for work in a slower way.

    Args:
        config: what to load.
        progress: told about fetching and loading, from the engine's thread.
        after_step: called in the engine's thread after each step and each round of commands.

    Raises:
        as `build_engine`.
    """

    def __init__(
        self, config: EngineConfig, progress: Progress, *, after_step: Callable[[], None] = _do_nothing
    ) -> None:
        self._after_step = after_step
        self._wakeup = threading.Condition()
        self._commands: deque[Callable[[], Any]] = deque()
        self._stopping = False
        self._dead = False
        self._process = os.getpid()
        self._last_check = time.monotonic()
        built: Future[BuiltEngine] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(built, config, progress), name="mainstem-engine", daemon=True
        )
        self.core: EngineCore
        _running.add(self)
        self._thread.start()
        self.core, self.model_name, self.budget, self.compute = built.result()
        self._stats = self.core.stats()

    @property
    def alive(self) -> bool:
        """Whether questions are still answered; not in a forked child, which has no copy of the thread."""
        return not (self._stopping or self._dead) and os.getpid() == self._process

    @property
    def died(self) -> bool:
        """Whether an error has ended it."""
        return self._dead

    def stats(self) -> EngineStats:
        """The engine's counts after its latest step."""
        return self._stats

    def send(self, command: Callable[[], Any]) -> None:
        """Have `command` called in the engine's thread before its next step; it must not raise."""
        with self._wakeup:
            self._commands.append(command)
            self._wakeup.notify()

    def ask(self, question: Callable[[], T]) -> Future[T]:
        """Have `question` answered in the engine's thread before its next step."""
        answer: Future[T] = Future()

        def command() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # whoever asked does not wait any more
            if self._dead:
                answer.set_exception(EngineDied())
                return
            try:
                result = question()
                self._stats = self.core.stats()  # whoever has the answer may look at them next
                answer.set_result(result)
            except BaseException as error:
                answer.set_exception(error)

        with self._wakeup:  # so that nothing is asked of a thread that has ended meanwhile
            if self.alive:
                self.send(command)
                return answer
        answer.set_exception(EngineDied() if self._dead else EngineStopped("the engine is not running"))
        return answer

    def stop(self) -> None:
        """End all replies, then the thread; returns at once. See `join`."""
        with self._wakeup:
            if not self._stopping:
                self._stopping = True
                if hasattr(self, "core"):
                    self._commands.append(self.core.abort_all)
                self._wakeup.notify()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    def _run(self, built: Future[BuiltEngine], config: EngineConfig, progress: Progress) -> None:
        try:
            engine = build_engine(config, progress)
        except BaseException as error:
            built.set_exception(error)
            return
        self.core = engine.core
        built.set_result(engine)
        del built, engine
        try:
            while self._wait_for_work():
                self._obey()
                if self.core.has_work():
                    self.core.step()
                self._stats = self.core.stats()
                self._after_step()
                self.core.tend()
        except BaseException:
            log.critical("the engine's thread has died", exc_info=True)
            self._refuse()

    def _refuse(self) -> None:
        """After an error that no step survives: give everything up, and go on telling whoever asks, until `stop`."""
        self._dead = True
        self.core.die()
        while True:
            try:
                self._obey()
                self._after_step()
            except Exception:
                log.exception("a command failed after the engine had died")
            with self._wakeup:
                if self._stopping and not self._commands:
                    return
                if not self._commands:
                    self._wakeup.wait()

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; false when the engine is to end."""
        if not self.core.has_work():
            self._check_when_idle()
        while True:
            with self._wakeup:
                if self._commands or self.core.has_work():
                    return True
                if self._stopping:
                    return False
                is_woken = self._wakeup.wait(self.core.upkeep_s)
            if not is_woken:
                self.core.tend()
                self._stats = self.core.stats()

    def _obey(self) -> None:
        """Do what others ask. Nothing of it may stay referenced while the thread sleeps: see `Lease`."""
        while self._commands:  # one by one: if one ends the thread, the others are still there to be refused
            self._commands.popleft()()

    def _check_when_idle(self) -> None:
        if time.monotonic() - self._last_check < IDLE_CHECK_S:
            return
        self._last_check = time.monotonic()
        try:
            self.core.check_integrity()
        except AssertionError:
            log.critical("an invariant of the engine is broken", exc_info=True)
