"""Branches: contexts that fork for nothing and go on by themselves, sharing what they have in common.

A branch is a sequence of tokens and a lease on the KV of those that are computed. A fork refers to the same tokens and
the same lease, so it copies nothing and does not wait for the engine. What a branch adds is its own.

It knows the engine's thread. It knows nothing of steps, slots and the tree.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, aclosing, closing, contextmanager
from functools import partial
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import numpy as np

from mainstem.engine.asked import Asked
from mainstem.engine.lease import Lease
from mainstem.engine.outputs import RequestOutput
from mainstem.engine.prompt import Prompt, prompt_tokens
from mainstem.engine.reply import Sink
from mainstem.engine.result import ReplyResult
from mainstem.engine.thread import EngineThread
from mainstem.errors import BranchError, EngineStopped, InvalidRequest
from mainstem.params import SamplingParams
from mainstem.scheduler import Hold
from mainstem.tree import Namespace, TokenArray

NO_TOKENS: TokenArray = np.empty(0, np.int32)


class Score(NamedTuple):
    """How likely a continuation is: for each of its tokens the natural logarithm of its probability after all before.

    Probabilities are the model's own, before temperature and penalties.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def total(self) -> float:
        """Log-probability of the whole continuation."""
        return math.fsum(self.logprobs)

    @property
    def mean(self) -> float:
        """Log-probability per token, by which continuations of different lengths compare."""
        return self.total / len(self.logprobs)


