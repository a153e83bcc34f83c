"""What a request may cost before anyone has looked at it: the size of its head, and how long its body may stay away.

A pure ASGI middleware. How long a body may be depends on the model and is `validation`'s business.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainstem.server.errors import ApiError, error_response, shutting_down

# The connection is refused when the head of a request (its first line and headers) is longer than this.
MAX_HEAD_BYTES = 64 * 2**10
MAX_HEADERS = 100
MAX_HEADER_BYTES = 16 * 2**10
MAX_PATH_BYTES = 4 * 2**10


class Limits:
    """Refuses a head that is too large; refuses, once `closing` is set, a request whose body is not complete."""

    def __init__(self, app: ASGIApp, closing: asyncio.Event) -> None:
        self._app = app
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif refusal := _too_large(scope):
            await error_response(refusal, scope)(scope, receive, send)
        else:
            await self._app(scope, _UntilClosing(receive, self._closing), send)


class _UntilClosing:
    """The channel of a request; it raises the 503 of a stopping server while the body is still to come."""

    def __init__(self, receive: Receive, closing: asyncio.Event) -> None:
        self._receive = receive
        self._closing = closing
        self._more_body = True

    async def __call__(self) -> Message:
        if not self._more_body:
            return await self._receive()
        message = await self._before_closing()
        self._more_body = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def _before_closing(self) -> Message:
        receiving = asyncio.ensure_future(self._receive())
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((receiving, closing), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                return receiving.result()
            raise shutting_down()
        finally:
            receiving.cancel()
            closing.cancel()


def _too_large(scope: Scope) -> ApiError | None:
    """What is wrong with the head of a request."""
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS:
        return _refusal(431, f"The request has {len(headers)} headers; at most {MAX_HEADERS} are read.")
    for name, value in headers:
        if len(name) + len(value) > MAX_HEADER_BYTES:
            shown = name[:40].decode("latin-1")
            return _refusal(431, f"The header '{shown}' is longer than {MAX_HEADER_BYTES} bytes.")
    if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > MAX_PATH_BYTES:
        return _refusal(414, f"The path of the request is longer than {MAX_PATH_BYTES} bytes.")
    return None


def _refusal(status: int, message: str) -> ApiError:
    return ApiError(status, message, code="request_too_large", headers={"connection": "close"})
