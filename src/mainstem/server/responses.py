"""`/v1/responses`: OpenAI's conversations as lists of items, which the server may remember.

Knows the fields of this API and what its items say: it is the translation of this API's requests. Its replies are in
`response_objects`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mainstem.errors import InvalidRequest
from mainstem.params import MAX_LOGPROBS, SamplingParams
from mainstem.server.arrival import Arrived, make_ready
from mainstem.server.auth import tenant_of
from mainstem.server.bodies import read_conversation, read_said
from mainstem.server.conversation_body import ConversationBody
from mainstem.server.diagnostics import comparison_id, origin_of
from mainstem.server.errors import ApiError
from mainstem.server.generation import Generation
from mainstem.server.lifetime import OPENAI_TTL, LifetimeBody, read_lifetime
from mainstem.server.openapi import takes
from mainstem.server.prompts import num_pieces
from mainstem.server.protocol import Objects, namespace_of
from mainstem.server.replies import send
from mainstem.server.response_objects import ResponseWriter
from mainstem.server.service import Service
from mainstem.server.stored import StoredResponse
from mainstem.server.turns import ANY_OBJECT, Turn, naming_schema
from mainstem.server.workers import PIECE_CHARACTERS
from mainstem.tokens import Conversation, Message
from mainstem.tokens.placed import Placed, Places, placed_at
from mainstem.tokens.responses import add_item, read_input, read_tools
from mainstem.tools import ToolChoice

INCLUDED_LOGPROBS = "message.output_text.logprobs"
# As the hosted API has it. A reply repeats them, a streamed one several times.
MAX_METADATA = 16
_UNSUPPORTED = ("background", "conversation", "prompt", "max_tool_calls")


class ResponsesBody(LifetimeBody, ConversationBody):
    """Body of `POST /v1/responses`."""

    ITEMS = "input"

    model: str
    input: Any
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Objects | None = Field(None, fail_fast=True)
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = Field(None, fail_fast=True)
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    stream: bool | None = None
    truncation: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    background: Any = None
    conversation: Any = None
    prompt: Any = None
    max_tool_calls: Any = None
    cache_salt: str | None = None
    seed: int | None = None


def router(service: Service) -> APIRouter:
    """The routes, bound to a service."""
    routes = APIRouter()

    @routes.post("/v1/responses", openapi_extra=takes(ResponsesBody))
    async def responses(request: Request) -> Response:
        service.check_open()
        tenant = tenant_of(request)
        body, turn, namespace, lifetime, ready = await arrive(service, request)
        # Instructions are not remembered, so that a later request can change them.
        messages = turn.conversation.messages[0 if body.instructions is None else 1 :]

        def keep(response: dict[str, Any], said: Message) -> None:
            if body.store is not False:
                # Earlier messages may have no other keeper by the time that this one goes.
                size = sum(message.characters for message in (*messages, said)) + len(
                    json.dumps(response, ensure_ascii=False)
                )
                stored = StoredResponse(response, (*messages, said), size)
                service.responses.add(tenant, response["id"], stored)

        writer = ResponseWriter(service, _echo(body), ready, top_logprobs=_logprobs(body), keep=keep)
        with naming_schema(turn, schema_param="text.format.schema"):
            origin = origin_of(
                request,
                writer.id,
                lifetime=lifetime,
                turn=turn,
                key=body.prompt_cache_key,
                compare_with=comparison_id(body.prompt_cache_options),
            )
            generation = Generation(
                service, [ready.prompt], ready.params, namespace=namespace, origin=origin, lifetime=lifetime
            )
            return await send(request, generation, writer, stream=bool(body.stream))

    @routes.get("/v1/responses/{response_id}")
    async def get_response(request: Request, response_id: str) -> Response:
        stored = service.responses.get(tenant_of(request), response_id)
        if stored is None:
            raise _unknown(response_id)
        return JSONResponse(stored.body)

    @routes.delete("/v1/responses/{response_id}")
    async def delete_response(request: Request, response_id: str) -> Response:
        if not service.responses.drop(tenant_of(request), response_id):
            raise _unknown(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    @routes.post("/v1/responses/{path:path}", include_in_schema=False)
    async def not_here(request: Request) -> Response:
        # Without this one, the routes above would say that the path exists and only takes another method.
        message = f"There is no POST {request.scope['path'][:200]} here; GET / lists what there is."
        raise ApiError(404, message, code="unknown_url")

    return routes


async def arrive(service: Service, request: Request) -> Arrived[ResponsesBody]:
    """Read a request and make its prompt.

    Raises:
        InvalidRequest, ApiError, ClientDisconnect: when it cannot be served, or does not come.
    """
    body = await read_conversation(service, request, ResponsesBody)
    service.check_model(body.model)
    earlier = _earlier(service, tenant_of(request), body.previous_response_id)

    def read() -> Turn:
        before = (placed_at(f"previous_response.messages[{i}]", message) for i, message in enumerate(earlier))
        return read_turn(service, body, (*before, *_new(body)))

    turn = await read_said(request, body, read, beside=PIECE_CHARACTERS * num_pieces(earlier))
    namespace = namespace_of(body.cache_salt, tenant_of(request))
    lifetime = read_lifetime(body, request.headers)
    return await make_ready(service, request, body, turn, namespace=namespace, lifetime=lifetime)


def _new(body: ResponsesBody) -> tuple[Placed, ...]:
    if isinstance(body.input, list) and body.input:
        return body.read_items(add_item)
    return read_input(body.input)


def read_turn(service: Service, body: ResponsesBody, said: tuple[Placed, ...]) -> Turn:
    """What the body asks for, at the end of these messages.

    Raises:
        InvalidRequest: naming a field that cannot be served.
    """
    for name in _UNSUPPORTED:
        if getattr(body, name) not in (None, False):
            raise InvalidRequest(f"{name} is not supported; leave it out", param=name)
    if body.truncation not in (None, "disabled", "auto"):
        raise InvalidRequest("truncation must be 'disabled' or 'auto'", param="truncation")
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise InvalidRequest(
            f"max_output_tokens must be at least 1, got {body.max_output_tokens}", param="max_output_tokens"
        )
    _check_metadata(body.metadata or {})
    if body.instructions is not None:
        instructions = Message(role="system", parts=(body.instructions,))
        said = (Placed(instructions, "instructions", ("instructions",)), *said)
    fields = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
    given = {name: getattr(body, name) for name in fields if getattr(body, name) is not None}
    wanted = body.max_output_tokens or service.config.default_max_tokens or None
    params = SamplingParams(
        max_tokens=None if wanted is None else min(wanted, service.engine.max_model_len),
        logprobs=_logprobs(body),
        **given,
    )
    return Turn(
        conversation=Conversation(tuple([each.message for each in said]), body.read_tools(read_tools)),
        params=params,
        choice=_tool_choice(body.tool_choice, parallel=body.parallel_tool_calls is not False),
        schema=_schema(body.text),
        places=Places(said),
    )


def _earlier(service: Service, tenant: tuple[str, ...], response_id: str | None) -> tuple[Message, ...]:
    if response_id is None:
        return ()
    stored = service.responses.get(tenant, response_id)
    if stored is None:
        raise ApiError(
            400,
            f"The response '{response_id[:100]}' is not known here: it was never stored, or made room for later ones.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return stored.messages


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"metadata may have at most {MAX_METADATA} keys, got {len(metadata)}", param="metadata")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise InvalidRequest("metadata must have texts as values", param="metadata")


def _unknown(response_id: str) -> ApiError:
    return ApiError(404, f"The response '{response_id[:100]}' is not known here.", code="response_not_found")


def _tool_choice(value: Any, *, parallel: bool) -> ToolChoice:
    match value:
        case None | "auto" | "none" | "required":
            return ToolChoice(value or "auto", parallel=parallel)
        case {"type": "function", "name": str() as name}:
            return ToolChoice("required", (name,), parallel=False)
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*tools]}:
            return ToolChoice(mode, tuple(_name_of_tool(tool) for tool in tools), parallel=parallel)
    raise InvalidRequest(
        'tool_choice must be \'auto\', \'none\', \'required\' or {"type": "function", "name": "..."}',
        param="tool_choice",
    )


def _name_of_tool(tool: Any) -> str:
    match tool:
        case {"name": str() as name}:
            return name
    raise InvalidRequest("tool_choice lists a tool without a name", param="tool_choice")


def _schema(text: dict[str, Any] | None) -> Mapping[str, Any] | None:
    match (text or {}).get("format"):
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return ANY_OBJECT
        case {"type": "json_schema", "schema": dict() as schema}:
            return schema
    raise InvalidRequest(
        "text.format must have type 'text', 'json_object' or 'json_schema', the last with a schema", param="text.format"
    )


def _logprobs(body: ResponsesBody) -> int | None:
    if INCLUDED_LOGPROBS not in (body.include or ()) and not body.top_logprobs:
        return None
    top = body.top_logprobs or 0
    if not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_LOGPROBS}, got {top}", param="top_logprobs")
    return top


def _echo(body: ResponsesBody) -> dict[str, Any]:
    """The fields of a response that repeat the request."""
    reasoning = body.reasoning or {}
    text = body.text or {}
    return {
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "tools": [_echo_of_tool(tool) for tool in body.tools or ()],
        "tool_choice": body.tool_choice or "auto",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "max_output_tokens": body.max_output_tokens,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": body.store is not False,
        "metadata": body.metadata or {},
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_options": _echo_of_options(body),
        "user": body.user,
        "service_tier": "default",
        "background": False,
        "max_tool_calls": None,
    }


def _echo_of_options(body: ResponsesBody) -> dict[str, Any] | None:
    options = body.prompt_cache_options
    if options is None:
        return None
    return {
        "mode": options.mode or "implicit",
        "ttl": options.ttl or OPENAI_TTL,
        "comparison_response_id": options.comparison_response_id,
    }


def _echo_of_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict") is True,
    }