class Branch:
    """A context that can be forked, extended, continued by the model and scored. `LLM.context` makes the first.

    A branch keeps what it has computed from eviction until it is dropped: call `drop`, or use it in a `with` statement.
    One that is garbage collected without is dropped then, with a ResourceWarning.

    Different branches may be used by different threads or tasks at once, and their requests run in the same steps. One
    branch generates one reply at a time.

    Attributes:
        engine: the thread that computes for it; of interest to the LLM only.
    """

    __slots__ = ("__weakref__", "_abort", "_dropped", "_lease", "_namespace", "_owner", "_tokens", "engine")

    def __init__(
        self, engine: EngineThread, owner: object, namespace: Namespace, tokens: TokenArray, lease: Lease | None = None
    ) -> None:
        self._dropped = False
        self.engine = engine
        self._owner = owner  # whose end would end the engine
        self._namespace = namespace
        self._tokens = tokens
        self._lease = lease
        self._abort: Callable[[], None] | None = None  # while it generates

    def __repr__(self) -> str:
        state = "dropped" if self._dropped else f"{self.held_tokens} held"
        return f"<Branch: {len(self._tokens)} tokens, {state}>"

    def __len__(self) -> int:
        """How many tokens it has."""
        return len(self._tokens)

    @property
    def tokens(self) -> TokenArray:
        """int32[n], all its tokens from the first of the context; not to be written to."""
        return self._tokens

    @property
    def text(self) -> str:
        """Text of all its tokens, special ones included."""
        return self.engine.core.tokenizer.decode(self._tokens, skip_special_tokens=False)

    @property
    def held_tokens(self) -> int:
        """How many of its tokens, from the first, are computed and kept from eviction."""
        return 0 if self._lease is None else self._lease.length

    def fork(self) -> Branch:
        """A new branch with the same tokens, which goes its own way; costs a few microseconds and no memory.

        Raises:
            BranchError: when this one was dropped.
        """
        self._require_live()
        return Branch(self.engine, self._owner, self._namespace, self._tokens, self._lease)

    def append(self, continuation: Prompt) -> Self:
        """Add a text or token ids at the end; nothing is computed yet. Returns the branch itself.

        A text is tokenized by itself: it never changes the tokens before it.

        Raises:
            BranchError: when it was dropped, or a reply is being generated on it.
            InvalidRequest, PromptTooLong: when no reply could follow; the branch is unchanged then.
        """
        self._require_idle()
        self._tokens = self._followed_by(self._own_tokens(continuation))
        return self

    # -- what the model says ------------------------------------------------------------------------------------------

    def generate(self, params: SamplingParams | None = None) -> ReplyResult:
        """Let the model go on; the branch then ends with the reply, every generated token of it.

        That includes the stop string's tokens or the end-of-turn token that ended it, which `ReplyResult.text` leaves
        out. A reply that does not come to its end (Ctrl-C, an error) leaves the branch as it was. Greedy replies equal
        those of `LLM.generate` to the same tokens.

        Raises:
            BranchError: when it was dropped, or a reply is being generated on it.
            InvalidRequest: when `params.n` is not 1; fork the branch instead.
            PromptTooLong: when no reply can follow.
            OutOfSlots: when live branches hold the memory that it needs.
            EngineStopped, EngineFailed: when the engine is closed, or computing failed.
        """
        return generate_together([self], [params])[0]

    def stream(self, params: SamplingParams | None = None) -> Generator[RequestOutput]:
        """What `generate` does, yielding the outputs as they come. Closed early, it leaves the branch as it was."""
        reply = _Continuation(self, params)
        asked = Asked(self.engine, [reply.submit], 1)
        with self._busy(partial(asked.abort, 0)), closing(asked.outputs()) as outputs:
            for _, output in outputs:
                reply.take(output)
                yield output

    async def agenerate(self, params: SamplingParams | None = None) -> ReplyResult:
        """What `generate` does, for a task in an event loop; cancelling it aborts the reply."""
        result = ReplyResult()
        async with aclosing(self.astream(params)) as outputs:
            async for output in outputs:
                result.add(output)
        return result

    async def astream(self, params: SamplingParams | None = None) -> AsyncGenerator[RequestOutput]:
        """What `stream` does, for a task in an event loop."""
        reply = _Continuation(self, params)
        asked = Asked(self.engine, [reply.submit], 1)
        with self._busy(partial(asked.abort, 0)):
            async with aclosing(asked.outputs_async()) as outputs:
                async for _, output in outputs:
                    reply.take(output)
                    yield output

    # -- what the model thinks ----------------------------------------------------------------------------------------

    def score(self, continuation: Prompt) -> Score:
        """How likely the model finds a text or token ids after this branch, which stays as it is.

        A text is tokenized by itself. What the branch has computed is not computed again, but for its last token.

        Raises:
            InvalidRequest: when the continuation has no tokens.
            BranchError, PromptTooLong, OutOfSlots, EngineStopped, EngineFailed: as `generate`.
        """
        return score_together([self], [continuation])[0]

    async def ascore(self, continuation: Prompt) -> Score:
        """What `score` does, for a task in an event loop."""
        scoring = _Scored(self, self._scorable(continuation))
        await _run_async(self.engine, scoring)
        return scoring.result()

    def prefill(self) -> None:
        """Compute what has been appended and hold it, so that forks from here on share it.

        The last token is left to whatever follows, which computes it anyway. Calling it is never needed: generating
        and scoring compute what they need, and branches that run together share what they have in common.

        Raises:
            as `generate`.
        """
        if self._needs_prefill():
            _run(self.engine, [_Scored(self, NO_TOKENS)])

    async def aprefill(self) -> None:
        """What `prefill` does, for a task in an event loop."""
        if self._needs_prefill():
            await _run_async(self.engine, _Scored(self, NO_TOKENS))

    # -- the end ------------------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """Let go of what it holds, which becomes evictable where no other branch holds it. Dropping twice is nothing.

        A reply that is being generated on it is aborted. Tokens and text can still be read.
        """
        self._dropped = True
        self._lease = None
        if self._abort is not None:
            self._abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.drop()

    def __del__(self) -> None:
        if not getattr(self, "_dropped", True) and self.engine.alive:
            warnings.warn(f"{self!r} was never dropped", ResourceWarning, stacklevel=2, source=self)
            self.drop()

    # -- for the tasks below ------------------------------------------------------------------------------------------

    @contextmanager
    def _busy(self, abort: Callable[[], None]) -> Iterator[None]:
        """While a reply is generated, which `abort` ends."""
        self._require_idle()
        self._abort = abort
        try:
            yield
        finally:
            self._abort = None

    def _keep(self, lease: Lease) -> None:
        """Hold what was computed, unless more is held already."""
        if not self._dropped and lease.length > self.held_tokens:
            self._lease = lease

    def _extend(self, token_ids: Sequence[int], lease: Lease) -> None:
        self._tokens = _frozen(np.concatenate([self._tokens, np.array(token_ids, np.int32)]))
        self._keep(lease)

    def _new_lease(self) -> Lease:
        return Lease(partial(_release_soon, self.engine))

    def _own_tokens(self, continuation: Prompt) -> TokenArray:
        return prompt_tokens(continuation, self.engine.core.tokenizer.encode)

    def _followed_by(self, tokens: TokenArray) -> TokenArray:
        """The branch's tokens and these, if a reply can follow them."""
        longer = np.concatenate([self._tokens, tokens])
        self.engine.core.check(longer, SamplingParams(), self._namespace)
        return _frozen(longer)

    def _scorable(self, continuation: Prompt) -> TokenArray:
        tokens = self._own_tokens(continuation)
        if not len(tokens):
            raise InvalidRequest("the continuation to score has no tokens", param="continuation")
        self._followed_by(tokens[:-1])
        return tokens

    def _needs_prefill(self) -> bool:
        self._require_live()
        return self.held_tokens < len(self._tokens) - 1

    def _require_live(self) -> None:
        if self._dropped:
            raise BranchError("this branch was dropped; fork what you still need before dropping it")

    def _require_idle(self) -> None:
        self._require_live()
        if self._abort is not None:
            raise BranchError("a reply is being generated on this branch; fork it to generate another")


