"""The outermost layer of the app: gives every reply its `x-request-id`, and turns stray exceptions into a 500.

A pure ASGI middleware. The traceback goes to the log and never to the client.
"""

from __future__ import annotations

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainstem.server.errors import error_response, is_anthropic, to_api_error

logger = logging.getLogger(__name__)

_ACCEPTABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Boundary:
    """Wraps the whole app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope["mainstem.request_id"] = _request_id(Headers(scope=scope))
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                if is_anthropic(scope):
                    headers["request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            if started:
                # Too late for a status: the server logs it and cuts the connection, which the client notices.
                raise
            logger.exception("Request %s (%s %s) failed.", request_id, scope["method"], scope["path"])
            await error_response(to_api_error(error), scope)(scope, receive, send_with_id)


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _ACCEPTABLE_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
