"""One reply while it is generated: its text, its end, and what the caller is told.

It turns sampled tokens into text and decides when the reply is over. It knows nothing of slots and tensors.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from mainstem.engine.lease import Lease
from mainstem.engine.outputs import (
    FinishReason,
    PositionLogprobs,
    PromptUsage,
    RequestOutput,
    RequestUsage,
    record_of,
    usage_of,
)
from mainstem.errors import MainstemError
from mainstem.model import SampleRow
from mainstem.scheduler import Request
from mainstem.tokens import StopStrings, Tokenizer
from mainstem.tokens.grammar import Constraint
from mainstem.tree import TokenArray

Sink = Callable[[RequestOutput | MainstemError], None]
"""Where a reply's outputs go; an error is the last thing a sink is given."""


class Siblings:
    """All replies to one prompt, of which the first that is let in tells how much of the prompt was cached.

    That need not be the first to say something: it may have to give way before.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._first: PromptUsage | None = None

    def add(self, request: Request) -> None:
        """One more reply, in the order of the queue."""
        self._requests.append(request)

    def usage(self) -> PromptUsage | None:
        """Of the first one; None before it is let in."""
        if self._first is None:
            # Later ones are let in later, so whoever is the first now stays it.
            admitted = [(each.admitted_at, each) for each in self._requests if each.admitted_at is not None]
            if admitted:
                _, first = min(admitted, key=lambda pair: pair[0])
                self._first = PromptUsage(first.num_cached, record_of(first))
                self._requests.clear()
        return self._first


class Reply:
    """The `index`-th reply to a prompt.

    Args:
        request: what the scheduler runs.
        index: which of the caller's `n` replies.
        siblings: all of these, itself included.
        tokenizer: of the model.
        sink: called with every output, from the engine's thread.
        recorded: int32[request.max_tokens], what the reply will say whatever is sampled; None to say what is sampled.
        lease: where the lock on what was computed goes when the reply has ended, if the caller wants it.
        constraint: what the reply must follow, at its beginning; None for anything.
    """

    def __init__(
        self,
        request: Request,
        index: int,
        siblings: Siblings,
        tokenizer: Tokenizer,
        sink: Sink,
        *,
        recorded: TokenArray | None = None,
        lease: Lease | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        params = request.params
        self.request = request
        self._recorded = recorded
        self.index = index
        self._siblings = siblings
        self.sink = sink
        self.lease = lease
        self.constraint = constraint
        self.finish_reason: FinishReason | None = None
        base_seed = secrets.randbits(63) if params.seed is None else params.seed
        # Replies of one request differ, and each is the same in every run.
        self.seed = (base_seed + index) % 2**64
        self._stream = tokenizer.stream(continuation=True, spoken=params.spoken_token_ids)
        self._stops = StopStrings(params.stop) if params.stop else None
        self._stop_ids = frozenset(params.stop_token_ids)
        self._end_ids = frozenset() if params.ignore_eos else tokenizer.eos_token_ids
        self._first_token_at: float | None = None

    def sample_row(self, logits_row: int) -> SampleRow:
        """How the next token is drawn from a row of the step's logits."""
        request = self.request
        return SampleRow(
            params=request.params,
            logits_row=logits_row,
            prompt_ids=request.tokens.array[: request.num_prompt],
            output_ids=request.tokens.array[request.num_prompt :],
            seed=self.seed,
            mask=None if self.constraint is None else self.constraint.mask(),
        )

    def push(self, token: int, logprobs: PositionLogprobs | None, at: float) -> RequestOutput:
        """Take the next sampled token, or the recorded one in its place; the output says whether it was the last."""
        request = self.request
        if self._recorded is not None:
            token = int(self._recorded[request.num_generated])
        if self._first_token_at is None:
            self._first_token_at = at
        request.tokens.append(token)
        text = ""
        reason: FinishReason | None = None
        stop_reason: str | int | None = None
        if token in self._end_ids:
            reason = "stop"
        elif token in self._stop_ids:
            reason, stop_reason = "stop", token
        else:
            text = self._stream.push(token)
        if self.constraint is not None:
            self.constraint.accept(token)
            if reason is None and self.constraint.finished:
                reason = "stop"
        if reason is None and request.num_generated >= request.max_tokens:
            reason = "length"
        if reason is not None:
            text += self._stream.flush()
        text, matched = self._cut(text, last=reason is not None)
        if matched is not None:
            reason, stop_reason = "stop", matched
        self.finish_reason = reason
        return self._output(text, (token,), (logprobs,) if logprobs else (), stop_reason, at)

    @property
    def keep(self) -> int:
        """How many tokens a lease of this reply holds: all that are computed."""
        return self.request.num_computed

    def abort(self, at: float) -> RequestOutput:
        """End the reply where it is; held-back text is given out."""
        text = self._cut(self._stream.flush(), last=True)[0]
        self.finish_reason = "abort"
        return self._output(text, (), (), None, at)

    def _cut(self, text: str, *, last: bool) -> tuple[str, str | None]:
        """What of the text may be shown now, and the stop string that ends it, if one does."""
        if self._stops is None:
            return text, None
        update = self._stops.push(text)
        if update.matched is None and last:
            return update.text + self._stops.flush(), self._stops.matched
        return update.text, update.matched

    def _output(
        self,
        text: str,
        token_ids: tuple[int, ...],
        logprobs: tuple[PositionLogprobs, ...],
        stop_reason: str | int | None,
        at: float,
    ) -> RequestOutput:
        return RequestOutput(self.index, text, token_ids, logprobs, self.finish_reason, stop_reason, self.usage(), at)

    def usage(self) -> RequestUsage:
        """The reply's token counts and times so far."""
        return usage_of(self.request, self._first_token_at, self._siblings.usage())
