"""Finding the ends of JSON values and Python lists in text that grows, and taking calls out of them.

A scanner looks at every character once, however the text arrives. It knows nothing of the marks around calls.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_JSON_PLAIN = re.compile(r"[\s0-9A-Za-z+\-.,:]*")
_JSON_STRING = re.compile(r'[^"\\]*')
_PYTHON_PLAIN = re.compile(r"[^\"'\\\[\](){}#]*")
_PYTHON_STRINGS = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(strict=False)
_NAME_KEYS = ("name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters")


class Malformed(Exception):
    """The text is not what it was taken for."""


class NamedArguments(NamedTuple):
    """A call without what was written around it."""

    name: str
    arguments: str


class Scanner:
    """Finds where a bracketed value ends.

    Args:
        start: where in the text it begins, with a bracket.
        python: it is Python's, with strings in either kind of quotes, and not JSON.

    Attributes:
        at: how far it has come.
    """

    def __init__(self, start: int, *, python: bool = False) -> None:
        self.at = start
        self._python = python
        self._opening, self._closing, self._quotes = ("[{(", "]})", "\"'") if python else ("[{", "]}", '"')
        self._depth = 0
        self._quote = ""

    def end(self, text: str) -> int | None:
        """Position after the value; None while it goes on. `text` begins as in earlier calls.

        Raises:
            Malformed: at the first character that cannot be in such a value.
        """
        while True:
            self.at = self._skip().match(text, self.at).end()  # type: ignore[union-attr]  # matches the empty text
            if self.at >= len(text):
                return None
            letter = text[self.at]
            if letter == "\\" and self._quote:
                if self.at + 1 >= len(text):
                    return None
                self.at += 2
                continue
            self.at += 1
            if self._quote or letter in self._quotes:
                self._quote = "" if self._quote else letter
            elif letter in self._opening:
                self._depth += 1
            elif letter in self._closing:
                self._depth -= 1
                if self._depth == 0:
                    return self.at
            else:
                raise Malformed

    def _skip(self) -> re.Pattern[str]:
        if self._python:
            return _PYTHON_STRINGS[self._quote] if self._quote else _PYTHON_PLAIN
        return _JSON_STRING if self._quote else _JSON_PLAIN


def skip_space(text: str, at: int) -> int:
    """Position of the next character that is not white space."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches the empty text


def call_of_json(text: str) -> NamedArguments:
    """The call that a JSON object with a name and arguments stands for.

    Raises:
        Malformed: when it is no such object.
    """
    members = {key: (value, source) for key, value, source in _members(text)}
    name = next((members[key][0] for key in _NAME_KEYS if key in members), None)
    if not isinstance(name, str) or not name:
        raise Malformed
    value, source = next((members[key] for key in _ARGUMENT_KEYS if key in members), (None, ""))
    return NamedArguments(name, arguments_text(value, source))


def calls_of_json_list(text: str) -> list[NamedArguments]:
    """The calls in a JSON array of such objects.

    Raises:
        Malformed: when it is no such array, or an empty one.
    """
    calls = []
    at = skip_space(text, 1)
    while at < len(text) and text[at] == "{":
        end = Scanner(at).end(text)
        if end is None:
            raise Malformed
        calls.append(call_of_json(text[at:end]))
        at = skip_space(text, end)
        if text[at] == ",":
            at = skip_space(text, at + 1)
    if not calls or text[at] != "]":
        raise Malformed
    return calls


def arguments_text(value: Any, source: str) -> str:
    """JSON text of the arguments: as written if that is an object in strict JSON.

    Raises:
        Malformed: when they are no object, nor the text of one, nor missing.
    """
    if isinstance(value, str):
        value, source = _decoded(value), value
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise Malformed
    try:
        json.loads(source, parse_constant=_no_constant)
    except ValueError:
        # Line breaks within strings, most often.
        return json.dumps(value, ensure_ascii=False)
    return source


def calls_of_python_list(text: str) -> list[NamedArguments]:
    """The calls in a Python list such as `[f(a=1), g()]`, whose values are literals.

    Raises:
        Malformed: when it is no such list, or an empty one.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Malformed from None
    if not isinstance(tree, ast.List) or not tree.elts:
        raise Malformed
    return [_python_call(element) for element in tree.elts]


def _members(text: str) -> Iterator[tuple[str, Any, str]]:
    """Key, value and the value's source, of each member of a JSON object."""
    at = skip_space(text, 1)
    while text[at] != "}":
        key, at = _value(text, at)
        at = skip_space(text, at)
        if not isinstance(key, str) or text[at] != ":":
            raise Malformed
        start = skip_space(text, at + 1)
        value, end = _value(text, start)
        yield key, value, text[start:end]
        at = skip_space(text, end)
        if text[at] == ",":
            at = skip_space(text, at + 1)
        elif text[at] != "}":
            raise Malformed


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        raise Malformed from None


def _decoded(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        raise Malformed from None


def _no_constant(name: str) -> None:
    raise Malformed(name)


def _python_call(element: ast.expr) -> NamedArguments:
    if not isinstance(element, ast.Call) or element.args:
        raise Malformed
    arguments = {}
    for keyword in element.keywords:
        if keyword.arg is None:
            raise Malformed
        arguments[keyword.arg] = _python_value(keyword.value)
    try:
        return NamedArguments(ast.unparse(element.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise Malformed from None


def _python_value(node: ast.expr) -> Any:
    """A literal's value. JSON's three words, which are names in Python, are taken too."""
    match node:
        case ast.Name(id="true" | "false" | "null" as word):
            return {"true": True, "false": False, "null": None}[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_python_value(item) for item in items]
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            return {
                str(ast.literal_eval(key)): _python_value(value) for key, value in zip(keys, values, strict=True) if key
            }
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise Malformed from None
    if not isinstance(value, str | int | float | None):
        raise Malformed
    return value
