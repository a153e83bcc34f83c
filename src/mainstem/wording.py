"""How errors tell of requests and JSON: values as JSON spells them, and where a text stops being any.

It knows nothing of what a value means, nor of who sent it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NoReturn

from mainstem.errors import InvalidRequest

LONGEST_TEXT = 40
"""Characters of a string that is quoted; a longer one says little and may be as long as a body."""


def json_value(value: object) -> str:
    """A value that came as JSON, as an error may show it."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if abs(value) < 10**15 else "a number too large to use"
        case float():
            return f"{value:g}"
        case str():
            return f"'{value}'" if len(value) <= LONGEST_TEXT else "a long string"
        case list() | tuple():
            return "a list"
        case _:
            return "an object"


def json_fault(error: json.JSONDecodeError) -> str:
    """What is wrong with a line that is no JSON, and at which character; which line it is, its reader knows."""
    return f"{error.msg}, at character {error.pos + 1}"


def one_of(choices: Sequence[str]) -> str:
    """Such as `'a', 'b' or 'c'`."""
    *others, last = (f"'{choice}'" for choice in choices)
    return f"{', '.join(others)} or {last}" if others else last


def refuse(where: str, why: str) -> NoReturn:
    """Raise the error for a field of a request."""
    raise InvalidRequest(f"{where} {why}", param=where)
