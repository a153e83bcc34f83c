"""Log-probabilities in the two shapes of OpenAI's API: a list of objects for chat, parallel lists for completions.

Knows the shapes and how a token is spelled out. Which tokens are reported is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainstem.engine.outputs import PositionLogprobs, TokenLogprob
    from mainstem.tokens import Tokenizer

# JSON has no infinity; this is what OpenAI reports for a token of probability zero.
LOWEST_LOGPROB = -9999.0


def chat_logprobs(tokenizer: Tokenizer, positions: Iterable[PositionLogprobs], top: int) -> dict[str, Any]:
    """The `logprobs` object of a chat choice; `top` alternatives at each position."""
    content = [
        {
            **_chat_entry(tokenizer, position.chosen),
            "top_logprobs": [_chat_entry(tokenizer, entry) for entry in position.top[:top]],
        }
        for position in positions
    ]
    return {"content": content, "refusal": None}


def _chat_entry(tokenizer: Tokenizer, entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(entry.token_id),
        "logprob": _finite(entry.logprob),
        "bytes": list(tokenizer.token_bytes(entry.token_id)),
    }


class CompletionLogprobs:
    """Makes the `logprobs` objects of one plain completion, which number their characters through all chunks.

    Offsets count from the beginning of the choice's `text`: an echoed prompt, then the tokens' own texts.
    """

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._offset = 0

    def of(self, positions: Iterable[PositionLogprobs]) -> dict[str, Any]:
        """The object for the next positions. Each has the chosen token beside the most likely ones."""
        tokens: list[str] = []
        chosen: list[float] = []
        alternatives: list[dict[str, float]] = []
        offsets: list[int] = []
        for position in positions:
            text = self._tokenizer.token_text(position.chosen.token_id)
            entries = (*position.top[: self._top], position.chosen)
            tokens.append(text)
            chosen.append(_finite(position.chosen.logprob))
            alternatives.append(
                {self._tokenizer.token_text(entry.token_id): _finite(entry.logprob) for entry in entries}
            )
            offsets.append(self._offset)
            self._offset += len(text)
        return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": alternatives, "text_offset": offsets}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
