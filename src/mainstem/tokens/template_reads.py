"""What a chat template reads beside the conversation: the clock, random values, and what only some programs give it.

Found in the template's source, since a branch that no probe reaches may read the clock too. The clock is handed in as
data. It knows nothing of conversations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

CLOCK = "strftime_now"
# `transformers` offers that function, and cannot be given another, but a macro of the same name comes before it. The
# line break is dropped when the template is read, so that its first line is read as it would have been.
_FROM_DATA = (
    "{% macro strftime_now(format) %}{% if format in clock_readings %}{{ clock_readings[format] }}"
    "{% else %}{{ raise_exception('the time cannot be written as ' ~ format) }}{% endif %}{% endmacro %}\n"
)
# Variables that older templates expect, and how the time is written in the one.
_TIME_VARIABLE, _TIME_FORMAT = "datetime", "%b %d %Y %H:%M:%S"
_TOOLS_VARIABLE = "functions"


class TemplateReads(NamedTuple):
    """What a template reads.

    Attributes:
        clock: whether its text depends on the time.
        to_the_second: whether it writes more than the date.
        formats: texts in it that may tell how it writes the time.
        random: what it draws random values with; empty if it does not.
        variables: names that it must be given, since it does not ask whether they are there.
    """

    clock: bool
    to_the_second: bool
    formats: tuple[str, ...]
    random: tuple[str, ...]
    variables: frozenset[str]


@lru_cache(maxsize=64)
def reads_of(source: str) -> TemplateReads:
    """What a template reads; nothing, if it is no template at all."""
    try:
        tree = _ENVIRONMENT.parse(source)
    except jinja2.TemplateError:  # whoever renders it is told
        return TemplateReads(False, False, (), (), frozenset())
    names = meta.find_undeclared_variables(tree)
    tested = {test.node.name for test in tree.find_all(nodes.Test) if isinstance(test.node, nodes.Name)}
    texts = {const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str)}
    formats = sorted(text for text in texts if "%" in text) if CLOCK in names else []
    random = sorted({node.name for node in tree.find_all(nodes.Filter)} & {"random"} | names & {"lipsum"})
    variables = frozenset(names - tested)
    return TemplateReads(
        clock=CLOCK in names or _TIME_VARIABLE in variables,
        to_the_second=_TIME_VARIABLE in variables or any(_changes_within_a_day(text) for text in _written(tree)),
        formats=tuple(formats),
        random=tuple(random),
        variables=variables,
    )


def _written(tree: nodes.Template) -> Iterator[str]:
    """The formats in which the time is written, as far as they stand where it is."""
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == CLOCK:
            for argument in (*call.args, *(keyword.value for keyword in call.kwargs)):
                if isinstance(argument, nodes.Const):
                    yield str(argument.value)


def _changes_within_a_day(text: str) -> bool:
    return datetime(2026, 1, 1).strftime(text) != datetime(2026, 1, 1, 23, 59, 59).strftime(text)


class Pinned(NamedTuple):
    """A template that takes the time from the variables that go with it."""

    source: str
    variables: dict[str, Any]


def pin(source: str, moment: datetime, tools: Sequence[Any]) -> Pinned:
    """The template with the clock standing still.

    Args:
        source: of the template.
        moment: what the time is.
        tools: what the template is given as tools.
    """
    reads = reads_of(source)
    variables: dict[str, Any] = {}
    if _TIME_VARIABLE in reads.variables:
        variables[_TIME_VARIABLE] = moment.strftime(_TIME_FORMAT)
    if _TOOLS_VARIABLE in reads.variables:
        variables[_TOOLS_VARIABLE] = json.dumps(tools, ensure_ascii=False, indent=4)
    if not reads.clock:
        return Pinned(source, variables)
    return Pinned(
        _FROM_DATA + source, {**variables, "clock_readings": {text: moment.strftime(text) for text in reads.formats}}
    )


class _GenerationTag(Extension):
    """`{% generation %}`, with which templates of `transformers` mark replies; only to be read over."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_ENVIRONMENT = jinja2.Environment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
)
_ENVIRONMENT.globals.clear()  # jinja2 does not list names that it knows
