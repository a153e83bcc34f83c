"""The marks in a conversation by which clients say up to where its prompt is to be kept, in the hosted APIs' own forms.

What those forms list is all that is taken, so that a mistake is told and not kept for another time than was meant; keys
that they do not have are ignored, since they get new ones. It knows nothing of caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mainstem.tokens.conversation import Breakpoint
from mainstem.wording import json_value, one_of, refuse


class Marker(NamedTuple):
    """The form of a marker.

    Attributes:
        kind: the key that says what it is.
        value: that this key must have.
        ttls: times that it may name.
        ttl: for how long it holds if it names none; None for as long as the request says.
    """

    kind: str
    value: str
    ttls: tuple[str, ...]
    ttl: str | None


OPENAI_TTLS = ("30m", "12h")
ANTHROPIC_TTL = "5m"
CACHE_CONTROL = Marker("type", "ephemeral", (ANTHROPIC_TTL, "1h"), ANTHROPIC_TTL)
MARKERS: Mapping[str, Marker] = {
    "prompt_cache_breakpoint": Marker("mode", "explicit", OPENAI_TTLS, None),
    "cache_control": CACHE_CONTROL,
}


def read_breakpoints(where: str, content: object) -> tuple[Breakpoint, ...]:
    """The breakpoints on the parts of a message's content, as OpenAI or Anthropic write them.

    Raises:
        InvalidRequest: when one is malformed.
    """
    if isinstance(content, str) or not isinstance(content, Sequence):
        return ()
    found = (read_breakpoint(f"{where}[{i}]", part, i) for i, part in enumerate(content))
    return tuple(mark for mark in found if mark is not None)


def read_breakpoint(where: str, part: object, index: int = 0) -> Breakpoint | None:
    """The breakpoint on one part, block or tool, if it has one.

    Raises:
        InvalidRequest: when it is malformed.
    """
    if not isinstance(part, Mapping):
        return None
    for key, form in MARKERS.items():
        if (marker := part.get(key)) is not None:
            return Breakpoint(index, read_marker(f"{where}.{key}", marker, form))
    return None


def read_marker(where: str, marker: object, form: Marker) -> str | None:
    """How long a marker holds; None for as long as the request says.

    Raises:
        InvalidRequest: when it has not this form.
    """
    if not isinstance(marker, Mapping):
        refuse(where, f"must be an object, got {json_value(marker)}")
    if form.kind not in marker:
        refuse(f"{where}.{form.kind}", f"is required: '{form.value}'")
    if marker[form.kind] != form.value:
        refuse(f"{where}.{form.kind}", f"must be '{form.value}', got {json_value(marker[form.kind])}")
    ttl = marker.get("ttl")
    return form.ttl if ttl is None else read_ttl(f"{where}.ttl", ttl, form.ttls)


def read_ttl(where: str, ttl: object, allowed: Sequence[str]) -> str:
    """A time of those that an API lists.

    Raises:
        InvalidRequest: when it is another.
    """
    if not isinstance(ttl, str) or ttl not in allowed:
        refuse(where, f"must be {one_of(allowed)}, got {json_value(ttl)}; cache_hints.ttl takes any time up to 24h")
    return ttl
