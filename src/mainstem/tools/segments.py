"""What a reply is made of, in the order in which it was written."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Text(NamedTuple):
    """A piece of what the model says."""

    text: str


class Reasoning(NamedTuple):
    """A piece of what the model thinks before it says something."""

    text: str


class Call(NamedTuple):
    """A whole tool call.

    Attributes:
        name: of the tool, whether or not it was offered.
        arguments: text of a JSON object; as the model wrote it, unless that was not JSON.
        source: all that was written for it. For several calls in one list it is with the first.
    """

    name: str
    arguments: str
    source: str


Segment: TypeAlias = Text | Reasoning | Call
