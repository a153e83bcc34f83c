"""Runs an app under uvicorn: readiness, signals, draining.

Knows processes and event loops; what is served is `app`'s business. It prints nothing and configures no logging.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from mainstem.server.app import create_app
from mainstem.server.limits import MAX_HEAD_BYTES
from mainstem.server.sockets import listen, url_of

if TYPE_CHECKING:
    from types import FrameType

    from mainstem.config import ServerConfig
    from mainstem.engine import AsyncEngine

# After draining only connections are left whose clients do not read; they get this long, then they are cut.
CLOSE_SECONDS = 1.0
# Agents think, and run tools, between two requests; reconnecting each time would cost them a round trip.
KEEP_ALIVE_SECONDS = 75
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    engine: AsyncEngine,
    config: ServerConfig,
    listener: socket.socket | None = None,
    *,
    on_ready: Callable[[str], None] | None = None,
    on_drain: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; see `serve_async`."""
    asyncio.run(serve_async(engine, config, listener, on_ready=on_ready, on_drain=on_drain))


async def serve_async(
    engine: AsyncEngine,
    config: ServerConfig,
    listener: socket.socket | None = None,
    *,
    on_ready: Callable[[str], None] | None = None,
    on_drain: Callable[[], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve an engine over HTTP until told to stop, then drain and return.

    Draining: new requests are refused with 503, running ones go on for up to `config.drain_seconds` and are then given
    up. In the main thread SIGTERM and SIGINT tell it to stop; a second one ends the process at once.

    Args:
        listener: a bound socket, closed at the end; by default one that `listen(config)` opens.
        on_ready: called with the server's URL once it listens.
        on_drain: called when draining begins.
        stop: another way to tell it to stop.

    Raises:
        ConfigError: when the address cannot be listened on.
    """
    app = create_app(engine, config)
    stop = stop or asyncio.Event()
    with contextlib.closing(listener or listen(config)) as opened, _signals(asyncio.get_running_loop(), stop):
        server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                lifespan="on",
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                http="h11",  # it bounds the size of a request's head
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[opened]))
        try:
            await _first(serving, server.listening)
            if on_ready and not serving.done():
                on_ready(url_of(opened))
            await _first(serving, stop)
            app.state.service.closing.set()
            if on_drain and not serving.done():
                on_drain()
            await engine.shutdown(config.drain_seconds)
        finally:
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    """A uvicorn server that says when it listens and leaves signals to us."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        cutting = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._cut)
        await super().shutdown(sockets)
        cutting.cancel()

    def _cut(self) -> None:
        """End connections as if their clients had, so that whatever serves them ends in order."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _first(serving: asyncio.Task[None], event: asyncio.Event) -> None:
    """Wait for the event, or for the server to end without it."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` at the first signal, and give the signals their default effect for the second."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
