"""The engine in one's own process: prompts in, replies out.

The engine runs in a thread of its own, so several threads may share an `LLM`, and Ctrl-C interrupts the caller only.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self, cast

import numpy as np

from mainstem.config import EngineConfig, check_names
from mainstem.engine.asked import Asked, Submission
from mainstem.engine.branch import Branch, Score, generate_together, score_together
from mainstem.engine.history import new_history
from mainstem.engine.outputs import EngineStats
from mainstem.engine.prompt import Prompt, prompt_tokens
from mainstem.engine.result import Generation, ReplyResult
from mainstem.engine.sharing import SharingReport
from mainstem.engine.thread import EngineThread
from mainstem.errors import BranchError, InvalidRequest
from mainstem.model import Progress, no_progress
from mainstem.params import SamplingParams
from mainstem.tools import Dialect
from mainstem.tree import NO_HINTS, CacheHints, Namespace, TokenArray, namespace_key

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model in this process.

    >>> llm = LLM("smollm2")
    >>> llm.generate("The capital of France is", SamplingParams(max_tokens=8, temperature=0))[0].text

    Args:
        model: see `EngineConfig.model`.
        progress: told about the fetching and loading of the model.
        settings: any other field of `EngineConfig`.

    It may be used in a `with` statement, which closes it. One that is garbage collected is closed too.

    Raises:
        ModelLoadError: when the model cannot be had.
        ConfigError: when a setting is wrong.
    """

    def __init__(self, model: str = "smollm2", *, progress: Progress = no_progress, **settings: Any) -> None:
        check_names(EngineConfig, settings)
        self.config = EngineConfig(model=model, **settings)
        self._engine = EngineThread(self.config, progress)
        self.model_name = self._engine.model_name
        self.budget = self._engine.budget
        self.compute = self._engine.compute
        self.core = self._engine.core
        self.tokenizer = self.core.tokenizer
        self.history = new_history(self.config, self.tokenizer)
        self._dialect = Dialect(self.tokenizer)
        weakref.finalize(self, self._engine.stop)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        namespace: Namespace = (),
        hints: CacheHints = NO_HINTS,
        progress: Progress = no_progress,
    ) -> list[Generation]:
        """Continue prompts, all together; the results have their order.

        Args:
            prompts: a text, a sequence of token ids, or a list of these.
            params: for all of them.
            namespace: which part of the prefix cache they may use.
            hints: what is said about the future of what they compute; see docs/lifetime.md.
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
        total = len(tokens) * params.n
        finished = 0

        def submission(prompt: TokenArray) -> Submission:
            return lambda sink: self.core.submit(prompt, params, sink, namespace=namespace, hints=hints)

        asked = Asked(self._engine, [submission(prompt) for prompt in tokens], total)
        with closing(asked.outputs()) as outputs:
            for index, output in outputs:
                generations[index].replies[output.index].add(output)
                if output.finish_reason is not None:
                    finished += 1
                    progress("generating", finished, total)
        return generations

    def chat(self, messages: Messages, params: SamplingParams | None = None, **options: Any) -> Generation:
        """Reply to a conversation of messages with `role` and `content`; options as for `generate`.

        A reply that comes back in a later conversation has the tokens that were generated.
        """
        try:
            namespace = namespace_key(options.get("namespace", ()))
        except TypeError as error:
            raise InvalidRequest(str(error), param="namespace") from None
        text = self.tokenizer.render_chat(messages)
        prompt = self.history.encode(text, namespace=namespace, meaning=self._dialect.meaning(()))
        generation = self.generate([prompt.ids], params, **options)[0]
        for reply in generation.replies:
            self.history.remember(prompt, reply.token_ids, reply.text)
        return generation

    # -- branches -----------------------------------------------------------------------------------------------------

    def context(
        self,
        prompt: Prompt | Messages,
        *,
        namespace: Namespace = (),
        add_generation_prompt: bool = True,
        prefill: bool = True,
    ) -> Branch:
        """Compute a prompt once and keep it, to fork as many branches from as one likes; see docs/branches.md.

        Args:
            prompt: a text, token ids, or a conversation of messages with `role` and `content`.
            namespace: which part of the prefix cache it and its branches may use.
            add_generation_prompt: whether a conversation ends where the model's reply begins; without, appended text
                has to begin the next message.
            prefill: False to return at once; then it is computed when it is needed.

        Raises:
            InvalidRequest, PromptTooLong: when no reply could follow.
            OutOfSlots: when live branches hold the memory that it needs.
            EngineStopped, EngineFailed: when the engine is closed, or computing failed.
        """
        if isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
            messages = cast(Messages, prompt)
            tokens = self.tokenizer.encode_chat(messages, add_generation_prompt=add_generation_prompt)
        else:
            tokens = self._tokens(cast(Prompt, prompt))
        self.core.check(tokens, SamplingParams(), namespace)
        tokens = tokens.copy()
        tokens.flags.writeable = False
        branch = Branch(self._engine, self, namespace, tokens)
        try:
            if prefill:
                branch.prefill()
        except BaseException:
            branch.drop()
            raise
        return branch

    def generate_branches(
        self, branches: Sequence[Branch], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[ReplyResult]:
        """Let the model go on on several branches at once, in one batch; see `Branch.generate`.

        If one of them fails, the others are aborted and the error is raised; those that had ended keep their replies.

        Args:
            branches: each once.
            params: for all of them, or one for each.
        """
        self._require_own(branches)
        each = [params] * len(branches) if params is None or isinstance(params, SamplingParams) else params
        if len(each) != len(branches):
            raise InvalidRequest(f"{len(branches)} branches need as many params, got {len(each)}", param="params")
        return generate_together(branches, each)

    def score_branches(self, branches: Sequence[Branch], continuations: Sequence[Prompt]) -> list[Score]:
        """Score a continuation of each branch at once, in one batch; see `Branch.score`. Branches may repeat."""
        self._require_own(branches)
        if len(continuations) != len(branches) or isinstance(continuations, str):
            raise InvalidRequest(f"{len(branches)} branches need as many continuations", param="continuations")
        return score_together(branches, continuations)

    def sharing(self) -> SharingReport:
        """What sharing saved since the engine's start; print it."""
        return SharingReport.of(self.stats(), self.budget.kv_bytes_per_token)

    # -- the engine ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End what runs, with finish reason abort, and the engine. Branches hold nothing any more. Twice is nothing."""
        self._engine.stop()
        self._engine.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def stats(self) -> EngineStats:
        """Counts of requests and tokens, and where the pool's slots are."""
        return self._engine.ask(self.core.stats).result()

    def reset_cache(self) -> int:
        """Forget every cached token that no running request uses; returns how many."""
        return self._engine.ask(self.core.reset_cache).result()

    def end_session(self, session: str, namespace: Namespace = ()) -> bool:
        """A session will not come back; whether it is known. What it alone has used goes first when room is needed."""
        return self._engine.ask(lambda: self.core.end_session(session, namespace)).result()

    def check_integrity(self) -> None:
        """Verify every invariant.

        Raises:
            AssertionError: naming the broken one.
        """
        self._engine.ask(self.core.check_integrity).result()

    def _tokens(self, prompt: Prompt) -> TokenArray:
        return prompt_tokens(prompt, self.tokenizer.encode_prompt)

    def _require_own(self, branches: Sequence[Branch]) -> None:
        if any(branch.engine is not self._engine for branch in branches):
            raise BranchError("a branch belongs to another LLM")


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
