"""Reads and drops what is left of a body that was refused before its end.

A connection that is closed with unread bytes on it is reset, and then the client loses the refusal with its reason:
most clients read an answer only once they have sent everything. A pure ASGI middleware; it knows sizes, and nothing of
what is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What is dropped at most; whoever sends more, or more slowly, may lose the reason.
MAX_BYTES = 64 * 2**20
MAX_SECONDS = 10.0
# Of a server that stops: nobody shall hold up its end.
MAX_SECONDS_UNAVAILABLE = 0.3


class Discard:
    """Ends no reply to a request before the request has ended, within bounds."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _waits_to_be_asked(scope):
            await self._app(scope, receive, send)
            return
        body = _Body(receive)
        seconds = MAX_SECONDS

        async def send_all(message: Message) -> None:
            nonlocal seconds
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
                seconds = MAX_SECONDS_UNAVAILABLE
            if message["type"] == "http.response.body" and not message.get("more_body", False) and not body.ended:
                await send({**message, "more_body": True})
                with contextlib.suppress(TimeoutError):
                    await body.drop(seconds)
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, body.receive, send_all)


class _Body:
    """The body of a request on its way in."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = False

    async def receive(self) -> Message:
        """The next message."""
        message = await self._receive()
        self.ended = self.ended or message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def drop(self, seconds: float) -> None:
        """Read on to the end, for so long at most.

        Raises:
            TimeoutError: when it takes longer.
        """
        left = MAX_BYTES
        async with asyncio.timeout(seconds):
            while not self.ended and left > 0:
                left -= len((await self.receive()).get("body", b""))


def _waits_to_be_asked(scope: Scope) -> bool:
    """Whether the client sends its body only when told to go on; reading would tell it so."""
    return any(name == b"expect" for name, _ in scope["headers"])
