"""The app: which routes exist, what every request passes through, and how an exception becomes a reply."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mainstem.errors import ConfigError, MainstemError
from mainstem.server import chat, completions, explain, messages, render, responses, system
from mainstem.server.access_log import AccessLog
from mainstem.server.auth import ApiKeys, tenant_namespace
from mainstem.server.bodies import BodyMemory
from mainstem.server.boundary import Boundary
from mainstem.server.discard import Discard
from mainstem.server.errors import ApiError, error_response, to_api_error
from mainstem.server.keys import read_keys
from mainstem.server.limits import Limits
from mainstem.server.metrics import Metrics
from mainstem.server.openapi import REFUSALS
from mainstem.server.replies import CLIENT_CLOSED_REQUEST
from mainstem.server.service import Service
from mainstem.server.shared_prefix import read_shared_prefixes, tokens_of
from mainstem.server.stored import ResponseStore
from mainstem.tools import Dialect
from mainstem.tree import public_namespace

if TYPE_CHECKING:
    from mainstem.config import ServerConfig
    from mainstem.engine import AsyncEngine
    from mainstem.tree import TokenArray


def create_app(engine: AsyncEngine, config: ServerConfig, model_name: str | None = None) -> FastAPI:
    """An ASGI app that serves an engine, which it shuts down with its lifespan.

    Args:
        model_name: what clients call the model; by default the config's name for it, else the engine's.

    Returns:
        The app. `app.state.service.closing.set()` makes it refuse new requests with 503.
    """
    name = model_name or config.served_model_name or engine.model_name
    service = Service(
        engine,
        config,
        name,
        Metrics(engine),
        Dialect(engine.tokenizer),
        ResponseStore(config.stored_responses),
        BodyMemory.for_engine(engine.config),
    )

    shared = _shared_prefixes(engine, config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        public = public_namespace(tenant_namespace("", name))
        for forms in shared:
            for tokens in forms:
                await engine.declare_public(tokens, public)
            # The others take no memory before somebody sends them.
            for tokens in forms[:1]:
                await engine.precompute(tokens, public)
        yield
        await engine.shutdown(0)

    app = FastAPI(
        title="mainstem", lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.service = service
    app.add_middleware(Limits, closing=service.closing)
    app.add_middleware(ApiKeys, keys=read_keys(config), model=name)
    app.add_middleware(Boundary)
    app.add_middleware(Discard)
    if config.access_log:
        app.add_middleware(AccessLog)
    app.add_exception_handler(MainstemError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    for part in (chat, render, completions, responses, messages, explain, system):
        app.include_router(part.router(service), responses=REFUSALS)
    return app


def _shared_prefixes(engine: AsyncEngine, config: ServerConfig) -> list[list[TokenArray]]:
    """What the operator declares public, by file: see `tokens_of`."""
    found = []
    for prefix in read_shared_prefixes(config):
        if engine.config.prefix_cache != "radix":
            raise ConfigError("only --prefix-cache radix can share a prefix between tenants", setting="shared_prefix")
        forms = tokens_of(prefix, engine.tokenizer)
        for tokens in forms:
            if len(tokens) >= engine.max_model_len:
                reason = f"has {len(tokens)} tokens, and this model serves at most {engine.max_model_len}"
                raise ConfigError(f"{prefix.file} {reason}", setting="shared_prefix")
        found.append(forms)
    return found


async def _on_error(request: Request, error: Exception) -> Response:
    reply = to_api_error(error)
    if reply.code == "internal_error":
        # The boundary logs it.
        raise error
    return error_response(reply, request.scope)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"][:200]
    if error.status_code == 404:
        message = f"There is no {request.method} {path} here; GET / lists what there is."
        return error_response(ApiError(404, message, code="unknown_url"), request.scope)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{path} does not take {request.method}; use {allowed}."
        reply = ApiError(405, message, code="method_not_allowed", headers=error.headers)
        return error_response(reply, request.scope)
    return error_response(ApiError(error.status_code, str(error.detail), headers=error.headers), request.scope)


async def _on_disconnect(_: Request, error: Exception) -> Response:
    del error
    return Response(status_code=CLIENT_CLOSED_REQUEST)
