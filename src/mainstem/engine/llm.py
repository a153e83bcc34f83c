"""The engine in one's own process: prompts in, replies out.

The engine runs in a thread of its own, so several threads may share an `LLM`, and Ctrl-C interrupts the caller only.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from mainstem.config import EngineConfig
from mainstem.engine.outputs import EngineStats, FinishReason, PositionLogprobs, RequestOutput, RequestUsage
from mainstem.engine.thread import EngineThread
from mainstem.errors import InvalidRequest, MainstemError
from mainstem.model import Progress, no_progress
from mainstem.params import SamplingParams
from mainstem.tree import Namespace, TokenArray, as_tokens

Prompt = str | Sequence[int] | TokenArray


@dataclass(slots=True)
class ReplyResult:
    """One finished reply.

    Attributes:
        text: what was generated, without the stop string that ended it.
        token_ids: every generated token.
        logprobs: one entry per token if they were asked for.
        finish_reason: stop, length or abort.
        stop_reason: the stop string or token id that ended it, None for the model's own end of turn.
        usage: token counts and times, see `RequestUsage`.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: RequestUsage | None = None

    def add(self, output: RequestOutput) -> None:
        """Take in the next output."""
        self.text += output.text
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.finish_reason = output.finish_reason
        self.stop_reason = output.stop_reason
        self.usage = output.usage


@dataclass(slots=True)
class Generation:
    """A prompt's replies; the properties speak of the first one."""

    prompt_token_ids: TokenArray
    replies: list[ReplyResult]

    @property
    def text(self) -> str:
        """Text of the first reply."""
        return self.replies[0].text

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the first reply."""
        return self.replies[0].token_ids

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed for this prompt, whichever of its replies came first."""
        return max(0, len(self.prompt_token_ids) - self.prefilled_tokens)

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens that were computed for this prompt's replies together."""
        return sum(reply.usage.prefilled_tokens for reply in self.replies if reply.usage)

    @property
    def ttft_s(self) -> float | None:
        """Seconds from submission to the first token."""
        usage = self.replies[0].usage
        return usage.ttft_s if usage else None


class LLM:
    """A model in this process.

    >>> llm = LLM("smollm2")
    >>> llm.generate("The capital of France is", SamplingParams(max_tokens=8, temperature=0))[0].text

    Args:
        model: see `EngineConfig.model`.
        progress: told about the fetching and loading of the model.
        settings: any other field of `EngineConfig`.

    Raises:
        ModelLoadError: when the model cannot be had.
        ConfigError: when a setting is wrong.
    """

    def __init__(self, model: str = "smollm2", *, progress: Progress = no_progress, **settings: Any) -> None:
        self.config = EngineConfig(model=model, **settings)
        self._engine = EngineThread(self.config, progress)
        self.model_name = self._engine.model_name
        self.budget = self._engine.budget
        self.core = self._engine.core
        self.tokenizer = self.core.tokenizer
        weakref.finalize(self, self._engine.stop)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        namespace: Namespace = (),
        progress: Progress = no_progress,
    ) -> list[Generation]:
        """Continue prompts, all together; the results have their order.

        Args:
            prompts: a text, a sequence of token ids, or a list of these.
            params: for all of them.
            namespace: which part of the prefix cache they may use.
            progress: told how many replies are finished.

        Raises:
            InvalidRequest, PromptTooLong: when one of the prompts cannot be served; then none is.
            EngineFailed: when computing failed.
        """
        params = params or SamplingParams()
        tokens = [self._tokens(prompt) for prompt in _as_list(prompts)]
        for prompt in tokens:
            self.core.check(prompt, params, namespace)
        generations = [Generation(prompt, [ReplyResult() for _ in range(params.n)]) for prompt in tokens]
        news: SimpleQueue[tuple[Generation, RequestOutput | MainstemError]] = SimpleQueue()
        ids: list[str] = []
        total = len(tokens) * params.n
        finished = 0

        def submit() -> None:
            for generation in generations:
                sink = partial(_put, news, generation)
                ids.extend(self.core.submit(generation.prompt_token_ids, params, sink, namespace=namespace))

        try:
            self._engine.ask(submit).result()
            while finished < total:
                generation, output = news.get()
                if isinstance(output, MainstemError):
                    raise output
                generation.replies[output.index].add(output)
                if output.finish_reason is not None:
                    finished += 1
                    progress("generating", finished, total)
        finally:
            if finished < total:
                self._engine.send(lambda: self.core.abort(ids))
        return generations

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None, **options: Any
    ) -> Generation:
        """Reply to a conversation of messages with `role` and `content`; options as for `generate`."""
        return self.generate([self.tokenizer.encode_chat(messages)], params, **options)[0]

    def stats(self) -> EngineStats:
        """Counts of requests and tokens, and where the pool's slots are."""
        return self._engine.ask(self.core.stats).result()

    def reset_cache(self) -> int:
        """Forget every cached token that no running request uses; returns how many."""
        return self._engine.ask(self.core.reset_cache).result()

    def check_integrity(self) -> None:
        """Verify every invariant.

        Raises:
            AssertionError: naming the broken one.
        """
        self._engine.ask(self.core.check_integrity).result()

    def _tokens(self, prompt: Prompt) -> TokenArray:
        if isinstance(prompt, str):
            return self.tokenizer.encode_prompt(prompt)
        try:
            return as_tokens(prompt)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(f"a prompt is a text or a flat list of token ids: {error}", param="prompt") from None


def _put(
    news: SimpleQueue[tuple[Generation, RequestOutput | MainstemError]],
    generation: Generation,
    output: RequestOutput | MainstemError,
) -> None:
    news.put((generation, output))


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence | np.ndarray):
        raise InvalidRequest("prompts are a text, token ids, or a list of these", param="prompt")
    items: list[Any] = list(prompts)
    if any(item is None for item in items):
        raise InvalidRequest("a prompt is a text or a flat list of token ids", param="prompt")
    is_token_list = bool(items) and not isinstance(items[0], str) and not hasattr(items[0], "__len__")
    return [prompts] if is_token_list else items  # type: ignore[list-item]
