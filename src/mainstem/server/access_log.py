"""One line about every request that was answered, for the log `mainstem.access`.

A pure ASGI middleware, the outermost of all. What it says of the cache it reads from the reply's own headers; it never
looks into a body, and writes down neither keys nor prompts.
"""

from __future__ import annotations

import logging
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("mainstem.access")


class AccessLog:
    """Writes `TENANT METHOD PATH STATUS SECONDS cached=CACHED/PROMPT cause=CAUSE id=ID`.

    Parts that a request does not have are left out; `cut` instead of a status's reply says that it did not end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status, complete = 0, False
        headers = Headers()

        async def note(message: Message) -> None:
            nonlocal status, complete, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], Headers(raw=message["headers"])
            elif message["type"] == "http.response.body":
                complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            logger.info("%s", _line(scope, status, complete, time.perf_counter() - began, headers))


def _line(scope: Scope, status: int, complete: bool, seconds: float, headers: Headers) -> str:
    namespace = scope.get("mainstem.tenant") or ("tenant", "-")
    parts = [namespace[1], scope["method"], _printable(scope["path"]), str(status), f"{seconds:.3f}s"]
    for name, header in (("cached", "x-cached-tokens"), ("cause", "x-cache-miss-cause"), ("id", "x-request-id")):
        if header in headers:
            parts.append(f"{name}={_printable(headers[header])}")
    if not complete:
        parts.append("cut")
    return " ".join(parts)


def _printable(text: str) -> str:
    """A client's text on one line without blanks, so that nobody can write a line of their own into the log."""
    return text[:200].encode("unicode_escape").decode("ascii").replace(" ", "\\x20")
