"""Who may come in, and which part of the prefix cache is theirs.

A pure ASGI middleware over a keyring. Without keys everyone comes in and is one tenant.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from mainstem.server.errors import ApiError, error_response
from mainstem.server.keys import EVERYONE, OPERATOR, Keyring, Tenant

OPEN_PATHS = frozenset({"/health"})


def tenant_of(request: Request) -> tuple[str, ...]:
    """The namespace of whoever sent this request, which the server alone decides: its tenant, then its model."""
    tenant: tuple[str, ...] = request.scope["mainstem.tenant"]
    return tenant


def tenant_namespace(tenant: str, model: str) -> tuple[str, ...]:
    """The namespace of a tenant; the tenant comes first, as `mainstem.tree.tenancy` wants it."""
    return ("tenant", tenant, "model", model)


def is_operator(request: Request) -> bool:
    """Whether this request's sender sees and does what concerns everyone."""
    operator: bool = request.scope["mainstem.operator"]
    return operator


def require_operator(request: Request) -> None:
    """Let operators only go on.

    Raises:
        ApiError: 403 for everyone else.
    """
    if not is_operator(request):
        raise ApiError(
            403,
            f"{request.scope['path']} shows what other tenants do, so it is for operators only: the first key of "
            f"--api-key, and those with '{OPERATOR}' after them in the key file.",
            code="operator_required",
        )


class ApiKeys:
    """Lets a request in when it carries one of the keys, and marks it with the tenant's namespace.

    Args:
        app: what is behind.
        keys: that are let in.
        model: what is served; the KV of two models never meets.
    """

    def __init__(self, app: ASGIApp, keys: Keyring, model: str) -> None:
        self._app = app
        self._keys = keys
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or scope["path"] in OPEN_PATHS:
            self._mark(scope, EVERYONE)
            await self._app(scope, receive, send)
            return
        key = _presented(Headers(scope=scope))
        tenant = self._keys.find(key)
        if tenant is None:
            await error_response(_refusal(missing=not key), scope)(scope, receive, send)
            return
        self._mark(scope, tenant)
        await self._app(scope, receive, send)

    def _mark(self, scope: Scope, tenant: Tenant) -> None:
        scope["mainstem.tenant"] = tenant_namespace(tenant.name, self._model)
        scope["mainstem.operator"] = tenant.operator


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
