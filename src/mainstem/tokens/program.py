"""Chat templates as programs: compiled once, and run on plain data.

The language is that of `transformers` (Jinja in its immutable sandbox, with the same extensions and functions), and so
is the text. What `transformers` does around it, twice copying the whole conversation, costs more than the template. It
knows nothing of messages, and of no model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from mainstem.tokens.conversation import Definition

# Marks the loops of a template that write straight into the prompt; see `resuming`.
LOOP_FILTER = "mainstem_loop"


class Variables(Namespace):
    """`namespace(...)` of a template, where it keeps what changes. Names that begin with an underscore are refused."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Without a name of its own for `self`, which a template may use.
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


class _Dict:
    """`dict`, of which a template sees no more than this."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Generation(Extension):
    """`{% generation %}`, with which templates mark what the model wrote. It has a scope of its own."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    @staticmethod
    def _written(caller: Any) -> Any:
        return caller()


class TemplateProgram:
    """A template that can be run.

    Args:
        source: of the template.
        loops: what its loops over messages use for `loop`, and the filter that such a loop's list goes through; None
            for loops as they are.

    Raises:
        jinja2.TemplateError: when it is no template.
    """

    def __init__(self, source: str, loops: tuple[type[LoopContext], Any] | None = None) -> None:
        environment = _environment()
        tree = environment.parse(source)
        if loops is not None:
            environment.filters[LOOP_FILTER] = loops[1]
            for loop in _loops(tree.body):
                loop.iter = nodes.Filter(loop.iter, LOOP_FILTER, [], [], None, None, lineno=loop.lineno)
        code = environment.compile(tree)
        self._template = jinja2.Template.from_code(environment, code, environment.make_globals(None))
        if loops is not None:
            # The compiled code names it as a global of its own module.
            self._template.root_render_func.__globals__["LoopContext"] = loops[0]

    def write(self, variables: Mapping[str, Any]) -> Iterator[str]:
        """The text in pieces, each written when it is asked for."""
        return self._template.root_render_func(self._template.new_context(dict(variables)))


@lru_cache(maxsize=64)
def program(source: str) -> TemplateProgram:
    """A template's program."""
    return TemplateProgram(source)


def _loops(body: Sequence[nodes.Node]) -> Iterator[nodes.For]:
    """Loops whose text goes straight into the prompt.

    One with an `else`, which jinja writes too if a loop breaks early, depends on how many messages it was run for.
    """
    for node in body:
        if isinstance(node, nodes.For) and node.test is None and not node.recursive and not node.else_:
            yield node
        elif isinstance(node, nodes.If):
            yield from _loops([*node.body, *node.elif_, *node.else_])


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=refuse,
        strftime_now=lambda text: datetime.now().strftime(text),
        dict=_Dict(),
        namespace=Variables,
    )
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    dumps = value.as_json if isinstance(value, Definition) else partial(json.dumps, value)
    return dumps(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: str) -> NoReturn:
    """`raise_exception` of a template.

    Raises:
        jinja2.TemplateError: always.
    """
    raise jinja2.TemplateError(message)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"Chat templates cannot store underscore-prefixed attributes on a namespace, but got {name!r}. "
            "Please rename the attribute."
        )
