"""`POST /v1/completions`: OpenAI's plain completions, of texts or of token ids.

Knows the fields that only plain completions have and the shape of their replies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mainstem.errors import InvalidRequest
from mainstem.server.auth import tenant_of
from mainstem.server.diagnostics import comparison_id, origin_of
from mainstem.server.generation import Generation, Part
from mainstem.server.lifetime import read_lifetime
from mainstem.server.logprobs import CompletionLogprobs
from mainstem.server.openapi import takes
from mainstem.server.prompts import MAX_SEQUENCES, Prompt, completion_prompts
from mainstem.server.protocol import DEFAULT_COMPLETION_TOKENS, CompletionBody, sampling_params
from mainstem.server.replies import Choice, ReplyShape, answer
from mainstem.server.service import Service
from mainstem.server.validation import read_body


def router(service: Service) -> APIRouter:
    """The route, bound to a service."""
    routes = APIRouter()

    @routes.post("/v1/completions", openapi_extra=takes(CompletionBody))
    async def completions(request: Request) -> Response:
        service.check_open()
        body = await read_body(request, CompletionBody, limit=service.body_limit)
        service.check_model(body.model)
        check_supported(body)
        engine = service.engine
        params = sampling_params(
            body,
            max_tokens=DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens,
            logprobs=body.logprobs,
            max_model_len=engine.max_model_len,
            vocab_size=engine.tokenizer.vocab_size,
        )
        candidates = num_candidates(body)
        namespace = body.namespace(tenant_of(request))
        lifetime = read_lifetime(body, request.headers)
        prompts = await completion_prompts(service, request, body.prompt, candidates)
        shape = CompletionShape(service, body, prompts, params.n)
        if candidates > params.n:
            # They are chosen by their log-probabilities, whether or not those are reported.
            params = replace(params, n=candidates, logprobs=params.logprobs or 0)
        origin = origin_of(
            request,
            shape.id,
            lifetime=lifetime,
            key=body.prompt_cache_key,
            compare_with=comparison_id(body.prompt_cache_options),
        )
        generation = Generation(service, prompts, params, namespace=namespace, origin=origin, lifetime=lifetime)
        return await answer(request, generation, shape, stream=bool(body.stream), include_usage=body.include_usage)

    return routes


class CompletionShape(ReplyShape):
    """Texts, and pieces of texts; both have the same shape."""

    id_prefix = "cmpl"
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, service: Service, body: CompletionBody, prompts: Sequence[Prompt], n: int) -> None:
        super().__init__(service)
        self._with_ids = bool(body.return_token_ids)
        self._echo = bool(body.echo)
        self._prompts = prompts
        self._n = n
        self._logprobs = [
            None if body.logprobs is None else CompletionLogprobs(service.engine.tokenizer, body.logprobs)
            for _ in range(len(prompts) * n)
        ]

    def chosen(self, choices: list[Choice]) -> list[Choice]:
        if len(choices) == len(self._prompts) * self._n:
            return choices
        candidates = len(choices) // len(self._prompts)
        best: list[Choice] = []
        for first in range(0, len(choices), candidates):
            ranked = sorted(choices[first : first + candidates], key=mean_logprob, reverse=True)
            best += ranked[: self._n]
        for index, choice in enumerate(best):
            choice.index = index
        return best

    def choice(self, choice: Choice) -> dict[str, Any]:
        ids = {"token_ids": choice.token_ids, "prompt_token_ids": self._prompt_ids(choice.index)}
        return {
            "index": choice.index,
            "text": self._echoed(choice.index) + choice.text,
            "logprobs": self._logprobs_of(choice.index, choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            **(ids if self._with_ids else {}),
        }

    def chunks(self, part: Part) -> Iterator[dict[str, Any]]:
        output = part.output
        text = (self._echoed(part.choice) if part.first else "") + output.text
        if text or output.logprobs or output.finish_reason or (self._with_ids and output.token_ids):
            ids = {"token_ids": output.token_ids}
            if part.first and self._with_ids:
                ids["prompt_token_ids"] = self._prompt_ids(part.choice)
            yield {
                "index": part.choice,
                "text": text,
                "logprobs": self._logprobs_of(part.choice, output.logprobs),
                "finish_reason": output.finish_reason,
                "stop_reason": output.stop_reason,
                **(ids if self._with_ids else {}),
            }

    def _logprobs_of(self, index: int, positions: Any) -> dict[str, Any] | None:
        logprobs = self._logprobs[index]
        return None if logprobs is None else logprobs.of(positions)

    def _echoed(self, index: int) -> str:
        if not self._echo:
            return ""
        prompt = self._prompts[index // self._n]
        if prompt.text is not None:
            return prompt.text
        text: str = self.service.engine.tokenizer.decode(prompt.ids, skip_special_tokens=False)
        return text

    def _prompt_ids(self, index: int) -> tuple[int, ...]:
        return tuple(self._prompts[index // self._n].ids.tolist())


def check_supported(body: CompletionBody) -> None:
    """Refuse what would silently do something other than what the client asked for.

    Raises:
        InvalidRequest: naming the field.
    """
    if body.suffix is not None:
        raise InvalidRequest("suffix is not supported; leave it out", param="suffix")
    if body.echo and body.logprobs is not None:
        raise InvalidRequest("echo with logprobs is not supported; ask for one of them", param="echo")


def num_candidates(body: CompletionBody) -> int:
    """How many replies to generate to each prompt: `best_of`, of which the best `n` are returned.

    Raises:
        InvalidRequest: when `best_of` is out of range, or wanted of a stream.
    """
    n = 1 if body.n is None else body.n
    if body.best_of is None or body.best_of == n:
        return n
    if not n <= body.best_of <= MAX_SEQUENCES:
        raise InvalidRequest(
            f"best_of must be between n ({n}) and {MAX_SEQUENCES}, got {body.best_of}", param="best_of"
        )
    if body.stream:
        raise InvalidRequest(
            "best_of above n cannot be streamed: which replies are best is known last", param="best_of"
        )
    return body.best_of


def mean_logprob(choice: Choice) -> float:
    """Log-probability per token of a reply, the measure by which `best_of` chooses."""
    return fmean(position.chosen.logprob for position in choice.logprobs)
