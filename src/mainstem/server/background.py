"""A server in a thread of its own, for programs that are also its client: the demo, benchmarks, tests."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from mainstem.server.run import serve_async

if TYPE_CHECKING:
    from mainstem.config import ServerConfig
    from mainstem.engine import AsyncEngine


class BackgroundServer:
    """Serves an engine within a `with` block; leaving it drains and stops both.

    Attributes:
        url: where it listens, such as `http://127.0.0.1:40123`; set within the block.
    """

    url: str

    def __init__(self, engine: AsyncEngine, config: ServerConfig) -> None:
        self._engine = engine
        self._config = config
        self._thread = threading.Thread(target=self._run, name="mainstem-server", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def stop(self) -> None:
        """Begin to drain, without waiting for the end."""
        if self._thread.is_alive() and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await serve_async(self._engine, self._config, on_ready=self._on_ready, stop=self._stop)

    def _on_ready(self, url: str) -> None:
        self.url = url
        self._ready.set()
