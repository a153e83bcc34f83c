"""What the engine tells about a request while it runs and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from mainstem.explain import MissCause, Record
from mainstem.model.logprobs import PositionLogprobs, TokenLogprob
from mainstem.scheduler import Request
from mainstem.tree import CacheStats, EvictionReason

__all__ = [
    "EngineStats",
    "FinishReason",
    "PositionLogprobs",
    "PromptUsage",
    "RequestOutput",
    "RequestUsage",
    "StepTimes",
    "TokenLogprob",
    "usage_of",
]

FinishReason = Literal["stop", "length", "abort"]


class PromptUsage(NamedTuple):
    """How much of a prompt was cached: counted once, when the first of its replies was let in.

    What later replies to it find cached, or compute again, is in their own usage.

    Attributes:
        cached_tokens: as that reply's.
        record: why its uncached tokens were uncached; None if no records are kept.
    """

    cached_tokens: int
    record: Record | None


class RequestUsage(NamedTuple):
    """Where a request's tokens came from. `cached_tokens + prefilled_tokens == prompt_tokens` unless it was preempted.

    Attributes:
        prompt_tokens: length of the prompt.
        cached_tokens: prompt tokens whose KV was found at admission, or computed by another request it waited for.
        prefilled_tokens: prompt tokens this request had computed for itself.
        completion_tokens: tokens generated so far.
        queue_s: seconds from arrival to first admission.
        ttft_s: seconds from arrival to the first generated token; None before it.
        record: why its uncached tokens were uncached; None before it is admitted, or if no records are kept.
        drafted_tokens: tokens that were guessed and checked ahead; see docs/speculation.md.
        accepted_tokens: of the completion tokens, those that were guessed right.
        first: of the prompt, where it has several replies; None before one of them is admitted.
    """

    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    completion_tokens: int
    queue_s: float
    ttft_s: float | None
    record: Record | None = None
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    first: PromptUsage | None = None

    @property
    def of_prompt(self) -> PromptUsage:
        """What the prompt's tokens count as, whatever its number of replies."""
        return self.first or PromptUsage(self.cached_tokens, self.record)

    def __repr__(self) -> str:
        """Without what is zero or not known, and what is not this reply's own."""
        told = {name: value for name, value in self._asdict().items() if value and name != "first"}
        for name in ("queue_s", "ttft_s"):
            if name in told:
                told[name] = round(told[name], 4)
        return f"RequestUsage({', '.join(f'{name}={value!r}' for name, value in told.items())})"


def usage_of(request: Request, first_token_at: float | None, first: PromptUsage | None = None) -> RequestUsage:
    """A request's token counts and times so far.

    Args:
        request: that they are of.
        first_token_at: by its clock; None before the first token.
        first: see `RequestUsage`.
    """
    admitted = request.admitted_at
    return RequestUsage(
        prompt_tokens=request.num_prompt,
        cached_tokens=request.num_cached,
        prefilled_tokens=request.num_prefilled,
        completion_tokens=request.num_generated,
        queue_s=0.0 if admitted is None else admitted - request.arrival,
        ttft_s=None if first_token_at is None else first_token_at - request.arrival,
        record=record_of(request),
        drafted_tokens=request.num_drafted,
        accepted_tokens=request.num_accepted,
        first=first,
    )


def record_of(request: Request) -> Record | None:
    """What is noted of a request; None before it is admitted, or if no records are kept."""
    return request.record if isinstance(request.record, Record) else None


class RequestOutput(NamedTuple):
    """News of one reply: the text and tokens since the last output, and how it ended if it did.

    Text may lag behind tokens (half a character, the possible beginning of a stop string), never the other way round;
    the last output carries whatever text was held back.

    Attributes:
        index: which of the request's `n` replies.
        text: new text, often a word or less, possibly empty.
        token_ids: new token ids.
        logprobs: one entry per new token when the request asked for them, else empty.
        finish_reason: None while it runs; then stop (end of turn, stop string or stop token), length, or abort.
        stop_reason: the stop string or stop token id that ended it; None for the model's own end of turn.
        usage: counts so far, of this reply.
        at: `time.perf_counter()` when the newest token was sampled.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    usage: RequestUsage
    at: float

    def followed_by(self, later: RequestOutput) -> RequestOutput:
        """Both as one."""
        return later._replace(
            text=self.text + later.text,
            token_ids=self.token_ids + later.token_ids,
            logprobs=self.logprobs + later.logprobs,
        )


class EngineStats(NamedTuple):
    """A snapshot of the engine between two steps; token counts are totals since start.

    Attributes:
        prompt_tokens: in prompts, counted once, when a request is first admitted.
        cached_tokens: of these, found in the prefix cache or taken from a request that was computing them.
        prefilled_tokens: prompt tokens computed, those computed again after a preemption included.
        context_tokens: of the prompt tokens, those computed ahead for branches, which a later prompt begins with.
        held_prefixes: computed prefixes that live branches hold; branches with the same prefix share one.
        peak_kv_tokens: most slots that were protected in a step.
        peak_unshared_tokens: most slots that running requests and held prefixes would have taken in a step, had each
            been stored by itself.
        masks: computed for the tokens of finished replies that had a grammar.
        mask_seconds: that took.
        recomputed_tokens: prompt tokens computed though they had been computed before, and were evicted to make room.
        thrash_tokens_per_s: these, over the last minute.
        evicted_by_reason: tokens that left the prefix cache, by reason; empty where the cache does not tell.
        misses: prompt tokens that were not cached, by cause; empty if no records are kept.
        drafted_tokens: tokens that were guessed and checked ahead.
        accepted_tokens: of the generated tokens, those that were guessed right.
    """

    cache: CacheStats
    running: int
    waiting: int
    steps: int
    preemptions: int
    requests_finished: int
    requests_aborted: int
    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    context_tokens: int
    held_prefixes: int
    peak_kv_tokens: int
    peak_unshared_tokens: int
    masks: int = 0
    mask_seconds: float = 0.0
    recomputed_tokens: int = 0
    thrash_tokens_per_s: float = 0.0
    evicted_by_reason: Mapping[EvictionReason, int] = {}
    misses: Mapping[MissCause, int] = MappingProxyType({})
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(slots=True)
class StepTimes:
    """Where the time of an engine's steps went, in seconds since its start.

    Attributes:
        step_s: in steps altogether, by the clock on the wall.
        model_s: of these, in the model and in sampling.
        other_cpu_s: CPU time of the engine's thread in all the rest of its steps: scheduling, packing, bookkeeping.
    """

    step_s: float = 0.0
    model_s: float = 0.0
    other_cpu_s: float = 0.0
