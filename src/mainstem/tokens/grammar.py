"""Grammars over tokens: which tokens may come next in a reply that must follow one.

llguidance parses the text so far and gives a bit for every token of the vocabulary. It knows nothing of what a
grammar is for, and nothing of logits.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mainstem.errors import InvalidRequest

if TYPE_CHECKING:
    from mainstem.tokens.tokenizer import Tokenizer

# How llguidance shows a line of the grammar.
_SOURCE_LINE = re.compile(r"\s*\d+ \|")
# Symbols; a client's schema may not take seconds to compile.
_MAX_GRAMMAR_SIZE = 200_000


class GrammarCompiler:
    """Makes constraints for one tokenizer. Safe to use from several threads.

    Args:
        tokenizer: of the model.
        num_logits: how many tokens a mask speaks of.
    """

    def __init__(self, tokenizer: Tokenizer, num_logits: int) -> None:
        self._tokenizer = tokenizer
        self._num_logits = num_logits
        self._lock = threading.Lock()
        self._vocabulary: Any = None

    def compile(self, grammar: str) -> Constraint:
        """A constraint for a reply that begins now.

        Raises:
            InvalidRequest: when the grammar, or a JSON schema in it, is not valid or not supported; it says why.
        """
        import llguidance

        matcher = llguidance.LLMatcher(
            self._loaded(),
            "%llguidance {}\n" + grammar,
            log_level=0,
            limits=llguidance.LLParserLimits(max_grammar_size=_MAX_GRAMMAR_SIZE),
        )
        if matcher.is_error():
            raise InvalidRequest(
                f"The grammar, or a JSON schema in it, cannot be used: {_reason(matcher.get_error())}", param="grammar"
            )
        constraint = Constraint(matcher, self._num_logits)
        if not constraint.copy().mask().any():
            raise InvalidRequest(
                "The grammar, or a JSON schema in it, cannot be used: nothing can be said that follows it",
                param="grammar",
            )
        return constraint

    def _loaded(self) -> Any:
        """llguidance's form of the vocabulary, which takes a moment to make."""
        with self._lock:
            if self._vocabulary is None:
                import llguidance

                tokens = _Tokens(self._tokenizer, self._num_logits)
                ends = sorted(i for i in self._tokenizer.eos_token_ids if i < self._num_logits)
                self._vocabulary = llguidance.LLTokenizer(
                    llguidance.TokenizerWrapper(tokens), n_vocab=self._num_logits, eos_token=ends or None
                )
            return self._vocabulary


class Constraint:
    """Where one reply is in its grammar. Not for several threads at once.

    Attributes:
        seconds: time spent on masks.
        num_masks: how many were computed.
    """

    def __init__(self, matcher: Any, num_logits: int) -> None:
        self._matcher = matcher
        self._mask = np.zeros((num_logits + 31) // 32, np.int32)
        self._num_logits = num_logits
        self.seconds = 0.0
        self.num_masks = 0

    def copy(self) -> Constraint:
        """Another one in the same place, that goes its own way from here."""
        return Constraint(self._matcher.deep_copy(), self._num_logits)

    def mask(self) -> NDArray[np.int32]:
        """One bit a token, the lowest bit of each word first; set where the token may come next.

        int32[ceil(num_logits / 32)], valid until the next call. All zero when the grammar became too complex.
        """
        began = time.perf_counter()
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if self._matcher.is_error():
            self._mask[:] = 0
        self.seconds += time.perf_counter() - began
        self.num_masks += 1
        return self._mask

    def accept(self, token_id: int) -> None:
        """The token was chosen; it must be one that the last mask allowed."""
        self._matcher.consume_token(token_id)

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing can follow it."""
        return bool(self._matcher.is_stopped())


class _Tokens:
    """The vocabulary in the form that llguidance asks for: the same bytes that the detokenizer gives out."""

    def __init__(self, tokenizer: Tokenizer, num_logits: int) -> None:
        self._tokenizer = tokenizer
        self.tokens: Sequence[bytes] = [tokenizer.token_bytes(i) for i in range(num_logits)]
        self.special_token_ids: Collection[int] = sorted(i for i in tokenizer.special_ids if i < num_logits)
        self.eos_token_id = min(tokenizer.eos_token_ids, default=0)
        self.bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        ids: list[int] = self._tokenizer.encode(decoded).tolist()
        return ids


def _reason(error: str) -> str:
    """What is wrong, on one line, without the lines of the grammar that are shown with it."""
    said = [line.strip() for line in error.splitlines() if not _SOURCE_LINE.match(line)]
    return " ".join(filter(None, said))[:200] or "no reason given"
