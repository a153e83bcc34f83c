"""Places at which a prompt may be cut so that its parts have by themselves the tokens that they have in the whole.

Tokenizers look for special tokens first and tokenize what lies between them by itself, so a prompt can be cut after
each token that ends a turn. It knows tokenizers; it knows nothing of conversations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mainstem.errors import InvalidRequest
from mainstem.tokens.tokenizer import TokenArray, Tokenizer


class End(NamedTuple):
    """A token that ends a turn, found in a text: where it begins, where it stops, and its id."""

    start: int
    stop: int
    token_id: int


class Seams:
    """Cuts the prompts of one tokenizer, and tokenizes the parts.

    A tokenizer that does not keep to the rule, or whose end of turn is no special token, has no seams: its prompts are
    one part each.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        texts = {token_id: tokenizer.token_text(token_id) for token_id in sorted(tokenizer.eos_token_ids)}
        self._ids = {text: i for i, text in texts.items() if text and tokenizer.special_id(text) == i}
        self._pattern = re.compile("|".join(re.escape(text) for text in self._ids) or r"(?!)")
        self._anchor = next(iter(self._ids), "")
        if not self._holds():
            self._ids, self._anchor, self._pattern = {}, "", re.compile(r"(?!)")

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids of the tokens after which a text may be cut."""
        return frozenset(self._ids.values())

    def cut(self, text: str) -> list[str]:
        """The parts of a text: each but the last, which may be empty, stops with a token that ends a turn."""
        written = [end for end in self._ids if end in text]
        if len(written) == 1:  # much faster
            *parts, last = text.split(written[0])
            return [*(part + written[0] for part in parts), last]
        parts, at = [], 0
        for found in self._pattern.finditer(text):
            parts.append(text[at : found.end()])
            at = found.end()
        return [*parts, text[at:]]

    def find_end(self, part: str, start: int) -> End | None:
        """The first token that ends a turn from a place on."""
        found = self._pattern.search(part, start)
        return None if found is None else End(found.start(), found.end(), self._ids[found[0]])

    def encode(self, parts: Sequence[str], *, at_start: bool) -> list[TokenArray]:
        """Ids of parts that follow one another.

        Args:
            parts: as `cut` makes them, or the rest of one.
            at_start: the first of them begins its text.

        Raises:
            InvalidRequest: when a text is not valid Unicode.
        """
        # What follows a special token is not the start of a text, where some tokenizers add a space.
        anchored = [self._anchor + part if i or not at_start else part for i, part in enumerate(parts)]
        encoded = self._tokenizer.encode_batch(anchored)
        skip = int(bool(self._anchor))
        return [ids[skip:] if i or not at_start else ids for i, ids in enumerate(encoded)]

    def encode_exactly(self, text: str) -> TokenArray | None:
        """Ids of a text that goes on within a part; None where the tokenizer has none that spell just this."""
        (ids,) = self.encode([text], at_start=False)
        return ids if self._tokenizer.spell(ids).text == text else None

    def _holds(self) -> bool:
        """Whether parts are tokenized as the whole is, in a text that would show it."""
        if not self._ids or any(a != b and a.startswith(b) for a in self._ids for b in self._ids):
            return False
        probe = "".join(f"{before}word {text}" for text in self._ids for before in ("a\n", "\n", " ", "  b", ""))
        parts = self.cut(probe + " c\n")
        try:
            cut = np.concatenate(self.encode(parts, at_start=True))
        except InvalidRequest:  # pragma: no cover - a token's own text is valid
            return False
        return np.array_equal(cut, self._tokenizer.encode(probe + " c\n"))
