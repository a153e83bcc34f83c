"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's conversations.

Knows the fields of this API and the form of its replies and events: it is the translation of this API, and of nothing
else.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mainstem.errors import InvalidRequest
from mainstem.params import SamplingParams
from mainstem.server.arrival import Arrived, make_ready
from mainstem.server.auth import tenant_of
from mainstem.server.bodies import read_conversation, read_said
from mainstem.server.conversation_body import ConversationBody
from mainstem.server.diagnostics import anthropic_diagnostics, origin_of, usage_sibling
from mainstem.server.errors import to_api_error
from mainstem.server.generation import Generation, Part
from mainstem.server.lifetime import LifetimeBody, read_lifetime, split_written
from mainstem.server.openapi import takes
from mainstem.server.prompts import encode_chat
from mainstem.server.protocol import Objects, namespace_of, stop_strings
from mainstem.server.replies import ReplyReader, ReplyWriter, send
from mainstem.server.service import Service
from mainstem.server.streaming import event
from mainstem.server.turns import ReadyTurn, Turn, naming_schema
from mainstem.server.validation import Body
from mainstem.tokens import Conversation
from mainstem.tokens.anthropic import add_messages, check_any, read_system, read_tools
from mainstem.tokens.placed import Placed, Places
from mainstem.tools import Call, Reasoning, Segment, Text, ToolChoice
from mainstem.wording import json_value

# Clients send thoughts back only with a signature; ours says nothing, because there is nothing to prove.
SIGNATURE = "unsigned"
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class DiagnosticsBody(Body):
    """`diagnostics`: which earlier message to compare with."""

    previous_message_id: str | None = None


class CountBody(LifetimeBody, ConversationBody):
    """What counting and replying have in common."""

    model: str
    messages: Objects = Field(fail_fast=True)
    system: Any = None
    tools: Objects | None = Field(None, fail_fast=True)
    tool_choice: Any = None


