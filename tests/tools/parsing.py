"""What tests of the parser share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mainstem.tools import Call, Reasoning, ReplyParser, Text


class Parsed(NamedTuple):
    """A reply, taken apart."""

    text: str
    reasoning: str
    calls: list[tuple[str, str]]
    sources: str


def parse(parser: ReplyParser, pieces: Iterable[str]) -> Parsed:
    """All that a parser makes of a reply in pieces."""
    segments = [segment for piece in pieces for segment in parser.push(piece)] + parser.flush()
    return Parsed(
        "".join(segment.text for segment in segments if isinstance(segment, Text)),
        "".join(segment.text for segment in segments if isinstance(segment, Reasoning)),
        [(segment.name, segment.arguments) for segment in segments if isinstance(segment, Call)],
        "".join(segment.source for segment in segments if isinstance(segment, Call)),
    )
