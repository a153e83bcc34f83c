"""The step loop: schedule, compute, sample, tell.

Single-threaded: whoever owns an `EngineCore` calls it from one thread only. It knows nothing of HTTP and asyncio.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from itertools import count

import torch

from mainstem.engine.batch import pack
from mainstem.engine.outputs import EngineStats
from mainstem.engine.reply import Reply, Sink
from mainstem.errors import EngineFailed, InvalidRequest, MainstemError
from mainstem.model import ModelRunner, sample
from mainstem.params import SamplingParams
from mainstem.scheduler import Request, Scheduler
from mainstem.tokens import Tokenizer
from mainstem.tokens.grammar import Constraint, GrammarCompiler
from mainstem.tree import Namespace, PrefixCache, TokenArray, namespace_key

log = logging.getLogger(__name__)


class EngineCore:
    """A model, its KV pool, the prefix cache over it and the requests that run on them.

    Args:
        runner: computes packed steps; its pool has as many slots as the cache.
        tokenizer: of the model.
        cache: the prefix cache.
        scheduler: over the same cache.
        cascade: read shared prefixes once a step instead of once a row.
    """

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        cache: PrefixCache,
        scheduler: Scheduler,
        *,
        cascade: bool = True,
    ) -> None:
        self.runner = runner
        self.tokenizer = tokenizer
        self.cache = cache
        self.scheduler = scheduler
        self.cascade = cascade
        self.max_model_len = scheduler.max_model_len
        self._replies: dict[str, Reply] = {}
        self._ids = count()
        self._steps = 0
        self._finished = 0
        self._aborted = 0
        self._generated_tokens = 0
        self._grammars = GrammarCompiler(tokenizer, runner.shape.vocab_size)
        self._masks = 0
        self._mask_seconds = 0.0

    # -- requests -------------------------------------------------------------------------------------------------

    def check(self, prompt: TokenArray, params: SamplingParams, namespace: Namespace = ()) -> None:
        """Refuse at once what can never run. Safe to call from any thread.

        Raises:
            InvalidRequest: an empty prompt, token ids outside the vocabulary.
            PromptTooLong: no room for one token of reply.
        """
        try:
            namespace_key(namespace)
        except TypeError as error:
            raise InvalidRequest(str(error), param="namespace") from None
        if len(prompt) == 0:
            raise InvalidRequest("the prompt has no tokens", param="prompt")
        vocab_size = self.runner.shape.vocab_size
        if int(prompt.min()) < 0 or int(prompt.max()) >= vocab_size:
            raise InvalidRequest(f"token ids must be between 0 and {vocab_size - 1}", param="prompt")
        outside = [token for token in params.stop_token_ids if not 0 <= token < vocab_size]
        if outside:
            raise InvalidRequest(f"token ids must be between 0 and {vocab_size - 1}", param="stop_token_ids")
        self.scheduler.check_length(len(prompt))

    def constrain(self, params: SamplingParams) -> Constraint | None:
        """What a reply must follow, made from its grammar, if there is one. Takes milliseconds; from any thread.

        Raises:
            InvalidRequest: when the grammar cannot be used.
        """
        return None if params.grammar is None else self._grammars.compile(params.grammar)

    def submit(
        self,
        prompt: TokenArray,
        params: SamplingParams,
        sink: Sink,
        *,
        namespace: Namespace = (),
        arrival: float | None = None,
        constraint: Constraint | None = None,
    ) -> list[str]:
        """Queue `params.n` replies to a prompt; returns their ids, for `abort`.

        Args:
            constraint: what `constrain` made of these parameters; by default it is made here.

        Raises:
            as `check` and `constrain`; nothing is queued then.
        """
        self.check(prompt, params, namespace)
        constraint = constraint or self.constrain(params)
        arrived = time.perf_counter() if arrival is None else arrival
        ids = []
        for index in range(params.n):
            request_id = f"reply-{next(self._ids)}"
            wanted = params.max_tokens if params.max_tokens is not None else self.max_model_len
            request = Request(request_id, prompt, params, max_tokens=wanted, namespace=namespace, arrival=arrived)
            reply = Reply(request, index, self.tokenizer, sink, constraint.copy() if constraint else None)
            self.scheduler.add(request)
            self._replies[request_id] = reply
            ids.append(request_id)
        return ids

    def abort(self, ids: Sequence[str]) -> None:
        """End replies where they are; unknown and finished ids are ignored. What was computed stays cached."""
        for request_id in ids:
            reply = self._replies.pop(request_id, None)
            if reply is not None:
                self.scheduler.finish(reply.request)
                self._aborted += 1
                reply.sink(reply.abort(time.perf_counter()))

    def abort_all(self) -> None:
        """End every reply."""
        self.abort(list(self._replies))

    def fail_all(self, error: MainstemError) -> None:
        """Give every reply up with an error."""
        for reply in list(self._replies.values()):
            self._fail(reply, error)

    def has_work(self) -> bool:
        """Whether another step would do anything."""
        return self.scheduler.has_work()

    # -- the step -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Run one step; outputs go to the replies' sinks.

        A step that fails fails the running requests (or, if none runs, the waiting ones), not the engine.
        """
        try:
            self._step()
        except Exception as error:
            victims = list(self.scheduler.running or self.scheduler.waiting)
            log.exception("a step failed; its %d requests are given up", len(victims))
            self.scheduler.rollback()
            message = f"the engine failed while computing this request: {type(error).__name__}"
            for request in victims:
                self._fail(self._replies[request.id], EngineFailed(message))

    def _step(self) -> None:
        output = self.scheduler.schedule()
        if not output.scheduled:
            raise RuntimeError("requests are left but none can run")
        packed = pack(output, cascade=self.cascade, max_pieces=self.runner.max_pieces)
        logits = self.runner.execute(packed.batch)
        replies = [self._replies[source.request.id] for source in output.sources]
        sampled = sample(logits, [r.sample_row(row) for r, row in zip(replies, packed.source_rows, strict=True)])
        failed = {reply.request: result.error for reply, result in zip(replies, sampled, strict=True) if result.error}
        sampled_rows = set(packed.source_rows)
        for scheduled, row in zip(output.scheduled, packed.last_rows, strict=True):
            if row not in sampled_rows and not torch.isfinite(logits[row].max()):
                failed.setdefault(scheduled.request, "the model gave numbers that are not finite")
        requeued = self.scheduler.commit(output, failed)
        self._steps += 1
        now = time.perf_counter()
        for request, error in failed.items():
            if request not in requeued:
                self._fail(self._replies[request.id], EngineFailed(error))
        for reply, result in zip(replies, sampled, strict=True):
            if reply.request in failed:
                continue
            news = reply.push(result.token_id, result.logprobs, now)
            self._generated_tokens += 1
            if news.finish_reason is not None:
                self._finish(reply)
            reply.sink(news)

    def _finish(self, reply: Reply) -> None:
        self.scheduler.finish(reply.request)
        del self._replies[reply.request.id]
        self._finished += 1
        if reply.constraint is not None:
            self._masks += reply.constraint.num_masks
            self._mask_seconds += reply.constraint.seconds

    def _fail(self, reply: Reply, error: MainstemError) -> None:
        self.scheduler.finish(reply.request)
        del self._replies[reply.request.id]
        self._aborted += 1
        reply.sink(error)

    # -- what is known --------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Counts between two steps."""
        counts = self.scheduler.counts
        return EngineStats(
            cache=self.cache.stats(),
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            steps=self._steps,
            preemptions=counts.preemptions,
            requests_finished=self._finished,
            requests_aborted=self._aborted,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            prefilled_tokens=counts.prefilled_tokens,
            generated_tokens=self._generated_tokens,
            masks=self._masks,
            mask_seconds=self._mask_seconds,
        )

    def reset_cache(self) -> int:
        """Drop every cached token that no running request uses; returns how many."""
        return self.cache.reset()

    def check_integrity(self) -> None:
        """See `Scheduler.check_integrity`."""
        self.scheduler.check_integrity()
