"""Server-sent events, and noticing that a client went away.

Knows sockets' ends and the `data:` framing. It does not know what the events say.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mainstem.errors import MainstemError
from mainstem.server.errors import to_api_error

T = TypeVar("T")
logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


class ClientGone(ClientDisconnect):
    """The client closed its connection before the reply was complete."""


def event(value: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """One server-sent event that carries a JSON object, under a name if it has one."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def failure_event(error: Exception) -> bytes:
    """The last event of a stream that fails, in OpenAI's form."""
    return event(to_api_error(error).body())


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled as soon as the client goes away.

    Both are awaited before this returns, so that nothing of `work` runs on.

    Args:
        receive: the request's ASGI channel; the body must have been read.

    Raises:
        ClientGone: when the client went away first.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.wait((working, watching))
        if not working.cancelled():
            # An error on the way out of abandoned work has been looked at, as far as asyncio is concerned.
            working.exception()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends each event as soon as it exists; ends early, and calls `close`, when the client goes away.

    An error in mid-stream becomes the last event, because the status is already sent.

    Args:
        events: the framed events, without the closing one.
        close: called once in the end, whatever happened; releases what the events come from.
        closing: what ends a stream that went well.
        failure: makes the last event of one that did not.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        *,
        close: Callable[[], Awaitable[None]],
        headers: Mapping[str, str],
        closing: bytes = DONE,
        failure: Callable[[Exception], bytes] = failure_event,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        # The length of a stream is unknown.
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._closing = closing
        self._failure = failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        try:
            await until_disconnect(receive, self._send(send))
        except ClientGone:
            logger.info("The client went away; its request was given up.")
        finally:
            await self._events.aclose()
            await self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
                # With a backlog of events nothing above waits, and nobody would notice that the client has left.
                await asyncio.sleep(0)
            last = self._closing
        except Exception as error:
            if not isinstance(error, MainstemError):
                logger.exception("A stream failed.")
            last = self._failure(error)
        await send({"type": "http.response.body", "body": last, "more_body": False})
