"""What the demo measured, turn by turn and in sum. Plain arithmetic: no printing, no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mainstem.cli.client import Reply


class TurnReport(NamedTuple):
    """One turn, with the prefix cache and without.

    Attributes:
        turn: from 1.
        does: what the agent did.
        new_tokens: prompt tokens that no earlier turn had put through the model. The reply's last token is among them:
            it was sampled, but nothing was computed from it.
        reply: what came back with the cache.
        uncached_ttft_s: seconds to the first token of the same prompt when nothing of it may be reused.
    """

    turn: int
    does: str
    new_tokens: int
    reply: Reply
    uncached_ttft_s: float

    @property
    def speedup(self) -> float:
        """How many times sooner the first token came with the cache."""
        return self.uncached_ttft_s / self.reply.ttft_s


class Summary(NamedTuple):
    """The session in sum. Tokens and seconds are totals over all turns.

    Attributes:
        prompt_tokens: length of all prompts together.
        prefilled_tokens: prompt tokens that were computed.
        new_tokens: prompt tokens never computed before; the least that any cache has to compute.
        ttft_s: waiting for first tokens with the cache.
        uncached_ttft_s: waiting for first tokens without it.
        logical_tokens: KV that the turns refer to, each by itself: what they would hold without sharing.
        resident_tokens: KV that is held for all of them.
        unsteadiness: longest over shortest time that a token took without the cache, over the turns.
    """

    prompt_tokens: int
    prefilled_tokens: int
    new_tokens: int
    ttft_s: float
    uncached_ttft_s: float
    logical_tokens: int
    resident_tokens: int
    unsteadiness: float

    @property
    def amplification(self) -> float:
        """Prefilled tokens for each new one; 1.0 is the floor."""
        return self.prefilled_tokens / self.new_tokens

    @property
    def uncached_amplification(self) -> float:
        """The same had every prompt been computed from scratch."""
        return self.prompt_tokens / self.new_tokens

    @property
    def shared(self) -> float:
        """Share of the turns' KV that is not held a second time."""
        return 1 - self.resident_tokens / self.logical_tokens


def new_tokens(reply: Reply, before: Reply | None) -> int:
    """Prompt tokens of a turn that the turn before it, reply included, had not put through the model."""
    if before is None:
        return reply.prompt_tokens
    return reply.prompt_tokens - (before.prompt_tokens + before.completion_tokens - 1)


def summarize(turns: Sequence[TurnReport]) -> Summary:
    """Add the turns up."""
    replies = [turn.reply for turn in turns]
    paces = [turn.uncached_ttft_s / turn.reply.prompt_tokens for turn in turns]
    # The last token of a reply has no KV until a later prompt contains it.
    decoded = sum(reply.completion_tokens - 1 for reply in replies)
    return Summary(
        prompt_tokens=sum(reply.prompt_tokens for reply in replies),
        prefilled_tokens=sum(reply.prefilled_tokens for reply in replies),
        new_tokens=sum(turn.new_tokens for turn in turns),
        ttft_s=sum(reply.ttft_s for reply in replies),
        uncached_ttft_s=sum(turn.uncached_ttft_s for turn in turns),
        logical_tokens=sum(reply.prompt_tokens for reply in replies) + decoded,
        resident_tokens=sum(reply.prefilled_tokens for reply in replies) + decoded,
        unsteadiness=max(paces) / min(paces),
    )