class MessagesBody(CountBody):
    """Body of `POST /v1/messages`."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = Field(None, fail_fast=True)
    stream: bool | None = None
    output_config: dict[str, Any] | None = None
    cache_salt: str | None = None
    diagnostics: DiagnosticsBody | None = None
    seed: int | None = None
    mcp_servers: Any = None
    container: Any = None


def router(service: Service) -> APIRouter:
    """The routes, bound to a service."""
    routes = APIRouter()

    @routes.post("/v1/messages", openapi_extra=takes(MessagesBody))
    async def messages(request: Request) -> Response:
        service.check_open()
        body, turn, namespace, lifetime, ready = await arrive(service, request)
        writer = MessageWriter(service, body, ready)
        with naming_schema(turn, schema_param="output_config.format.schema"):
            earlier = None if body.diagnostics is None else body.diagnostics.previous_message_id
            origin = origin_of(request, writer.id, lifetime=lifetime, turn=turn, compare_with=earlier)
            generation = Generation(
                service, [ready.prompt], ready.params, namespace=namespace, origin=origin, lifetime=lifetime
            )
            return await send(request, generation, writer, stream=bool(body.stream))

    @routes.post("/v1/messages/count_tokens", openapi_extra=takes(CountBody))
    async def count_tokens(request: Request) -> Response:
        body = await read_conversation(service, request, CountBody)
        service.check_model(body.model)
        read_lifetime(body, request.headers)  # counting keeps nothing, but a wrong wish is told here already
        tenant = tenant_of(request)
        namespace = namespace_of(None, tenant)
        conversation = await read_said(request, body, lambda: conversation_of(body))
        prompt = await encode_chat(service, request, replace(conversation, namespace=namespace))
        service.bodies.keep(body, tenant, namespace)
        return JSONResponse({"input_tokens": len(prompt.ids)})

    return routes


async def arrive(service: Service, request: Request) -> Arrived[MessagesBody]:
    """Read a request and make its prompt.

    Raises:
        InvalidRequest, ApiError, ClientDisconnect: when it cannot be served, or does not come.
    """
    body = await read_conversation(service, request, MessagesBody)
    service.check_model(body.model)
    turn = await read_said(request, body, lambda: read_turn(service, body))
    namespace = namespace_of(body.cache_salt, tenant_of(request))
    lifetime = read_lifetime(body, request.headers)
    if body.max_tokens == 0:
        lifetime = replace(lifetime, prewarm=True)
    return await make_ready(service, request, body, turn, namespace=namespace, lifetime=lifetime)


def read_turn(service: Service, body: MessagesBody) -> Turn:
    """What the body asks for.

    Raises:
        InvalidRequest: naming a field that cannot be served.
    """
    for name in ("mcp_servers", "container"):
        if getattr(body, name):
            raise InvalidRequest(f"{name} is not supported; leave it out", param=name)
    if body.max_tokens < 0:
        why = f"must be at least 1, or 0 to compute the prompt alone, got {json_value(body.max_tokens)}"
        raise InvalidRequest(f"max_tokens {why}", param="max_tokens")
    given = {name: getattr(body, name) for name in ("temperature", "top_p", "seed") if getattr(body, name) is not None}
    params = SamplingParams(
        # None at all is the wish to compute the prompt and nothing else.
        max_tokens=min(body.max_tokens, service.engine.max_model_len) or None,
        top_k=min(body.top_k or 0, service.engine.tokenizer.vocab_size),
        stop=stop_strings(body.stop_sequences, "stop_sequences"),
        **given,
    )
    placed = _placed(body)
    return Turn(
        conversation=_conversation(body, placed),
        params=params,
        choice=_tool_choice(body.tool_choice),
        schema=_schema(body.output_config),
        places=Places(placed),
    )


def conversation_of(body: CountBody) -> Conversation:
    """The messages and tools of the body.

    Raises:
        InvalidRequest: naming what is wrong with one.
    """
    return _conversation(body, _placed(body))


def _placed(body: CountBody) -> tuple[Placed, ...]:
    check_any(body.messages)
    return (*read_system(body.system), *body.read_items(_add_messages))


def _add_messages(messages: list[Placed], at: int, message: Mapping[str, Any]) -> None:
    if message.get("cache_control") is not None:
        where = f"messages[{at}].cache_control"
        raise InvalidRequest(
            f"{where} is not allowed: a breakpoint stands on a block of content, on a tool or on the whole request",
            param=where,
        )
    add_messages(messages, at, message)


def _conversation(body: CountBody, placed: tuple[Placed, ...]) -> Conversation:
    messages = tuple([each.message for each in placed])
    last = messages[-1]
    # The reply goes on with what the client put into the model's mouth.
    continues = last.role == "assistant" and not last.tool_calls
    return Conversation(messages, body.read_tools(read_tools), continues_last=continues)


class MessageWriter(ReplyWriter):
    """A message, or the events that build one."""

    closing = b""

    def __init__(self, service: Service, body: MessagesBody, ready: ReadyTurn) -> None:
        self._service = service
        self._max_tokens = body.max_tokens
        self._reader = ReplyReader(ready.new_parser())
        self.id = f"msg_{uuid.uuid4().hex[:24]}"

    async def whole(self, generation: Generation) -> dict[str, Any]:
        segments: list[Segment] = []
        async for part in generation:
            segments += self._reader.read(part.output)
            last = part
        return {
            **self._message(generation),
            "content": [_block(segment) for segment in _joined(segments)],
            **self._ending(last, generation),
        }

    async def events(self, generation: Generation) -> AsyncGenerator[bytes]:
        blocks = _BlockEvents()
        async for part in generation:
            if part.first:
                message = {**self._message(generation), "stop_reason": None, "stop_sequence": None}
                yield _event("message_start", message=message)
            for segment in self._reader.read(part.output):
                for data in blocks.of(segment):
                    yield data
            if part.output.finish_reason is not None:
                for data in blocks.close():
                    yield data
                usage = self._usage(generation)
                yield _event("message_delta", delta=self._ending(part, generation), usage=usage)
                yield _event("message_stop")

    def failure(self, error: Exception) -> bytes:
        return event(to_api_error(error).anthropic_body(None), name="error")

    def _message(self, generation: Generation) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._service.model_name,
            "content": [],
            "container": None,
            "diagnostics": anthropic_diagnostics(generation.origin, generation.diagnoses),
            "stop_details": None,
            "usage": {
                **self._usage(generation),
                "cache_creation": self._creation(generation),
                "inference_geo": None,
                "service_tier": "standard",
            },
        }

    def _usage(self, generation: Generation) -> dict[str, Any]:
        """Anthropic's `usage`: its three counts of input tokens add up to the prompt."""
        usage = generation.usage()
        written = usage.written_tokens(caching=self._service.caching)
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"thinking_tokens": self._reader.reasoning_tokens},
            "server_tool_use": None,
            **usage_sibling(generation.diagnoses),
        }

    def _creation(self, generation: Generation) -> dict[str, int]:
        """How long what is newly cached is to be kept."""
        usage = generation.usage()
        written = usage.written_tokens(caching=self._service.caching)
        prompt = generation.prompts[0]
        short, long = split_written(prompt, generation.lifetime, usage.cached_tokens, written, long_s=3600.0)
        return {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}

    def _ending(self, last: Part, generation: Generation) -> dict[str, Any]:
        output = last.output
        sequence = output.stop_reason if isinstance(output.stop_reason, str) else None
        if generation.lifetime.prewarm:
            reason = "max_tokens"
        elif output.finish_reason == "stop" and self._reader.num_calls:
            reason = "tool_use"
        elif sequence is not None:
            reason = "stop_sequence"
        elif output.finish_reason == "length" and generation.usage().completion_tokens < self._max_tokens:
            reason = "model_context_window_exceeded"
        else:
            reason = _STOP_REASONS[output.finish_reason or "stop"]
        return {"stop_reason": reason, "stop_sequence": sequence}


