"""Which requests of a trace belong to one conversation, and what a cache makes of being told when one is over.

Traces do not name conversations; here they are found by what their prompts share. A prompt goes on with the
conversation that brought the last of its blocks that is known already, unless that block is in more than one of a
hundred prompts: then it is a system prompt or the like, and nobody's. The last request of each conversation is the one
to end it. It knows the whole trace, as the clients knew their conversations when it was recorded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mainstem.bench.trace.blocks import BlockTrace
from mainstem.tree import RadixCache
from mainstem.tree.hints import CacheHints

COMMON_SHARE = 0.01
"""A block in more of a trace's prompts than this is nobody's."""
ERRORS = ("both", "false", "missed")
"""Which errors there are in what requests say."""
SEED = 0
"""Of the errors in what is said, if nothing else is asked for."""


class Turn(NamedTuple):
    """What a request is in its conversation: which one, and whether it is the last."""

    session: int
    is_last: bool


class EndBit(NamedTuple):
    """How each request says whether it is the last of its conversation.

    Attributes:
        right: probability that what a request says is right, each by itself.
        errors: `both`, or only `false` ends (the last requests are always right), or only `missed` ones.
    """

    right: float
    errors: str = "both"

    @property
    def name(self) -> str:
        """How the policy is called in results."""
        only = "" if self.errors == "both" else f" {self.errors}"
        return f"end bit {100 * self.right:g}%{only}"

    def says(self, is_last: bool, draw: float) -> bool:
        """What a request says, by a number drawn between 0 and 1."""
        may_err = self.errors == "both" or (self.errors == "missed") == is_last
        return is_last if draw < self.right or not may_err else not is_last


def find_turns(trace: BlockTrace) -> list[Turn]:
    """For each request, its place in its conversation."""
    uses = np.zeros(trace.distinct, np.int64)
    for request in trace.requests:
        uses[request.blocks] += 1
    is_common = uses > COMMON_SHARE * len(trace.requests)
    owner = np.full(trace.distinct, -1, np.int64)
    sessions: list[int] = []
    num_sessions = 0
    for request in trace.requests:
        known = request.blocks[(owner[request.blocks] >= 0) & ~is_common[request.blocks]]
        session = int(owner[known[-1]]) if len(known) else num_sessions
        num_sessions = max(num_sessions, session + 1)
        sessions.append(session)
        new = request.blocks[owner[request.blocks] < 0]
        owner[new] = session
    last = {session: index for index, session in enumerate(sessions)}
    return [Turn(session, last[session] == index) for index, session in enumerate(sessions)]


def hits_with_end_bit(
    trace: BlockTrace, turns: Sequence[Turn], end_bit: EndBit, capacity: int, seed: int = SEED
) -> Iterator[int]:
    """Hits of the radix tree, in blocks, one request after another, each of which says whether it is the last.

    Args:
        trace: what is asked for.
        turns: of its requests.
        end_bit: how they say it.
        capacity: in blocks.
        seed: of the errors in what they say.
    """
    errors = random.Random(seed)
    now = 0.0
    cache = RadixCache(capacity, clock=lambda: now)
    for request, turn in zip(trace.requests, turns, strict=True):
        now = request.time_s
        ends = end_bit.says(turn.is_last, errors.random())
        hints = CacheHints(session=str(turn.session), ends_session=ends)
        match = cache.match_prefix(request.blocks)
        yield match.length
        cache.begin(request.blocks, (), match, hints)
        cache.end(request.blocks, (), cache.insert(request.blocks).handle, hints)
