"""One request as the scheduler sees it: its tokens, their slots, and how far it has come.

    tokens   |------------------- prompt -------------------|---- reply ----|
             |-- owned by the prefix cache --|-- private --|scheduled|  ?   |   (? = the last sampled token: no KV yet)
    slots    |-------------- num_owned ------|-------------------------------|-- reserved --|
                                             |------- num_computed ---|

While a step runs, a prefix cache that takes tokens when they are scheduled owns those as well. The prefix cache frees
the slots it owns when it evicts them, which the request's lock forbids; the request frees the private and the reserved
ones, exactly once, when it leaves the running state. It knows nothing of tensors and text.
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np

from mainstem.pages import PageTable
from mainstem.params import SamplingParams
from mainstem.tree import NO_HINTS, CacheHints, Namespace, PrefixHandle, SequenceView, TokenArray


class RequestState(Enum):
    """Where a request is in its life."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class TokenBuffer:
    """A growing array of token ids."""

    def __init__(self, tokens: TokenArray) -> None:
        self._buffer: TokenArray = np.empty(len(tokens) + 256, np.int32)
        self._buffer[: len(tokens)] = tokens
        self._length = len(tokens)

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> TokenArray:
        """A view of the tokens, int32[len]; valid until the next append."""
        return self._buffer[: self._length]

    def append(self, token: int) -> None:
        """Add one token at the end."""
        if self._length == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty(self._length, np.int32)])
        self._buffer[self._length] = token
        self._length += 1

    def extend(self, tokens: TokenArray) -> None:
        """Add several at the end."""
        length = self._length + len(tokens)
        if length > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty(max(self._length, length), np.int32)])
        self._buffer[self._length : length] = tokens
        self._length = length


class Request:
    """A prompt being continued once.

    Args:
        request_id: unique among live requests.
        prompt: int32[n], n >= 1.
        params: how to continue it; `params.n` is the caller's business.
        max_tokens: most tokens to generate, at least 1, already fitted to the context.
        namespace: which part of the prefix cache it may read and write.
        arrival: `time.perf_counter()` when it was submitted.
        origin: where it came from, for whoever observes the scheduler.
        score_from: None to generate. Otherwise nothing is sampled: the request ends when its prompt is computed, and
            the logits of its tokens from this position on are wanted on the way.
        hints: what its client says about the future of what it computes.
        unrecorded: nobody's but the engine's own; it is neither counted nor shown to observers.
    """

    view: SequenceView
    """Its tokens as the prefix cache sees them; the scheduler's to set."""

    def __init__(
        self,
        request_id: str,
        prompt: TokenArray,
        params: SamplingParams,
        *,
        max_tokens: int,
        namespace: Namespace = (),
        arrival: float = 0.0,
        score_from: int | None = None,
        hints: CacheHints = NO_HINTS,
        origin: object = None,
        unrecorded: bool = False,
    ) -> None:
        self.id = request_id
        self.params = params
        self.max_tokens = max_tokens
        self.namespace = namespace
        self.arrival = arrival
        self.origin = origin
        self.record: object = None  # what an observer notes of it
        self.unrecorded = unrecorded
        self.score_from = score_from  # moves on as they are computed
        self.hints = hints
        self.tokens = TokenBuffer(prompt)
        self.num_prompt = len(prompt)
        self.state = RequestState.WAITING
        self.order = -1  # place in the queue, given on arrival and kept through preemption
        self.admitted_at: float | None = None
        self.num_preemptions = 0
        # Token counts of the first admission, for the caller's usage.
        self.num_cached = 0
        self.num_prefilled = 0
        # When it was last let in: the work that was charged for it, the places in the queue before which it was, and
        # what it had already.
        self.charged = 0.0
        self.charged_before = 0
        self.num_computed_before = self.num_replied_before = 0
        self.finish_tag = 0.0  # see `VirtualTime`
        # Tokens of its reply that were drafted, and those of them that it really said.
        self.num_drafted = 0
        self.num_accepted = 0
        # What it holds while it runs.
        self.table = PageTable()
        self.handle: PrefixHandle | None = None
        self.num_owned = 0
        self.num_computed = 0
        # Tokens before this are computed by other requests in this very step; `lender` is the one that holds their
        # slots privately, None if the prefix cache owns them already.
        self.num_borrowed = 0
        self.lender: Request | None = None
        # While it waits: tokens in common with running requests, by their order.
        self.common_lengths: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"Request({self.id}, {self.state.name}, {self.num_computed}/{len(self.tokens)} computed)"

    @property
    def num_generated(self) -> int:
        """Tokens of the reply so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_remaining(self) -> int:
        """Tokens that must be computed before the next one can be sampled."""
        return len(self.tokens) - self.num_computed

    @property
    def num_reusable(self) -> int:
        """How many leading tokens may come from the prefix cache: what is cached has KV but no logits."""
        last = len(self.tokens) - 1
        return last if self.score_from is None else min(self.score_from, last)

    def forget_slots(self) -> None:
        """Start from nothing: after preemption, or at the end."""
        self.table = PageTable()
        self.handle = None
        self.num_owned = self.num_computed = self.num_borrowed = 0
        self.lender = None
