"""`POST /v1/chat/completions`: OpenAI's conversations.

Knows the fields that only chat has and the form of its replies: it is the translation of this API, and of nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mainstem.errors import InvalidRequest
from mainstem.params import MAX_LOGPROBS
from mainstem.server.arrival import Arrived, make_ready
from mainstem.server.auth import tenant_of
from mainstem.server.bodies import read_conversation, read_said
from mainstem.server.diagnostics import comparison_id, origin_of
from mainstem.server.generation import Generation, Part, Usage
from mainstem.server.lifetime import read_lifetime
from mainstem.server.logprobs import chat_logprobs
from mainstem.server.openapi import takes
from mainstem.server.protocol import ChatBody, sampling_params
from mainstem.server.replies import Choice, ReplyReader, ReplyShape, answer
from mainstem.server.service import Service
from mainstem.server.turns import ANY_OBJECT, ReadyTurn, Turn, naming_schema
from mainstem.tokens import Conversation
from mainstem.tokens.chat import add_message, check_any, places_of, read_tools
from mainstem.tools import Call, Reasoning, Segment, Text, ToolChoice


def router(service: Service) -> APIRouter:
    """The route, bound to a service."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra=takes(ChatBody))
    async def chat_completions(request: Request) -> Response:
        service.check_open()
        body, turn, namespace, lifetime, ready = await arrive(service, request)
        shape = ChatShape(service, body, ready)
        with naming_schema(turn, schema_param="response_format"):
            origin = origin_of(
                request,
                shape.id,
                lifetime=lifetime,
                turn=turn,
                key=body.prompt_cache_key,
                compare_with=comparison_id(body.prompt_cache_options),
            )
            generation = Generation(
                service, [ready.prompt], ready.params, namespace=namespace, origin=origin, lifetime=lifetime
            )
            return await answer(request, generation, shape, stream=bool(body.stream), include_usage=body.include_usage)

    return routes


async def arrive(service: Service, request: Request) -> Arrived[ChatBody]:
    """Read a request and make its prompt.

    Raises:
        InvalidRequest, ApiError, ClientDisconnect: when it cannot be served, or does not come.
    """
    body = await read_conversation(service, request, ChatBody)
    service.check_model(body.model)
    turn = await read_said(request, body, lambda: read_turn(service, body))
    namespace = body.namespace(tenant_of(request))
    lifetime = read_lifetime(body, request.headers)
    return await make_ready(service, request, body, turn, namespace=namespace, lifetime=lifetime)


def read_turn(service: Service, body: ChatBody) -> Turn:
    """What the body asks for.

    Raises:
        InvalidRequest: naming a field that cannot be served.
    """
    check_supported(body)
    check_any(body.messages)
    said = body.read_items(add_message)
    conversation = Conversation(tuple([placed.message for placed in said]), body.read_tools(read_tools))
    params = sampling_params(
        body,
        max_tokens=_max_tokens(body) or service.config.default_max_tokens or None,
        logprobs=_logprobs(body),
        max_model_len=service.engine.max_model_len,
        vocab_size=service.engine.tokenizer.vocab_size,
    )
    return Turn(
        conversation=conversation,
        params=params,
        choice=_tool_choice(body.tool_choice, parallel=body.parallel_tool_calls is not False),
        schema=_schema(body.response_format),
        places=places_of(said),
    )


