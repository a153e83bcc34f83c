"""The fields of generation requests: OpenAI's, and the extensions that other engines made customary.

Knows each field's type and how the fields become `SamplingParams`. What a prompt is, and how replies look, is the
business of `prompts`, `chat` and `completions`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic import Field

from mainstem.errors import InvalidRequest
from mainstem.params import SamplingParams
from mainstem.server.conversation_body import ConversationBody
from mainstem.server.lifetime import LifetimeBody
from mainstem.server.validation import Body

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1000
MAX_STOP_TOKEN_IDS = 128
MAX_SALT_CHARACTERS = 256
DEFAULT_COMPLETION_TOKENS = 16
Objects: TypeAlias = list[dict[str, Any]]


class StreamOptions(Body):
    """`stream_options`: whether a last chunk carries the usage."""

    include_usage: bool | None = None


class GenerationBody(LifetimeBody):
    """What chat and plain completions have in common. Null always means the default.

    Lists fail fast: one wrong entry is reported anyway, and recording millions of them would take gigabytes.
    """

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = Field(None, fail_fast=True)
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: Any = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that carries the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def namespace(self, tenant: tuple[str, ...]) -> tuple[str, ...]:
        """The part of the prefix cache this request may read: the tenant's, narrowed by `cache_salt` if given.

        Raises:
            InvalidRequest: when the salt is empty or too long.
        """
        return namespace_of(self.cache_salt, tenant)


class ChatBody(GenerationBody, ConversationBody):
    """Body of `POST /v1/chat/completions`."""

    messages: Objects = Field(fail_fast=True)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Objects | None = Field(None, fail_fast=True)
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None


class CompletionBody(GenerationBody):
    """Body of `POST /v1/completions`."""

    prompt: Any
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: Any = None


def sampling_params(
    body: GenerationBody, *, max_tokens: int | None, logprobs: int | None, max_model_len: int, vocab_size: int
) -> SamplingParams:
    """The generation that the common fields ask for.

    Args:
        max_tokens: most tokens to generate; None for up to the context's end.
        logprobs: how many alternatives to report at each position; None for no log-probabilities at all.
        max_model_len: longest prompt plus reply, in tokens.
        vocab_size: token ids are below this.

    Raises:
        InvalidRequest: when a value cannot be served.
    """
    if body.logit_bias:
        raise InvalidRequest("logit_bias is not supported; leave it out", param="logit_bias")
    given = {
        name: getattr(body, name)
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "n",
            "seed",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "ignore_eos",
        )
        if getattr(body, name) is not None
    }
    return SamplingParams(
        # Larger numbers mean the same and may not fit a tensor.
        max_tokens=None if max_tokens is None else min(max_tokens, max_model_len),
        top_k=min(body.top_k or 0, vocab_size),
        stop=stop_strings(body.stop, "stop"),
        stop_token_ids=_stop_token_ids(body.stop_token_ids or [], vocab_size),
        logprobs=logprobs,
        **given,
    )


def namespace_of(cache_salt: str | None, tenant: tuple[str, ...]) -> tuple[str, ...]:
    """The part of the prefix cache that a request may read: the tenant's, narrowed by a salt if there is one.

    Raises:
        InvalidRequest: when the salt is empty or too long.
    """
    if cache_salt is None:
        return tenant
    if not 1 <= len(cache_salt) <= MAX_SALT_CHARACTERS:
        raise InvalidRequest(f"cache_salt must have 1 to {MAX_SALT_CHARACTERS} characters", param="cache_salt")
    return (*tenant, "salt", cache_salt)


def stop_strings(value: Any, name: str) -> tuple[str, ...]:
    """The stop strings in the field of this name: a string, a list of strings, or null.

    Raises:
        InvalidRequest: when it is something else, or too much.
    """
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise InvalidRequest(f"{name} must be a string or a list of strings", param=name)
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"{name} may have at most {MAX_STOPS} strings, got {len(stops)}", param=name)
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise InvalidRequest(f"a stop string may have at most {MAX_STOP_CHARACTERS} characters", param=name)
    return tuple(stops)


def _stop_token_ids(ids: list[int], vocab_size: int) -> tuple[int, ...]:
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(f"stop_token_ids may have at most {MAX_STOP_TOKEN_IDS} ids", param="stop_token_ids")
    for position, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"stop_token_ids[{position}] must be between 0 and {vocab_size - 1}",
                param=f"stop_token_ids[{position}]",
            )
    return tuple(ids)