class _BlockEvents:
    """Turns segments into the events of content blocks, one block after the other."""

    def __init__(self) -> None:
        self._index = -1
        self._open: type[Segment] | None = None

    def of(self, segment: Segment) -> Iterator[bytes]:
        """The events that a segment adds."""
        if isinstance(segment, Call) or self._open is not type(segment):
            yield from self.close()
            self._index += 1
            self._open = type(segment)
            yield _event("content_block_start", index=self._index, content_block=_empty_block(segment))
        match segment:
            case Text(text):
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case Call():
                yield self._delta({"type": "input_json_delta", "partial_json": segment.arguments})

    def close(self) -> Iterator[bytes]:
        """The events that end the open block, if one is open."""
        if self._open is None:
            return
        if self._open is Reasoning:
            yield self._delta({"type": "signature_delta", "signature": SIGNATURE})
        yield _event("content_block_stop", index=self._index)
        self._open = None

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name=name)


def _joined(segments: Sequence[Segment]) -> list[Segment]:
    """The segments, with neighbours of one kind made one."""
    joined: list[Segment] = []
    for segment in segments:
        match segment, joined[-1] if joined else None:
            case Text(text), Text(before):
                joined[-1] = Text(before + text)
            case Reasoning(text), Reasoning(before):
                joined[-1] = Reasoning(before + text)
            case _:
                joined.append(segment)
    return joined


def _block(segment: Segment) -> dict[str, Any]:
    match segment:
        case Text(text):
            return {"type": "text", "text": text, "citations": None}
        case Reasoning(text):
            return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
        case Call():
            return {**_empty_block(segment), "input": json.loads(segment.arguments)}


def _empty_block(segment: Segment) -> dict[str, Any]:
    match segment:
        case Text():
            return {"type": "text", "text": "", "citations": None}
        case Reasoning():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case Call(name=name):
            return {
                "type": "tool_use",
                "id": f"toolu_{uuid.uuid4().hex[:24]}",
                "name": name,
                "input": {},
                "caller": {"type": "direct"},
            }


def _tool_choice(value: Any) -> ToolChoice:
    match value:
        case None:
            return ToolChoice()
        case {"type": "auto" | "any" | "none" as kind}:
            parallel = value.get("disable_parallel_tool_use") is not True
            return ToolChoice("required" if kind == "any" else kind, parallel=parallel)
        case {"type": "tool", "name": str() as name}:
            return ToolChoice("required", (name,), parallel=False)
    raise InvalidRequest(
        "tool_choice must be an object whose type is 'auto', 'any', 'none', or 'tool' with a name", param="tool_choice"
    )


def _schema(output_config: dict[str, Any] | None) -> Mapping[str, Any] | None:
    match output_config:
        case None | {"format": None}:
            return None
        case {"format": {"type": "json_schema", "schema": dict() as schema}}:
            return schema
        case {"format": _}:
            raise InvalidRequest(
                "output_config.format must have type 'json_schema' and a schema", param="output_config.format"
            )
    return None
