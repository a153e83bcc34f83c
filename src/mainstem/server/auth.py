"""API keys: who may come in, and which part of the prefix cache is theirs.

A pure ASGI middleware. Without configured keys everyone comes in and shares one cache.
"""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from mainstem.server.errors import ApiError, error_response

OPEN_PATHS = frozenset({"/health"})


def tenant_of(request: Request) -> tuple[str, ...]:
    """Namespace of whoever sent this request; () where no keys are configured."""
    tenant: tuple[str, ...] = request.scope["mainstem.tenant"]
    return tenant


class ApiKeys:
    """Lets a request in when it carries one of the keys, and marks it with the tenant's namespace."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or scope["path"] in OPEN_PATHS:
            scope["mainstem.tenant"] = ()
            await self._app(scope, receive, send)
            return
        key = _presented(Headers(scope=scope))
        if not self._is_valid(key):
            await error_response(_refusal(missing=not key), scope)(scope, receive, send)
            return
        scope["mainstem.tenant"] = ("key", hashlib.sha256(key).hexdigest()[:16])
        await self._app(scope, receive, send)

    def _is_valid(self, key: bytes) -> bool:
        # Every key is compared, in full, so that the time taken tells nothing about them.
        return sum(hmac.compare_digest(key, known) for known in self._keys) > 0


def _presented(headers: Headers) -> bytes:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip().encode("latin-1")
    return headers.get("x-api-key", "").encode("latin-1")


def _refusal(*, missing: bool) -> ApiError:
    found = "the request has none" if missing else "the one in the request is not known here"
    return ApiError(
        401,
        f"This server needs an API key in the header 'Authorization: Bearer KEY', but {found}.",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )
