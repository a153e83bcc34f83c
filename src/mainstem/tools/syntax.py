"""The ways in which families of models write tool calls: what one begins with, and reading one as it comes.

A reader's verdict depends on the text alone, never on the pieces in which it came: it is given at the first character
at which it can be. Models are not known by name; `recognise` looks at a call that their chat template wrote.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import NamedTuple

from mainstem.tools.scanning import (
    Malformed,
    NamedArguments,
    Scanner,
    call_of_json,
    calls_of_json_list,
    calls_of_python_list,
    skip_space,
)


class Verdict(NamedTuple):
    """The calls that the first `length` characters are; without calls, these characters are text."""

    calls: list[NamedArguments]
    length: int


class CallSyntax(ABC):
    """One way of writing calls.

    Attributes:
        name: for people.
        triggers: texts with which a call may begin.
        marks: every text around calls that is a special token in some vocabularies.
        is_marked: nothing but a call begins like that, so that a model can be kept from calling.
        one_at_a_time: a reply has one call at most.
    """

    name: str
    triggers: tuple[str, ...]
    marks: tuple[str, ...]
    is_marked = True
    one_at_a_time = False

    @abstractmethod
    def reader(self, trigger: str, known: Collection[str]) -> Reader:
        """Reads what begins with `trigger`; `known` are the names of the tools on offer."""


class Reader(ABC):
    """Reads text that may be a call. Made for one occurrence of a trigger.

    Args:
        trigger: with which the text begins.
        known: names of the tools on offer.
    """

    def __init__(self, trigger: str, known: Collection[str]) -> None:
        self._trigger = trigger
        self._known = known
        self._scanner: Scanner | None = None
        self._value_start = 0
        self._value_end = 0

    @property
    def scanned(self) -> int:
        """How many characters of a value were looked at."""
        return self._scanner.at - self._value_start if self._scanner else 0

    def read(self, text: str, *, final: bool) -> Verdict | None:
        """The verdict on a text that begins with the trigger; None if only more text can tell.

        Args:
            text: begins as in earlier calls.
            final: no more will come; there is a verdict then.
        """
        try:
            verdict = self._read(text, final=final)
        except Malformed:
            return self._refusal
        return self._refusal if verdict is None and final else verdict

    @property
    def _refusal(self) -> Verdict:
        return Verdict([], len(self._trigger))

    @abstractmethod
    def _read(self, text: str, *, final: bool) -> Verdict | None:
        """As `read`; None at the end means that it is no call. May raise Malformed."""

    def _value(self, text: str, at: int, *, python: bool = False) -> str | None:
        """The bracketed value that begins at `at`, once it is whole; then `_value_end` is where it ends."""
        if self._scanner is None:
            self._scanner = Scanner(at, python=python)
            self._value_start = at
        if not self._value_end:
            self._value_end = self._scanner.end(text) or 0
        return text[self._value_start : self._value_end] if self._value_end else None


class Hermes(CallSyntax):
    """A JSON object in `<tool_call>` tags: Hermes, Qwen, SmolLM, and the built-in template."""

    name = "hermes"
    triggers = ("<tool_call>",)
    closing = "</tool_call>"
    marks = (*triggers, closing)

    def reader(self, trigger: str, known: Collection[str]) -> Reader:
        return _HermesReader(trigger, known)


class _HermesReader(Reader):
    def _read(self, text: str, *, final: bool) -> Verdict | None:
        at = skip_space(text, len(self._trigger))
        if at == len(text):
            return None
        if text[at] != "{":
            raise Malformed
        value = self._value(text, at)
        if value is None:
            return None
        call = call_of_json(value)
        after = skip_space(text, self._value_end)
        rest = text[after : after + len(Hermes.closing)]
        if rest == Hermes.closing:
            return Verdict([call], after + len(rest))
        if Hermes.closing.startswith(rest):
            # Models that forget the closing tag end their turn instead.
            return Verdict([call], len(text)) if final else None
        return Verdict([call], self._value_end)


class BareJson(CallSyntax):
    """A JSON object and nothing else, or with `<|python_tag|>` before it: Llama 3.

    Args:
        key: of the arguments.
    """

    name = "json"
    triggers = ("<|python_tag|>", "{")
    marks = ("<|python_tag|>",)
    is_marked = False
    one_at_a_time = True

    def __init__(self, key: str = "parameters") -> None:
        self.key = key

    def reader(self, trigger: str, known: Collection[str]) -> Reader:
        return _BareJsonReader(trigger, known)


_CALL_KEY = re.compile(r'\{\s*"(?:name|parameters|arguments|type|function|id)"')
_ANY_KEY = re.compile(r'\{\s*(?:"[a-z]{0,10})?')


class _BareJsonReader(Reader):
    def _read(self, text: str, *, final: bool) -> Verdict | None:
        at = 0 if self._trigger == "{" else skip_space(text, len(self._trigger))
        if at == len(text):
            return None
        if not _CALL_KEY.match(text, at):
            # Any other text with braces in it is not held back until they close.
            beginning = _ANY_KEY.match(text, at)
            if beginning is None or beginning.end() < len(text):
                raise Malformed
            return None
        value = self._value(text, at)
        if value is None:
            return None
        call = call_of_json(value)
        if call.name not in self._known:
            raise Malformed
        after = skip_space(text, self._value_end)
        if after < len(text):
            return Verdict([call], after + 1 if text[after] == ";" else self._value_end)
        return Verdict([call], self._value_end) if final else None


class Mistral(CallSyntax):
    """`[TOOL_CALLS]` and a JSON array of calls; or, later, before each name and its arguments.

    Args:
        named: the later form is the one to write. Both are read.
    """

    name = "mistral"
    triggers = ("[TOOL_CALLS]",)
    arguments_mark = "[ARGS]"
    marks = (*triggers, arguments_mark, "[CALL_ID]")

    def __init__(self, *, named: bool = False) -> None:
        self.named = named

    def reader(self, trigger: str, known: Collection[str]) -> Reader:
        return _MistralReader(trigger, known)


_MISTRAL_NAME = re.compile(r"([\w.\-]+)\s*(?:\[CALL_ID\]\s*[\w\-]+\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_MISTRAL_NAME_BEGINS = re.compile(
    r"[\w.\-]+\s*(?:\[CALL_ID\]\s*[\w\-]*\s*|(?P<c>\[[CALL_ID]*))?(?:\[ARGS\]\s*|(?P<a>\[[ARGS]*))?\Z"
)


class _MistralReader(Reader):
    def _read(self, text: str, *, final: bool) -> Verdict | None:  # noqa: ARG002 - a call ends where its JSON does
        at = skip_space(text, len(self._trigger))
        if at == len(text):
            return None
        if text[at] == "[":
            value = self._value(text, at)
            return None if value is None else Verdict(calls_of_json_list(value), self._value_end)
        named = _MISTRAL_NAME.match(text, at)
        if named is None:
            if _MISTRAL_NAME_BEGINS.match(text, at):
                return None
            raise Malformed
        value = self._value(text, named.end())
        if value is None:
            return None
        # A call's name is not in its JSON here.
        call = call_of_json('{"name": "_", "arguments": ' + value + "}")
        return Verdict([NamedArguments(named[1], call.arguments)], self._value_end)


class Pythonic(CallSyntax):
    """A Python list of calls with keywords, such as `[f(a=1), g()]`: Llama 4, Llama 3.2, ToolACE."""

    name = "pythonic"
    triggers = ("<|python_start|>", "[")
    marks = ("<|python_start|>", "<|python_end|>")
    is_marked = False

    def reader(self, trigger: str, known: Collection[str]) -> Reader:
        return _PythonicReader(trigger, known)


_FIRST_NAME = re.compile(r"\[\s*([\w.\-]*)\s*(\(?)")


class _PythonicReader(Reader):
    closing = "<|python_end|>"

    def _read(self, text: str, *, final: bool) -> Verdict | None:
        at = 0 if self._trigger == "[" else skip_space(text, len(self._trigger))
        if at == len(text):
            return None
        first = _FIRST_NAME.match(text, at)
        if first is None:
            raise Malformed
        name, bracket = first.groups()
        if not bracket:
            if first.end() < len(text) or not any(known.startswith(name) for known in self._known):
                raise Malformed
            return None
        if name not in self._known:
            raise Malformed
        value = self._value(text, at, python=True)
        if value is None:
            return None
        calls = calls_of_python_list(value)
        if self._trigger == "[":
            return Verdict(calls, self._value_end)
        rest = text[self._value_end : self._value_end + len(self.closing)]
        if rest != self.closing and self.closing.startswith(rest):
            return Verdict(calls, len(text)) if final else None
        return Verdict(calls, self._value_end + (len(rest) if rest == self.closing else 0))


def recognise(example: str) -> CallSyntax | None:
    """The syntax of a call that a chat template wrote; None if it is none of these.

    Args:
        example: text of a reply that calls a tool, perhaps with other marks around it.
    """
    if "[TOOL_CALLS]" in example:
        return Mistral(named=Mistral.arguments_mark in example)
    if re.search(r'<tool_call>\s*\{\s*"name"', example):
        return Hermes()
    if re.match(r"\s*(?:<\|python_start\|>)?\s*\[\s*[\w.]+\(", example):
        return Pythonic()
    bare = re.match(r'\s*(?:<\|python_tag\|>)?\s*\{\s*"name":\s*"[^"]*",\s*"(parameters|arguments)"', example)
    return BareJson(bare[1]) if bare else None
