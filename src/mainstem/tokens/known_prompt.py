"""A prompt whose ids are in part known: its text, its ids, and where they are from. Plain data."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from mainstem.tokens.tokenizer import TokenArray

Origin: TypeAlias = Literal["generated", "known", "new"]


class Span(NamedTuple):
    """A stretch of a prompt.

    Attributes:
        origin: `generated` has ids that the model generated, in a reply that came back; `known` has those of an
            earlier prompt; `new` was tokenized for this one.
        start, stop: characters of the prompt's text.
        first, end: tokens, as a range.
    """

    origin: Origin
    start: int
    stop: int
    first: int
    end: int


class Piece(NamedTuple):
    """A stretch of a part, of one origin: how many characters and tokens it has."""

    origin: Origin
    characters: int
    tokens: int


class Part(NamedTuple):
    """A part of a prompt.

    Attributes:
        rendered: as the template writes it.
        text: as it is used.
        ids: int32[n], which spell the text.
        pieces: where the ids are from, from the first on.
    """

    rendered: str
    text: str
    ids: TokenArray
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, text: str, ids: TokenArray, origin: Origin) -> Part:
        """One that is used as it is rendered, and whose ids are all from one place."""
        return cls(text, text, ids, (Piece(origin, len(text), len(ids)),))

    @property
    def tokenized(self) -> int:
        """How many of the tokens are new."""
        return sum([piece.tokens for piece in self.pieces if piece.origin == "new"])

    def settled(self) -> Part:
        """As it is to later prompts: what is new in this one is known to them."""
        if not self.tokenized:
            return self
        pieces = (piece._replace(origin="known") if piece.origin == "new" else piece for piece in self.pieces)
        return self._replace(pieces=tuple(pieces))


@dataclass(frozen=True, slots=True)
class KnownPrompt:
    """A prompt's text and ids, and where they are from. `TokenHistory.remember` takes it with the reply.

    Attributes:
        ids: int32[n].
        text: what they spell, which differs from the rendered text where a reply's own spelling was kept.
        namespace: whose history it used.
        settled, opening: its parts; the last one is where the reply begins.
        rendered: what the template wrote.
        trail: what its first parts were known by, if they were known in one piece.
    """

    ids: TokenArray
    text: str
    namespace: tuple[Hashable, ...]
    settled: tuple[Part, ...]
    opening: Part
    rendered: str = ""
    trail: Any = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """The prompt from its beginning to its end, in stretches of one origin."""
        spans: list[Span] = []
        at = token = 0
        for piece in (piece for part in (*self.settled, self.opening) for piece in part.pieces):
            stop, end = at + piece.characters, token + piece.tokens
            if spans and spans[-1].origin == piece.origin:
                spans[-1] = spans[-1]._replace(stop=stop, end=end)
            elif stop > at or end > token:
                spans.append(Span(piece.origin, at, stop, token, end))
            at, token = stop, end
        return tuple(spans)

    @property
    def tokenized(self) -> int:
        """How many of the tokens were made for this prompt."""
        return sum(part.tokenized for part in (*self.settled, self.opening))
