"""One scoring while it is computed: the log-probabilities of given tokens, in place of a reply.

It collects what the steps compute and tells the caller as a reply would. It knows nothing of slots and tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.engine.lease import Lease
from mainstem.engine.outputs import FinishReason, PositionLogprobs, RequestOutput, TokenLogprob, usage_of
from mainstem.engine.reply import Sink
from mainstem.scheduler import Request
from mainstem.tree import TokenArray


class Scoring:
    """The tokens of a continuation, each with its log-probability after all that is before it.

    Args:
        request: computes the context and the continuation but for its last token; it ends when they are computed.
        continuation: int32[n]; with n = 0 the context is computed and nothing else.
        keep: how many tokens of the request are the context.
        sink: called with every output, from the engine's thread.
        lease: where the lock on the context goes when it is computed, if the caller wants it.
    """

    def __init__(
        self, request: Request, continuation: TokenArray, keep: int, sink: Sink, lease: Lease | None = None
    ) -> None:
        self.request = request
        self.sink = sink
        self.lease = lease
        self.keep = keep
        self.continuation = continuation
        self._done = 0

    def targets(self, start: int, stop: int) -> TokenArray:
        """The tokens whose log-probabilities are in the logits of the request's tokens `[start, stop)`."""
        first = self.keep - 1
        return self.continuation[start - first : stop - first]

    def push(self, logprobs: Sequence[float], at: float) -> RequestOutput:
        """Take the log-probabilities of the next tokens; the output says whether they were the last."""
        tokens = self.continuation[self._done : self._done + len(logprobs)].tolist()
        self._done += len(logprobs)
        last = self.request.num_remaining == 0
        entries = tuple(
            PositionLogprobs(TokenLogprob(token, value), ()) for token, value in zip(tokens, logprobs, strict=True)
        )
        return self._output(tuple(tokens), entries, "length" if last else None, at)

    def abort(self, at: float) -> RequestOutput:
        """End where it is."""
        return self._output((), (), "abort", at)

    def _output(
        self,
        token_ids: tuple[int, ...],
        logprobs: tuple[PositionLogprobs, ...],
        reason: FinishReason | None,
        at: float,
    ) -> RequestOutput:
        return RequestOutput(0, "", token_ids, logprobs, reason, None, usage_of(self.request, None), at)
