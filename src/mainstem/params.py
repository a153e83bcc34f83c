"""What a caller may ask of one generation: length, stopping, sampling.

Plain data with validation. How the parameters act on logits is `mainstem.model.sampling`'s business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mainstem.errors import InvalidRequest

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one prompt is continued.

    Attributes:
        max_tokens: most tokens to generate; None means up to the context's end.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p: smallest set of most likely tokens whose probability reaches this.
        top_k: only the k most likely tokens; 0 means all.
        min_p: drop tokens less likely than this share of the most likely one.
        seed: makes sampling repeatable, alone or in a batch; None draws one.
        repetition_penalty: > 1 divides (or multiplies, if negative) the logits of tokens seen in prompt or reply.
        presence_penalty: subtracted from the logits of tokens that the reply already has.
        frequency_penalty: subtracted once per occurrence in the reply.
        stop: strings that end the reply; the text ends before the first of them.
        stop_token_ids: token ids that end the reply, beside the model's own.
        ignore_eos: go on past the model's end-of-turn tokens (for benchmarks).
        logprobs: None for none, otherwise how many of the most likely tokens to report at each position (0 to 20)
            beside the chosen one.
        n: how many independent replies; the prompt is computed once.
        grammar: what the reply must follow, in llguidance's Lark dialect; it ends with the grammar. None for anything.
        spoken_token_ids: special tokens that are part of the reply's text, such as the one that opens a tool call.

    Raises:
        InvalidRequest: when a value is out of range; `param` names the field.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    grammar: str | None = None
    spoken_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._check_types()
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, got {self.max_tokens}", param="max_tokens")
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequest("top_p must be above 0; use temperature 0 for greedy", param="top_p")
        if self.top_k < -1:
            raise InvalidRequest(f"top_k must be 0 (all) or more, got {self.top_k}", param="top_k")
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if any(not text for text in self.stop):
            raise InvalidRequest("stop strings must not be empty", param="stop")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise InvalidRequest(f"logprobs must be 0 to {MAX_LOGPROBS}, got {self.logprobs}", param="logprobs")
        if not 1 <= self.n <= 128:
            raise InvalidRequest(f"n must be between 1 and 128, got {self.n}", param="n")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise InvalidRequest("seed must fit in 64 bits", param="seed")

    def _check_types(self) -> None:
        for name in ("max_tokens", "top_k", "seed", "logprobs", "n"):
            value = getattr(self, name)
            if not (_is_whole(value) or (value is None and name in ("max_tokens", "seed", "logprobs"))):
                raise InvalidRequest(f"{name} must be a whole number, got {value!r}", param=name)
        if not isinstance(self.grammar, str | None):
            raise InvalidRequest(f"grammar must be a text, got {self.grammar!r}", param="grammar")
        for name, kind, is_kind in (
            ("stop", "strings", _is_text),
            ("stop_token_ids", "whole numbers", _is_whole),
            ("spoken_token_ids", "whole numbers", _is_whole),
        ):
            value = getattr(self, name)
            if not isinstance(value, tuple | list) or not all(map(is_kind, value)):
                raise InvalidRequest(f"{name} must be a tuple of {kind}, got {value!r}", param=name)
            object.__setattr__(self, name, tuple(value))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, got {value!r}", param=name)
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequest(f"{name} must be between {low:g} and {high:g}, got {value:g}", param=name)
