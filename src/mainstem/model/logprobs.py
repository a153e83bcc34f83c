"""The probabilities that a reply may report. Plain data; needs no torch."""

from __future__ import annotations

from typing import NamedTuple


class TokenLogprob(NamedTuple):
    """One token and the natural logarithm of its probability, before temperature and penalties."""

    token_id: int
    logprob: float


class PositionLogprobs(NamedTuple):
    """The token taken at one position, and the most likely ones there, most likely first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]
