"""The routes around generation: models, health, metrics, tokenizing, resetting the cache, and a page for browsers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from mainstem.errors import InvalidRequest
from mainstem.server.auth import is_operator, require_operator, tenant_of
from mainstem.server.index import index_page
from mainstem.server.lifetime import MAX_ID_CHARACTERS, session_name
from mainstem.server.openapi import document, takes
from mainstem.server.prompts import Prompt, chat_prompt, decode_ids, encode_text, token_ids
from mainstem.server.protocol import Objects, namespace_of
from mainstem.server.service import Service
from mainstem.server.validation import Body, num_bytes, read_body
from mainstem.server.workers import work_for
from mainstem.tokens import Conversation
from mainstem.tokens.chat import read_messages, read_tools


class TokenizeBody(Body):
    """Body of `POST /tokenize`: either a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Objects | None = Field(None, fail_fast=True)
    tools: Objects | None = Field(None, fail_fast=True)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeBody(Body):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: Any


class EndSessionBody(Body):
    """Body of `POST /cache/end-session`: who will not come back, by the name that its requests gave."""

    session_id: str | None = Field(None, min_length=1, max_length=MAX_ID_CHARACTERS)
    prompt_cache_key: str | None = Field(None, min_length=1, max_length=MAX_ID_CHARACTERS)
    cache_salt: str | None = None


def router(service: Service) -> APIRouter:
    """The routes, bound to a service."""
    routes = APIRouter()

    @routes.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return HTMLResponse(index_page(service, f"{request.scope['scheme']}://{request.headers.get('host', '')}"))

    @routes.get("/health")
    async def health() -> Response:
        service.check_open()
        return JSONResponse({"status": "ok"})

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        require_operator(request)
        return Response(service.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    @routes.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> Response:
        return JSONResponse(document(request.app))

    @routes.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [_model(service)]})

    @routes.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> Response:
        service.check_model(model_id)
        return JSONResponse(_model(service))

    @routes.post("/tokenize", openapi_extra=takes(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        body = await read_body(request, TokenizeBody, limit=service.body_limit)
        service.check_model(body.model)
        tokens = (await _tokenize(service, request, body)).tolist()
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": service.engine.max_model_len})

    @routes.post("/detokenize", openapi_extra=takes(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        body = await read_body(request, DetokenizeBody, limit=service.body_limit)
        service.check_model(body.model)
        if body.tokens == []:
            return JSONResponse({"prompt": ""})
        ids = token_ids(body.tokens, service.engine.tokenizer.vocab_size, "tokens")
        return JSONResponse({"prompt": await decode_ids(service, request, ids)})

    @routes.post("/cache/end-session", openapi_extra=takes(EndSessionBody))
    async def cache_end_session(request: Request) -> Response:
        body = await read_body(request, EndSessionBody, limit=service.body_limit)
        namespace = namespace_of(body.cache_salt, tenant_of(request))
        if body.session_id is not None and body.prompt_cache_key is not None:
            raise InvalidRequest("give session_id or prompt_cache_key, not both", param="prompt_cache_key")
        name = session_name(body.session_id, body.prompt_cache_key)
        if name is None:
            raise InvalidRequest("say which session is over: session_id, or prompt_cache_key", param="session_id")
        return JSONResponse({"known": await service.engine.end_session(name, namespace)})

    @routes.post("/cache/reset")
    async def cache_reset(request: Request) -> Response:
        if service.engine.config.prefix_cache != "radix":
            require_operator(request)
        tenant = None if is_operator(request) else tenant_of(request)
        service.bodies.reset(tenant)
        return JSONResponse({"dropped_tokens": await service.engine.reset_cache(tenant)})

    return routes


async def _tokenize(service: Service, request: Request, body: TokenizeBody) -> Any:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if body.messages is None:
        special = body.add_special_tokens is not False
        return await encode_text(service, request, body.prompt or "", add_special_tokens=special, param="prompt")
    said, wants_reply = body.messages, body.add_generation_prompt is not False

    def work() -> Prompt:
        conversation = Conversation(read_messages(said), read_tools(body.tools), namespace=tenant_of(request))
        return chat_prompt(service, conversation, add_generation_prompt=wants_reply)

    return (await work_for(request, num_bytes(request), work)).ids


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "mainstem",
        "max_model_len": service.engine.max_model_len,
    }
