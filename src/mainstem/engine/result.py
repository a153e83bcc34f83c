"""Finished replies, as a caller in the same process gets them. It knows nothing of how they were made."""

from __future__ import annotations

from dataclasses import dataclass, field

from mainstem.engine.outputs import FinishReason, PositionLogprobs, RequestOutput, RequestUsage
from mainstem.tree import TokenArray


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
        """Prompt tokens that were cached when the first of its replies was let in."""
        usage = self.replies[0].usage
        return usage.of_prompt.cached_tokens if usage else 0

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens that were computed for this prompt's replies together, some perhaps several times."""
        return sum(reply.usage.prefilled_tokens for reply in self.replies if reply.usage)

    @property
    def ttft_s(self) -> float | None:
        """Seconds from submission to the first token."""
        usage = self.replies[0].usage
        return usage.ttft_s if usage else None