class ChatShape(ReplyShape):
    """Messages, and deltas of messages."""

    id_prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, service: Service, body: ChatBody, ready: ReadyTurn) -> None:
        super().__init__(service)
        self._top = _logprobs(body)
        self._with_ids = bool(body.return_token_ids)
        self._readers = [ReplyReader(ready.new_parser()) for _ in range(ready.params.n)]

    def choice(self, choice: Choice) -> dict[str, Any]:
        reader = self._readers[choice.index]
        segments = [segment for output in choice.outputs for segment in reader.read(output)]
        return {
            "index": choice.index,
            "message": _message(segments),
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": _finish_reason(choice.finish_reason, reader),
            "stop_reason": choice.stop_reason,
            **({"token_ids": choice.token_ids} if self._with_ids else {}),
        }

    def chunks(self, part: Part) -> Iterator[dict[str, Any]]:
        output, reader = part.output, self._readers[part.choice]
        if part.first:
            yield self._chunk(part.choice, {"role": "assistant", "content": "", "refusal": None})
        num_calls = reader.num_calls
        deltas = list(_deltas(reader.read(output), num_calls))
        beside: dict[str, Any] = {}
        if output.logprobs:
            beside["logprobs"] = self._logprobs(output.logprobs)
        if self._with_ids and output.token_ids:
            beside["token_ids"] = output.token_ids
        if beside and not deltas:
            deltas = [{"content": ""}]
        for position, delta in enumerate(deltas):
            yield {**self._chunk(part.choice, delta), **({} if position else beside)}
        if output.finish_reason is not None:
            yield {
                **self._chunk(part.choice, {}),
                "finish_reason": _finish_reason(output.finish_reason, reader),
                "stop_reason": output.stop_reason,
            }

    def usage(self, usage: Usage) -> dict[str, Any]:
        thought = sum(reader.reasoning_tokens for reader in self._readers)
        return super().usage(usage._replace(reasoning_tokens=thought))

    def _logprobs(self, positions: Any) -> dict[str, Any] | None:
        if self._top is None:
            return None
        return chat_logprobs(self.service.engine.tokenizer, positions, self._top)

    @staticmethod
    def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def check_supported(body: ChatBody) -> None:
    """Refuse what would silently do something other than what the client asked for.

    Raises:
        InvalidRequest: naming the field.
    """
    if body.functions or body.function_call not in (None, "auto", "none"):
        raise InvalidRequest("functions are not supported; use tools", param="functions")
    if body.modalities not in (None, ["text"]):
        raise InvalidRequest("modalities must be ['text']; this server only makes text", param="modalities")
    if body.audio is not None:
        raise InvalidRequest("audio is not supported; this server only makes text", param="audio")


def _message(segments: list[Segment]) -> dict[str, Any]:
    said = "".join(segment.text for segment in segments if isinstance(segment, Text))
    thought = "".join(segment.text for segment in segments if isinstance(segment, Reasoning))
    calls = [segment for segment in segments if isinstance(segment, Call)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not said else said,
        "refusal": None,
        "annotations": [],
    }
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [_call(call, call.arguments) for call in calls]
    return message


def _deltas(segments: list[Segment], num_calls: int) -> Iterator[dict[str, Any]]:
    """What a stream says of the segments; `num_calls` came before."""
    for segment in segments:
        match segment:
            case Text(text):
                yield {"content": text}
            case Reasoning(text):
                yield {"reasoning_content": text}
            case Call() as call:
                yield {"tool_calls": [{"index": num_calls, **_call(call, "")}]}
                yield {"tool_calls": [{"index": num_calls, "function": {"arguments": call.arguments}}]}
                num_calls += 1


def _call(call: Call, arguments: str) -> dict[str, Any]:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _finish_reason(reason: str | None, reader: ReplyReader) -> str | None:
    return "tool_calls" if reason == "stop" and reader.num_calls else reason


def _tool_choice(value: Any, *, parallel: bool) -> ToolChoice:
    match value:
        case None | "auto" | "none" | "required":
            return ToolChoice(value or "auto", parallel=parallel)
        case {"type": "function", "function": {"name": str() as name}}:
            return ToolChoice("required", (name,), parallel=False)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*tools]}}:
            return ToolChoice(mode, tuple(_name_of_tool(tool) for tool in tools), parallel=parallel)
    raise InvalidRequest(
        'tool_choice must be \'auto\', \'none\', \'required\' or {"type": "function", "function": {"name": "..."}}',
        param="tool_choice",
    )


def _name_of_tool(tool: Any) -> str:
    match tool:
        case {"function": {"name": str() as name}}:
            return name
    raise InvalidRequest("tool_choice lists a tool that is no function with a name", param="tool_choice")


def _schema(response_format: Any) -> Mapping[str, Any] | None:
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return ANY_OBJECT
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}}:
            return schema
    raise InvalidRequest(
        "response_format must have type 'text', 'json_object' or 'json_schema', the last with a json_schema.schema",
        param="response_format",
    )


def _max_tokens(body: ChatBody) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        wanted: int | None = getattr(body, name)
        if wanted is not None:
            if wanted < 1:
                raise InvalidRequest(f"{name} must be at least 1, got {wanted}", param=name)
            return wanted
    return None


def _logprobs(body: ChatBody) -> int | None:
    top = body.top_logprobs or 0
    if not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_LOGPROBS}, got {top}", param="top_logprobs")
    if body.logprobs:
        return top
    if body.top_logprobs is not None:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None