class _Task(Protocol):
    """Something that runs on a branch: what to ask of the engine, and what becomes of the outputs."""

    branch: Branch

    def submit(self, sink: Sink) -> list[str]: ...

    def take(self, output: RequestOutput) -> None: ...


class _Continuation:
    """A reply that a branch takes over when it is complete."""

    def __init__(self, branch: Branch, params: SamplingParams | None) -> None:
        self.branch = branch
        self.reply = ReplyResult()
        self._params = params or SamplingParams()
        self._lease: Lease | None = branch._new_lease()
        branch._require_live()
        if self._params.n != 1:
            raise InvalidRequest("a branch has one reply; fork it for each of several", param="n")
        branch.engine.core.check(branch.tokens, self._params, branch._namespace)

    def submit(self, sink: Sink) -> list[str]:
        branch = self.branch
        return branch.engine.core.submit(
            branch.tokens, self._params, sink, namespace=branch._namespace, lease=self._lease
        )

    def take(self, output: RequestOutput) -> None:
        self.reply.add(output)
        if output.finish_reason is not None and output.finish_reason != "abort":
            # Only the branch may refer to the lease from here on: this task may live on in a traceback.
            lease, self._lease = self._lease, None
            assert lease is not None
            self.branch._extend(self.reply.token_ids, lease)


class _Scored:
    """A continuation that is scored; with no tokens the branch is only computed, all but its last token."""

    def __init__(self, branch: Branch, continuation: TokenArray) -> None:
        self.branch = branch
        self._continuation = continuation
        self._lease: Lease | None = branch._new_lease()
        self._logprobs: list[float] = []
        branch._require_live()

    def submit(self, sink: Sink) -> list[str]:
        branch = self.branch
        context = branch.tokens if len(self._continuation) else branch.tokens[:-1]
        return branch.engine.core.submit_scoring(
            context, self._continuation, sink, namespace=branch._namespace, lease=self._lease
        )

    def take(self, output: RequestOutput) -> None:
        self._logprobs += [position.chosen.logprob for position in output.logprobs]
        if output.finish_reason == "abort":
            raise EngineStopped("the engine was closed before this was computed")
        if output.finish_reason is not None:
            lease, self._lease = self._lease, None
            assert lease is not None
            self.branch._keep(lease)

    def result(self) -> Score:
        return Score(tuple(self._continuation.tolist()), tuple(self._logprobs))


def generate_together(branches: Sequence[Branch], params: Sequence[SamplingParams | None]) -> list[ReplyResult]:
    """Let the model go on on all branches of one engine at once; see `Branch.generate`."""
    replies = [_Continuation(branch, some) for branch, some in zip(branches, params, strict=True)]
    if not replies:
        return []
    asked = Asked(branches[0].engine, [reply.submit for reply in replies], len(replies))
    with ExitStack() as busy:
        for index, branch in enumerate(branches):
            busy.enter_context(branch._busy(partial(asked.abort, index)))
        _take_all(asked, replies)
    return [reply.reply for reply in replies]


def score_together(branches: Sequence[Branch], continuations: Sequence[Prompt]) -> list[Score]:
    """Score a continuation of each branch, all at once; see `Branch.score`. A branch may come several times."""
    tokens = [branch._scorable(text) for branch, text in zip(branches, continuations, strict=True)]
    scorings = [_Scored(branch, some) for branch, some in zip(branches, tokens, strict=True)]
    if scorings:
        _run(branches[0].engine, scorings)
    return [scoring.result() for scoring in scorings]


def _run(engine: EngineThread, tasks: Sequence[_Task]) -> None:
    _take_all(Asked(engine, [task.submit for task in tasks], len(tasks)), tasks)


def _take_all(asked: Asked, tasks: Sequence[_Task]) -> None:
    with closing(asked.outputs()) as outputs:
        for index, output in outputs:
            tasks[index].take(output)


async def _run_async(engine: EngineThread, task: _Task) -> None:
    async with aclosing(Asked(engine, [task.submit], 1).outputs_async()) as outputs:
        async for _, output in outputs:
            task.take(output)


def _release_soon(engine: EngineThread, hold: Hold) -> None:
    engine.send(lambda: engine.core.release(hold))


def _frozen(tokens: TokenArray) -> TokenArray:
    tokens.flags.writeable = False
    return tokens
