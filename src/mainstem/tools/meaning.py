"""When two replies say the same: the same words, thoughts and calls, however calls and white space are written.

Clients read a tool call, keep it as an object and send it back; a chat template then writes it in its own way. It knows
text and JSON; it knows nothing of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable
from typing import Any

from mainstem.tools.parser import ReplyParser
from mainstem.tools.segments import Call, Reasoning, Text
from mainstem.tools.syntax import CallSyntax


class ReplyMeaning:
    """Reads what replies say, as far as that can be compared.

    Args:
        syntax: of calls; None if there are none to look for.
        known: names of the tools on offer.
        reasoning: marks around thoughts, as (start, end); None if there are none to look for.
    """

    def __init__(
        self, syntax: CallSyntax | None = None, known: Collection[str] = (), reasoning: tuple[str, str] | None = None
    ) -> None:
        self._syntax = syntax
        self._known = frozenset(known)
        self._reasoning = reasoning

    def __call__(self, opening: str, body: str) -> Hashable:
        """What a reply says; None if that cannot be compared.

        Args:
            opening: how its prompt ends, which may have begun its thoughts.
            body: its text.
        """
        inside = self._reasoning is not None and opening.rstrip().endswith(self._reasoning[0])
        parser = ReplyParser(self._syntax, self._known, reasoning=self._reasoning, in_reasoning=inside)
        segments = [*parser.push(body), *parser.flush()]
        said = "".join(segment.text for segment in segments if isinstance(segment, Text))
        thought = "".join(segment.text for segment in segments if isinstance(segment, Reasoning))
        try:
            calls = tuple(
                (call.name, _frozen(json.loads(call.arguments))) for call in segments if isinstance(call, Call)
            )
        except (ValueError, RecursionError):
            return None
        return said.strip(), thought.strip(), calls


# Equal to themselves and to no value of JSON.
_CONSTANTS = {str(value): object() for value in (True, False, None)}


def _frozen(value: Any) -> Hashable:
    """A JSON value that can be compared: the order of keys does not count, nor does how a number is written."""
    match value:
        case dict():
            return frozenset((key, _frozen(item)) for key, item in value.items())
        case list():
            return tuple(_frozen(item) for item in value)
        case bool() | None:
            return _CONSTANTS[str(value)]  # else true would be 1
        case int() | float() | str():
            return value
    raise ValueError(f"{type(value).__name__} is not of JSON")
