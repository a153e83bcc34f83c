"""Grammars that make a model call tools, keep it from calling, or make it write JSON.

They are written in llguidance's Lark dialect. A special token, such as Mistral's `[TOOL_CALLS]`, is named by its id
there; plain text in a grammar never matches one. It knows nothing of how a grammar is applied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from mainstem.errors import InvalidRequest
from mainstem.tokens import Tool
from mainstem.tools.syntax import BareJson, CallSyntax, Hermes, Mistral, Pythonic

# A small model that may call as often as it likes does not stop.
MAX_FORCED_CALLS = 8
# States of the automaton that says which numbers are multiples of another; this many take a third of a second.
_MAX_STEP = 10_000
SpecialId = Callable[[str], int | None]
_ANYTHING = "/(?s:.*)/"
_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_OPEN_ENDED = ("additionalProperties", "unevaluatedProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref")


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether, and what, a reply may call.

    Attributes:
        mode: auto, none or required.
        names: of the tools it may call; None for all.
        parallel: it may make several calls.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    parallel: bool = True

    def allowed(self, tools: Sequence[Tool]) -> list[Tool]:
        """Those of the tools that it may call."""
        if self.mode == "none":
            return []
        if self.names is None:
            return list(tools)
        names = frozenset(self.names)
        return [tool for tool in tools if tool.name in names]


def json_grammar(schema: Mapping[str, Any]) -> str:
    """Grammar of a JSON value that follows a schema, written on one line with a space after commas and colons."""
    return f"start: {_json(schema)}\n"


def reply_grammar(
    syntax: CallSyntax | None,
    tools: Sequence[Tool],
    choice: ToolChoice,
    *,
    schema: Mapping[str, Any] | None = None,
    reasoning: tuple[str, str] | None = None,
    in_reasoning: bool = False,
    special_id: SpecialId = lambda _: None,
) -> str | None:
    """Grammar of a whole reply; None where the model is free.

    Args:
        syntax: of calls; None for one that is unknown, where a forced call is written in the Hermes form.
        tools: that the prompt offers.
        choice: whether it may call them.
        schema: of what it says, if that must be JSON.
        reasoning: marks around thoughts, which may come first, if the model knows any.
        in_reasoning: the prompt has opened the thoughts.
        special_id: id of the special token that a mark is, or None.
    """
    allowed = choice.allowed(tools)
    if choice.mode != "required" and schema is None:
        marked = syntax is not None and syntax.is_marked and bool(tools)
        unbound = choice.parallel and choice.names is None and not any(tool.strict for tool in tools)
        if not marked or (allowed and unbound):
            return None
    writer = _Writer(special_id)
    calls = writer.calls(syntax or Hermes(), allowed, parallel=choice.parallel) if allowed else None
    if choice.mode == "required" and calls:
        body = calls
    elif schema is not None:
        body = f"({_json(schema)} | {calls})" if calls else _json(schema)
    elif syntax is None:
        return None
    elif not calls:
        body = writer.text_without(syntax.triggers)
    else:
        body = writer.text_then_calls(syntax, allowed, parallel=choice.parallel)
    if reasoning is not None:
        body = writer.thoughts(reasoning, inside=in_reasoning) + " " + body
    return writer.grammar(body)


class _Writer:
    """Writes rules, each under a name of its own."""

    def __init__(self, special_id: SpecialId) -> None:
        self._special_id = special_id
        self._rules: list[str] = []

    def grammar(self, body: str) -> str:
        return "\n".join([f"start: {body}", *self._rules]) + "\n"

    def calls(self, syntax: CallSyntax, tools: Sequence[Tool], *, parallel: bool) -> str:
        """One call, or several, of any of the tools."""
        many = parallel and not syntax.one_at_a_time
        match syntax:
            case Mistral(named=False):
                return f"{self._mark(syntax.triggers[0])} {self._mistral_list(tools, many=many)}"
            case BareJson(key=key):
                return self._any(self._object(tool, key) for tool in tools)
            case Pythonic():
                one = self._any(self._python(tool) for tool in tools)
                return f'"[" {self._several(one, ", ", many=many)} "]"'
            case _:
                one = f"({self._mark(syntax.triggers[0])} {self._after_trigger(syntax, tools)})"
                return self._several(one, "\n" if isinstance(syntax, Hermes) else "", many=many)

    def text_without(self, triggers: Sequence[str]) -> str:
        """Any text in which no call begins."""
        plain = [trigger for trigger in triggers if self._special_id(trigger) is None]
        without = "".join(f" & ~/(?s:.*){_regex(trigger)}(?s:.*)/" for trigger in plain)
        return self._terminal("TEXT", _ANYTHING + without)

    def text_then_calls(self, syntax: CallSyntax, tools: Sequence[Tool], *, parallel: bool) -> str:
        """Any text; where a call begins in it, it must be a whole and right one."""
        trigger = syntax.triggers[0]
        text = self.text_without((trigger,))
        if self._special_id(trigger) is not None:
            until = f"{text} {self._mark(trigger)}"
        else:
            until = self._rule("until_call[lazy]", f"/(?s:.*){_regex(trigger)}/").removesuffix("[lazy]")
        call = f"{until} {self._after_trigger(syntax, tools)}"
        return f"({call}){{0,{MAX_FORCED_CALLS}}} {text}" if parallel else f"({text} | {call})"

    def thoughts(self, marks: tuple[str, str], *, inside: bool) -> str:
        """Thoughts, up to their end mark; optional unless they have begun."""
        start, end = marks
        if self._special_id(end) is not None:
            thought = f"{self._terminal('THOUGHT', _ANYTHING)} {self._mark(end)}"
        else:
            thought = self._rule("thought[lazy]", f"/(?s:.*){_regex(end)}/").removesuffix("[lazy]")
        gap = self._terminal("GAP", r"/\n{0,2}/")
        return f"{thought} {gap}" if inside else f"({self._mark(start)} {thought} {gap})?"

    def _after_trigger(self, syntax: CallSyntax, tools: Sequence[Tool]) -> str:
        """One call, in a syntax that marks calls, without the mark that opens it."""
        match syntax:
            case Mistral(named=True):
                return self._any(
                    f"{_text(tool.name)} {self._mark(Mistral.arguments_mark)} {_arguments(tool)}" for tool in tools
                )
            case Mistral():
                return self._mistral_list(tools, many=False)
            case _:
                one = self._any(self._object(tool, "arguments") for tool in tools)
                return f'"\\n" {one} "\\n" {self._mark(Hermes.closing)}'

    def _mistral_list(self, tools: Sequence[Tool], *, many: bool) -> str:
        one = self._any(self._object(tool, "arguments") for tool in tools)
        return f'"[" {self._several(one, ", ", many=many)} "]"'

    @staticmethod
    def _object(tool: Tool, key: str) -> str:
        head = '{"name": ' + json.dumps(tool.name, ensure_ascii=False) + f', "{key}": '
        return f'{_text(head)} {_arguments(tool)} "}}"'

    def _python(self, tool: Tool) -> str:
        schema = tool.schema
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = [name for name in properties if name in schema.get("required", ())]
        values = {
            name: f"{_text(name + '=')} {_json({**shared, **value} if isinstance(value, Mapping) else {})}"
            for name, value in properties.items()
        }
        optional = [name for name in properties if name not in required]
        arguments = ' ", " '.join(values[name] for name in required)
        if required:
            arguments += "".join(f' (", " {values[name]})?' for name in optional)
        elif optional:
            arguments = "(" + " | ".join(self._from(optional[i:], values) for i in range(len(optional))) + ")?"
        return f'{_text(tool.name + "(")} {arguments} ")"'

    @staticmethod
    def _from(names: Sequence[str], values: Mapping[str, str]) -> str:
        return values[names[0]] + "".join(f' (", " {values[name]})?' for name in names[1:])

    @staticmethod
    def _any(alternatives: Any) -> str:
        return "(" + " | ".join(alternatives) + ")"

    @staticmethod
    def _several(one: str, separator: str, *, many: bool) -> str:
        if not many:
            return one
        between = f"{_text(separator)} " if separator else ""
        return f"{one} ({between}{one}){{0,{MAX_FORCED_CALLS - 1}}}"

    def _mark(self, mark: str) -> str:
        token_id = self._special_id(mark)
        return _text(mark) if token_id is None else f"<[{token_id}]>"

    def _terminal(self, name: str, definition: str) -> str:
        return self._rule(name, definition)

    def _rule(self, name: str, definition: str) -> str:
        rule = f"{name}: {definition}"
        if rule not in self._rules:
            self._rules.append(rule)
        return name


def _arguments(tool: Tool) -> str:
    schema = dict(tool.schema)
    if "$ref" not in schema:
        schema.setdefault("type", "object")
    if "properties" in schema and not any(key in schema for key in _OPEN_ENDED):
        # Small models go on inventing arguments where they may.
        schema["additionalProperties"] = False
    return _json(schema, lenient=not tool.strict)


def _digits(number: float) -> int:
    """A number without its sign and decimal point."""
    return int("".join(map(str, Decimal(str(number)).as_tuple().digits)))


def _check_multiples(schema: Any) -> None:
    """Refuse multiples whose automaton would take seconds to build: it has as many states as the number is large."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            step = part.get("multipleOf")
            if isinstance(step, int | float) and _digits(step) > _MAX_STEP:
                raise InvalidRequest(
                    f"The grammar, or a JSON schema in it, cannot be used: multipleOf {step} has too many digits; "
                    f"at most {_MAX_STEP:,}, decimal point left out, are supported",
                    param="grammar",
                )
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)


def _json(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    _check_multiples(schema)
    return "%json " + json.dumps({**schema, "x-guidance": {**_OPTIONS, "lenient": lenient}})


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _regex(text: str) -> str:
    """A text within a regular expression."""
    return "".join(letter if letter.isalnum() or letter in "<>_ " else f"\\{letter}" for letter in text)
