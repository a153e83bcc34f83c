"""Where the objects in a JSON list stand, by their bytes, so that what was parsed before need not be parsed again.

It looks for brackets outside strings, and so takes the bytes for JSON: whether they are is seen when they are parsed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{}]', re.DOTALL)
_NEXT = re.compile(rb"[ \t\n\r]*([,\]])[ \t\n\r]*")
_QUOTE, _OPEN = b'"'[0], b"{["


class Items(NamedTuple):
    """Objects that follow one another in a list, up to its end.

    Attributes:
        start: of the first one.
        ends: of each of them.
    """

    start: int
    ends: list[int]


def items_from(raw: bytes, start: int) -> Items | None:
    """The objects of a list of which the first one begins here; None where something else is in it."""
    ends = []
    at = start
    while (end := _object_end(raw, at)) is not None:
        ends.append(end)
        follows = _NEXT.match(raw, end)
        if follows is None:
            return None
        if follows[1] == b"]":
            return Items(start, ends)
        at = follows.end()
    return None


def items_after(raw: bytes, end: int) -> Items | None:
    """The objects of a list that follow on one that ends here; None where something else does."""
    follows = _NEXT.match(raw, end)
    if follows is None:
        return None
    return Items(end, []) if follows[1] == b"]" else items_from(raw, follows.end())


def first_item(raw: bytes, name: str) -> int | None:
    """Where the first item of a list of this name begins; of several, that of the first."""
    found = re.search(rb'"%b"[ \t\n\r]*:[ \t\n\r]*\[[ \t\n\r]*' % re.escape(name.encode()), raw)
    return None if found is None else found.end()


def _object_end(raw: bytes, start: int) -> int | None:
    if raw[start : start + 1] != b"{":
        return None
    depth = 0
    for token in _TOKEN.finditer(raw, start):
        byte = raw[token.start()]
        if byte == _QUOTE:
            continue
        depth += 1 if byte in _OPEN else -1
        if not depth:
            return token.end()
    return None
