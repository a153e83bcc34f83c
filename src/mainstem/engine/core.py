"""The step loop: schedule, compute, sample, tell.

Single-threaded: whoever owns an `EngineCore` calls it from one thread only. It knows nothing of HTTP and asyncio.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np
import torch

from mainstem.engine.batch import PackedStep, pack
from mainstem.engine.lease import Lease
from mainstem.engine.outputs import EngineStats, RequestOutput, StepTimes
from mainstem.engine.reply import Reply, Siblings, Sink
from mainstem.engine.scoring import Scoring
from mainstem.engine.speculation import Speculation, follow
from mainstem.engine.thrash import SAMPLE_S, ThrashWatch
from mainstem.errors import EngineDied, EngineFailed, InvalidRequest, MainstemError
from mainstem.explain import Origin, Recorder
from mainstem.model import NOT_FINITE, ModelRunner, Sampled, SampleRow, StepBatch, sample, token_logprobs
from mainstem.params import SamplingParams
from mainstem.scheduler import Hold, Request, RequestState, Scheduler, SchedulerOutput, Upkeep
from mainstem.speculation import DraftTree
from mainstem.tokens import Tokenizer
from mainstem.tokens.grammar import Constraint, GrammarCompiler
from mainstem.tree import NO_HINTS, CacheHints, Namespace, PrefixCache, TokenArray, namespace_key

log = logging.getLogger(__name__)


class _Computed(NamedTuple):
    """What the model said in one step: float32 (rows, vocab), and a token for each row that was asked for."""

    logits: torch.Tensor
    sampled: list[Sampled]


class EngineCore:
    """A model, its KV pool, the prefix cache over it and the requests that run on them.

    Args:
        runner: computes packed steps; its pool has as many slots as the cache.
        tokenizer: of the model.
        cache: the prefix cache.
        scheduler: over the same cache.
        cascade: read shared prefixes once a step instead of once a row.
        recorder: notes why tokens were not cached; it becomes the scheduler's observer.
        speculation: what drafts tokens, over the same scheduler; None for nothing.
        upkeep: what is done for the cache between two steps.
    """

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        cache: PrefixCache,
        scheduler: Scheduler,
        *,
        cascade: bool = True,
        recorder: Recorder | None = None,
        speculation: Speculation | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        self.recorder = recorder
        if recorder is not None:
            scheduler.observer = recorder
        self.runner = runner
        self.tokenizer = tokenizer
        self.cache = cache
        self.scheduler = scheduler
        self.cascade = cascade
        self.speculation = speculation
        self.upkeep = upkeep or Upkeep(cache)
        self.thrash = ThrashWatch(cache.capacity)
        self.max_model_len = scheduler.max_model_len
        self._replies: dict[str, Reply] = {}
        self._scorings: dict[str, Scoring] = {}
        self._ids = count()
        self._steps = 0
        self._finished = 0
        self._aborted = 0
        self._generated_tokens = 0
        self._drafted_tokens = 0
        self._accepted_tokens = 0
        self.times = StepTimes()
        self._context_tokens = 0
        self._peak_kv_tokens = 0
        self._peak_unshared_tokens = 0
        self._grammars = GrammarCompiler(tokenizer, runner.shape.vocab_size)
        self._masks = 0
        self._mask_seconds = 0.0
        self._died = False
        self._warned = False

    # -- requests -------------------------------------------------------------------------------------------------

    def check(self, prompt: TokenArray, params: SamplingParams, namespace: Namespace = ()) -> None:
        """Refuse at once what can never run. Safe to call from any thread.

        Raises:
            InvalidRequest: an empty prompt, token ids outside the vocabulary.
            PromptTooLong: no room for one token of reply.
            EngineDied: when an error has ended the engine.
        """
        if self._died:
            raise EngineDied
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

    def _check_recorded(self, prompt: TokenArray, params: SamplingParams, recorded: TokenArray) -> None:
        vocab_size = self.runner.shape.vocab_size
        if params.n != 1:
            raise InvalidRequest(f"a recorded reply is one reply, not {params.n}", param="n")
        if params.logprobs is not None:
            raise InvalidRequest("a recorded reply has no logprobs", param="logprobs")
        if len(recorded) == 0 or int(recorded.min()) < 0 or int(recorded.max()) >= vocab_size:
            raise InvalidRequest(
                f"a recorded reply needs at least one token, each between 0 and {vocab_size - 1}", param="recorded"
            )
        if len(prompt) + len(recorded) > self.max_model_len:
            raise InvalidRequest(
                f"a prompt of {len(prompt)} tokens and a recorded reply of {len(recorded)} exceed the context of "
                f"{self.max_model_len}",
                param="recorded",
            )

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
        recorded: TokenArray | None = None,
        lease: Lease | None = None,
        constraint: Constraint | None = None,
        origin: Origin | None = None,
        hints: CacheHints = NO_HINTS,
    ) -> list[str]:
        """Queue `params.n` replies to a prompt; returns their ids, for `abort`.

        Args:
            prompt: int32[n].
            params: how to continue it.
            sink: where the outputs go.
            namespace: which part of the prefix cache it may read and write.
            arrival: `time.perf_counter()` when it came; now, if None.
            recorded: the reply is these tokens, whatever is sampled (teacher forcing): every step is computed as for a
                reply of the model's own, then the recorded token is taken. It ends after the last of them and nowhere
                else; how `params` would end it does not count.
            lease: for a single reply, gets the lock on all that was computed if the reply ends of itself.
            constraint: what `constrain` made of these parameters; by default it is made here.
            origin: where the prompt came from, for its record.
            hints: what the caller says about the future of what is computed.

        Raises:
            as `check` and `constrain`; InvalidRequest too when a recorded reply cannot be taken as it is. Nothing is
            queued then.
        """
        self.check(prompt, params, namespace)
        if recorded is not None:
            self._check_recorded(prompt, params, recorded)
            params = replace(params, max_tokens=len(recorded), stop=(), stop_token_ids=(), ignore_eos=True)
        constraint = constraint or self.constrain(params)
        arrived = time.perf_counter() if arrival is None else arrival
        ids = []
        siblings = Siblings()
        for index in range(params.n):
            request_id = f"reply-{next(self._ids)}"
            wanted = params.max_tokens if params.max_tokens is not None else self.max_model_len
            request = Request(
                request_id,
                prompt,
                params,
                max_tokens=wanted,
                namespace=namespace,
                arrival=arrived,
                origin=origin,
                hints=hints,
            )
            reply = Reply(
                request,
                index,
                siblings,
                self.tokenizer,
                sink,
                recorded=recorded,
                lease=lease,
                constraint=constraint.copy() if constraint else None,
            )
            siblings.add(request)
            self.scheduler.add(request)
            self._replies[request_id] = reply
            ids.append(request_id)
        return ids

    def submit_scoring(
        self,
        context: TokenArray,
        continuation: TokenArray,
        sink: Sink,
        *,
        namespace: Namespace = (),
        lease: Lease | None = None,
        arrival: float | None = None,
        origin: Origin | None = None,
        hints: CacheHints = NO_HINTS,
        unrecorded: bool = False,
    ) -> list[str]:
        """Queue the computing of a context and of the log-probabilities of a continuation; returns an id, for `abort`.

        The outputs have the continuation's tokens with their log-probabilities. With an empty continuation the context
        is computed and nothing else. A `lease` gets the lock on the context. One that is `unrecorded` is the engine's
        own: it is not among the counts and the records. The rest is as for `submit`.

        Raises:
            as `check`; nothing is queued then.
        """
        prompt = np.concatenate([context, continuation[:-1]])
        self.check(prompt, SamplingParams(), namespace)
        if len(continuation):
            self.check(continuation[-1:], SamplingParams(), namespace)
        request = Request(
            f"scoring-{next(self._ids)}",
            prompt,
            SamplingParams(),
            max_tokens=1,
            namespace=namespace,
            arrival=time.perf_counter() if arrival is None else arrival,
            score_from=len(context) - 1 if len(continuation) else len(context),
            origin=origin,
            hints=hints,
            unrecorded=unrecorded,
        )
        self.scheduler.add(request)
        self._scorings[request.id] = Scoring(request, continuation, len(context), sink, lease)
        return [request.id]

    def release(self, hold: Hold) -> None:
        """End what a lease held."""
        self.scheduler.release(hold)

    def abort(self, ids: Sequence[str]) -> None:
        """End replies where they are; unknown and finished ids are ignored. What was computed stays cached."""
        for request_id in ids:
            job = self._job(request_id)
            if job is not None:
                self._leave(job)
                self._aborted += 1
                job.sink(job.abort(time.perf_counter()))

    def abort_all(self) -> None:
        """End every reply."""
        self.abort([*self._replies, *self._scorings])

    def die(self) -> None:
        """Give every reply up with an `EngineDied`, and refuse every later one.

        What happened may have left the scheduler in any state, so it is not asked for anything.
        """
        self._died = True
        error = EngineDied()
        jobs: list[Reply | Scoring] = [*self._replies.values(), *self._scorings.values()]
        for job in jobs:
            job.sink(error)
        self._aborted += len(self._replies) + len(self._scorings)
        self._replies.clear()
        self._scorings.clear()

    def has_work(self) -> bool:
        """Whether another step would do anything."""
        return self.scheduler.has_work()

    # -- the step -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Run one step; outputs go to the replies' sinks.

        A step that fails fails the running requests (or, if none runs, the waiting ones), not the engine.

        Raises:
            Exception: when they cannot be given up in order; only `die` is left then.
        """
        times, started, cpu = self.times, time.perf_counter(), time.thread_time()
        try:
            self._step()
        except Exception as error:
            victims = list(self.scheduler.running or self.scheduler.waiting)
            log.exception("a step failed; its %d requests are given up", len(victims))
            self.scheduler.rollback()
            for request in victims:
                self.scheduler.finish(request)
            # Before anyone is told: a step that broke off anywhere may have left anything half done.
            self.scheduler.check_integrity()
            message = f"the engine failed while computing this request: {type(error).__name__}"
            for request in victims:
                self._fail(request, EngineFailed(message))
            self._check_jobs()
        times.step_s += time.perf_counter() - started
        times.other_cpu_s += time.thread_time() - cpu

    @property
    def upkeep_s(self) -> float | None:
        """In how many seconds `tend` is to be called though nothing runs; None for not at all."""
        waits = [self.upkeep.interval_s, SAMPLE_S if self.thrash.is_active else None]
        return min((wait for wait in waits if wait is not None), default=None)

    def tend(self) -> None:
        """What is done between two steps, or when nothing runs: the cache's upkeep, and a look at how it fares."""
        self.upkeep.run()
        self.thrash.sample(self.scheduler.recomputed.total, self.scheduler.counts.prefilled_tokens)

    def end_session(self, session: str, namespace: Namespace = ()) -> bool:
        """A session will not come back; whether it is known. What it alone has used goes first when room is needed."""
        return self.cache.end_session(session, namespace)

    def _step(self) -> None:
        started = time.perf_counter()
        output = self.scheduler.schedule()
        if not output.scheduled:
            self._refuse_first()
            return
        drafts = self.speculation.propose(output) if self.speculation else {}
        packed = pack(output, drafts, cascade=self.cascade)
        replies = [self._replies[source.request.id] for source in output.sources]
        rows = [reply.sample_row(row) for reply, row in zip(replies, packed.source_rows, strict=True)]
        logits, sampled = self._compute(packed.batch, rows)
        failed = {reply.request: result.error for reply, result in zip(replies, sampled, strict=True) if result.error}
        sampled_rows = set(packed.source_rows)
        for scheduled, row in zip(output.scheduled, packed.last_rows, strict=True):
            if row not in sampled_rows and not torch.isfinite(logits[row].max()):
                failed.setdefault(scheduled.request, NOT_FINITE)
        scores = self._scores(output, packed, logits)
        for (request, *_), logprobs in zip(output.scored, scores, strict=True):
            if any(map(math.isnan, logprobs)):
                failed.setdefault(request, NOT_FINITE)
        requeued = self.scheduler.commit(output, failed)
        self._steps += 1
        self._note_peaks()
        now = time.perf_counter()
        if self.recorder is not None:
            self.recorder.stepped(output, now - started)
        if NOT_FINITE in failed.values():
            self._warn_of_kv_range()
        for request, error in failed.items():
            if request not in requeued:
                self._fail(request, EngineFailed(error))
        said: dict[Request, tuple[int, ...]] = {}
        for reply, result, source in zip(replies, sampled, output.sources, strict=True):
            if reply.request in failed:
                continue
            news = reply.push(result.token_id, result.logprobs, now)
            if source.entry in drafts:
                news = self._follow(reply, news, drafts[source.entry], logits, packed.draft_rows[source.entry])
            said[reply.request] = news.token_ids
            self._generated_tokens += len(news.token_ids)
            self._tell(reply, news)
        for (request, *_), logprobs in zip(output.scored, scores, strict=True):
            if request not in failed and request not in requeued:
                scoring = self._scorings[request.id]
                news = scoring.push(logprobs, now)
                if news.finish_reason is not None and not len(scoring.continuation) and not request.unrecorded:
                    self._context_tokens += request.num_prompt
                self._tell(scoring, news)
        if self.speculation:
            self.speculation.learn(said, time.perf_counter() - started)

    def _follow(
        self, reply: Reply, news: RequestOutput, draft: DraftTree, logits: torch.Tensor, rows: Sequence[int]
    ) -> RequestOutput:
        """Let a reply go on through its drafts; the time that takes is the model's, as all sampling is."""
        started, cpu = time.perf_counter(), time.thread_time()
        followed = follow(reply, news, draft, logits, rows, started)
        self.times.model_s += time.perf_counter() - started
        self.times.other_cpu_s -= time.thread_time() - cpu
        self.scheduler.accept(reply.request, followed.nodes)
        self._drafted_tokens += len(draft.tokens)
        self._accepted_tokens += len(followed.nodes)
        return followed.news._replace(usage=reply.usage())

    def _compute(self, batch: StepBatch, rows: list[SampleRow]) -> _Computed:
        """Run the model and sample; the time that takes is the model's, all other time of a step the engine's own."""
        started, cpu = time.perf_counter(), time.thread_time()
        logits = self.runner.execute(batch)
        sampled = sample(logits, rows)
        self.times.model_s += time.perf_counter() - started
        self.times.other_cpu_s -= time.thread_time() - cpu
        return _Computed(logits, sampled)

    def _scores(self, output: SchedulerOutput, packed: PackedStep, logits: torch.Tensor) -> list[list[float]]:
        """For each of the schedule's scored tokens, the log-probability of the token that follows it."""
        return [
            token_logprobs(logits[rows], self._scorings[request.id].targets(start, stop))
            for (request, _, start, stop), rows in zip(output.scored, packed.scored_rows, strict=True)
        ]

    def _refuse_first(self) -> None:
        """Nothing runs, nothing can: give up the request that has waited longest, for what branches hold."""
        if not self.scheduler.holds:
            raise RuntimeError("requests are left but none can run")
        self._fail(self.scheduler.stuck, self.scheduler.shortage())

    def _note_peaks(self) -> None:
        unshared = sum(request.num_computed for request in self.scheduler.running) + self.scheduler.num_held
        self._peak_kv_tokens = max(self._peak_kv_tokens, self.cache.stats().protected)
        self._peak_unshared_tokens = max(self._peak_unshared_tokens, unshared)

    def _tell(self, job: Reply | Scoring, news: RequestOutput) -> None:
        """Pass the news on; if they are the last, the request leaves first, and its lease begins."""
        if news.finish_reason is not None:
            self._begin_lease(job)
            self._leave(job)
            self._finished += not job.request.unrecorded
            if isinstance(job, Reply) and job.constraint is not None:
                self._masks += job.constraint.num_masks
                self._mask_seconds += job.constraint.seconds
        job.sink(news)

    def _begin_lease(self, job: Reply | Scoring) -> None:
        """Hand the lock over, and with it every reference to the lease: only the caller is to have one now."""
        lease, job.lease = job.lease, None
        # One that ends while another's failure has sent it back to the queue holds nothing any more.
        if lease is not None and job.request.state is RequestState.RUNNING:
            lease.begin(self.scheduler.hold(job.request, job.keep))

    def _warn_of_kv_range(self) -> None:
        if self.runner.shape.kv_dtype == torch.float16 and not self._warned:
            self._warned = True
            log.warning(
                "Numbers were not finite. One reason may be keys or values beyond float16's largest, 65,504, "
                "which --kv-dtype float32 can hold"
            )

    def _fail(self, request: Request, error: MainstemError) -> None:
        job = self._job(request.id)
        assert job is not None
        self._leave(job)
        self._aborted += 1
        job.sink(error)

    def _job(self, request_id: str) -> Reply | Scoring | None:
        return self._replies.get(request_id) or self._scorings.get(request_id)

    def _leave(self, job: Reply | Scoring) -> None:
        """A job's request leaves; if that fails, the job is still among those that `die` tells."""
        self.scheduler.finish(job.request)
        self._replies.pop(job.request.id, None)
        self._scorings.pop(job.request.id, None)

    def _check_jobs(self) -> None:
        """Verify that whoever waits for an answer has a request that will be computed."""
        known = {request.id for request in (*self.scheduler.running, *self.scheduler.waiting)}
        assert known.issuperset((*self._replies, *self._scorings)), "a request is neither running nor waiting"

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
            context_tokens=self._context_tokens,
            held_prefixes=len(self.scheduler.holds),
            peak_kv_tokens=self._peak_kv_tokens,
            peak_unshared_tokens=self._peak_unshared_tokens,
            masks=self._masks,
            mask_seconds=self._mask_seconds,
            misses={} if self.recorder is None else dict(self.recorder.counts),
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
            recomputed_tokens=self.scheduler.recomputed.total,
            thrash_tokens_per_s=self.thrash.tokens_per_s,
            evicted_by_reason=dict(self.cache.evicted_by_reason),
        )

    def reset_cache(self, tenant: Namespace | None = None) -> int:
        """Drop every cached token that no running request uses, or only a tenant's; returns how many."""
        self.scheduler.recomputed.forget(tenant)
        return self.cache.reset() if tenant is None else self.cache.reset_tenant(tenant)

    def check_integrity(self) -> None:
        """See `Scheduler.check_integrity`."""
        self.scheduler.check_integrity()
        self._check_jobs()
