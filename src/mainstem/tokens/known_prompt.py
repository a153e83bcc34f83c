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
        origin: `generated` has ids that the model generated, in a reply that came back (and the marks around it);
            `known` has those of an earlier prompt; `new` was tokenized for this one.
        start, stop: characters of the prompt's text.
        first, end: tokens, as a range.
    """

    origin: Origin
    start: int
    stop: int
    first: int
    end: int


class Part(NamedTuple):
    """A part of a prompt: as the template writes it, as it is used, and its ids."""

    rendered: str
    text: str
    ids: TokenArray
    origin: Origin


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
        for part in (*self.settled, self.opening):
            stop, end = at + len(part.text), token + len(part.ids)
            if spans and spans[-1].origin == part.origin != "generated":
                spans[-1] = spans[-1]._replace(stop=stop, end=end)
            elif part.text:
                spans.append(Span(part.origin, at, stop, token, end))
            at, token = stop, end
        return tuple(spans)

    @property
    def tokenized(self) -> int:
        """How many of the tokens were made for this prompt."""
        return sum(len(part.ids) for part in (*self.settled, self.opening) if part.origin == "new")
