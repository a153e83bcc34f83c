"""`POST /v1/chat/completions`: OpenAI's conversations.

Knows the fields that only chat has and the shape of its replies. Rendering is the tokenizer's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mainstem.errors import InvalidRequest
from mainstem.params import MAX_LOGPROBS
from mainstem.server.auth import tenant_of
from mainstem.server.generation import Generation, Part
from mainstem.server.logprobs import chat_logprobs
from mainstem.server.prompts import Prompt, encode_chat
from mainstem.server.protocol import ChatBody, sampling_params
from mainstem.server.replies import Choice, ReplyShape, answer
from mainstem.server.service import Service
from mainstem.server.validation import read_body


def router(service: Service) -> APIRouter:
    """The route, bound to a service."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        service.check_open()
        body = await read_body(request, ChatBody, limit=service.body_limit)
        service.check_model(body.model)
        check_supported(body)
        check_tools(body.tools)
        engine = service.engine
        params = sampling_params(
            body,
            max_tokens=_max_tokens(body) or service.config.default_max_tokens or None,
            logprobs=_logprobs(body),
            max_model_len=engine.max_model_len,
            vocab_size=engine.tokenizer.vocab_size,
        )
        namespace = body.namespace(tenant_of(request))
        ids = await encode_chat(service, body.messages, tools=None if body.tool_choice == "none" else body.tools)
        shape = ChatShape(service, body)
        generation = Generation(service, [Prompt(ids, None)], params, namespace=namespace, request_id=shape.id)
        return await answer(request, generation, shape, stream=bool(body.stream), include_usage=body.include_usage)

    return routes


class ChatShape(ReplyShape):
    """Messages, and deltas of messages."""

    id_prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, service: Service, body: ChatBody) -> None:
        super().__init__(service)
        self._top = _logprobs(body)
        self._with_ids = bool(body.return_token_ids)

    def choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            **({"token_ids": choice.token_ids} if self._with_ids else {}),
        }

    def chunks(self, part: Part) -> Iterator[dict[str, Any]]:
        output = part.output
        if part.first:
            yield self._chunk(part.choice, {"role": "assistant", "content": "", "refusal": None})
        if output.text or output.logprobs or (self._with_ids and output.token_ids):
            yield {
                **self._chunk(part.choice, {"content": output.text}),
                "logprobs": self._logprobs(output.logprobs),
                **({"token_ids": output.token_ids} if self._with_ids else {}),
            }
        if output.finish_reason is not None:
            yield {
                **self._chunk(part.choice, {}),
                "finish_reason": output.finish_reason,
                "stop_reason": output.stop_reason,
            }

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
    if body.tool_choice not in (None, "auto", "none"):
        raise InvalidRequest(
            "tool_choice must be 'auto' or 'none'; forcing a tool call is not supported yet", param="tool_choice"
        )
    if body.functions or body.function_call not in (None, "auto", "none"):
        raise InvalidRequest("functions are not supported; use tools", param="functions")
    if body.response_format not in (None, {"type": "text"}):
        raise InvalidRequest(
            "response_format must be {'type': 'text'}; constrained output is not supported yet",
            param="response_format",
        )
    if body.modalities not in (None, ["text"]):
        raise InvalidRequest("modalities must be ['text']; this server only makes text", param="modalities")
    if body.audio is not None:
        raise InvalidRequest("audio is not supported; this server only makes text", param="audio")


def check_tools(tools: list[dict[str, Any]] | None) -> None:
    """Check that each tool is a function with a name, as chat templates expect.

    Raises:
        InvalidRequest: naming the tool.
    """
    for position, tool in enumerate(tools or ()):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise InvalidRequest(
                f"tools[{position}] must be of the form {{'type': 'function', 'function': {{...}}}}",
                param=f"tools[{position}]",
            )
        if not isinstance(function.get("name"), str):
            raise InvalidRequest(
                f"tools[{position}].function.name must be a string", param=f"tools[{position}].function.name"
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
