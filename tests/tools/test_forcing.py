"""Whatever a model that follows a grammar writes, the parser reads valid calls, or none, as it should."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from mainstem.errors import InvalidRequest
from mainstem.tokens import Tokenizer, Tool
from mainstem.tokens.grammar import Constraint, GrammarCompiler
from mainstem.tools import CallSyntax, ReplyParser, ToolChoice, json_grammar, reply_grammar
from mainstem.tools.forcing import MAX_FORCED_CALLS
from mainstem.tools.syntax import BareJson, Hermes, Mistral, Pythonic
from tests.support.tiny_models import VOCAB_SIZE, save_tiny_tokenizer
from tests.tools.parsing import Parsed, parse

CITY = {"enum": ["Rome", "Oslo"]}
FORECAST = {"type": "object", "properties": {"city": CITY, "sure": {"type": "boolean"}}, "required": ["city"]}
TOOLS = (
    Tool("forecast", None, FORECAST),
    Tool("maybe", None, {"type": "object", "properties": {"a": {"const": 1}, "b": {"enum": ["x", None]}}}),
    Tool("now"),
)
SYNTAXES = [Hermes(), BareJson(), BareJson("arguments"), Mistral(), Mistral(named=True), Pythonic(), None]
THINK = ("<think>", "</think>")
REQUIRED = ToolChoice("required")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, VOCAB_SIZE)


def write(tokenizer: Tokenizer, compiler: GrammarCompiler, grammar: str, seed: int, *, limit: int = 3000) -> str:
    """What a model without any preference writes under a grammar; it must come to an end within the limit."""
    choose = random.Random(seed)
    constraint = compiler.compile(grammar)
    ids: list[int] = []
    while not constraint.finished:
        token_id = choose.choice(sorted(allowed(constraint)))
        constraint.accept(token_id)
        if token_id in tokenizer.eos_token_ids:
            break
        ids.append(token_id)
        assert len(ids) < limit
    return tokenizer.decode(ids, skip_special_tokens=False)


def allowed(constraint: Constraint) -> set[int]:
    """Ids of the tokens that may come next."""
    bits = np.unpackbits(constraint.mask().view(np.uint8), count=VOCAB_SIZE, bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def follow(constraint: Constraint, ids: list[int]) -> None:
    """Accept tokens, each of which must be allowed."""
    for token_id in ids:
        assert token_id in allowed(constraint)
        constraint.accept(token_id)


def read(syntax: CallSyntax | None, text: str, *, reasoning: tuple[str, str] | None = None) -> Parsed:
    known = {tool.name for tool in TOOLS}
    return parse(ReplyParser(syntax or Hermes(), known, reasoning=reasoning), [text])


def check_arguments(name: str, arguments: str) -> None:
    given = json.loads(arguments)
    if name == "forecast":
        assert given["city"] in CITY["enum"]
        assert set(given) <= {"city", "sure"}
    elif name == "maybe":
        assert given.get("a", 1) == 1
        assert given.get("b", "x") in ("x", None)
    else:
        assert (name, given) == ("now", {})


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: getattr(syntax, "name", "unknown"))
@pytest.mark.parametrize("parallel", [True, False])
def test_a_forced_reply_is_nothing_but_valid_calls(
    tokenizer: Tokenizer, compiler: GrammarCompiler, syntax: CallSyntax | None, parallel: bool
) -> None:
    grammar = reply_grammar(syntax, TOOLS, ToolChoice("required", parallel=parallel))
    assert grammar is not None
    for seed in range(12):
        parsed = read(syntax, write(tokenizer, compiler, grammar, seed))
        assert parsed.text == ""
        assert 1 <= len(parsed.calls) <= (MAX_FORCED_CALLS if parallel else 1)
        for name, arguments in parsed.calls:
            check_arguments(name, arguments)


def test_a_forced_call_is_of_an_allowed_tool(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    grammar = reply_grammar(Hermes(), TOOLS, ToolChoice("required", ("now",), parallel=False))
    assert grammar is not None
    assert read(Hermes(), write(tokenizer, compiler, grammar, 1)).calls == [("now", "{}")]


@pytest.mark.parametrize("inside", [True, False])
def test_thoughts_may_come_before_a_forced_call(compiler: GrammarCompiler, tokenizer: Tokenizer, inside: bool) -> None:
    grammar = reply_grammar(Hermes(), TOOLS, REQUIRED, reasoning=THINK, in_reasoning=inside)
    assert grammar is not None
    text = "hm <x> \n</think>\n\n<tool_call>\n" + '{"name": "now", "arguments": {}}\n</tool_call>'
    follow(compiler.compile(grammar), tokenizer.encode(text if inside else "<think>\n" + text).tolist())


@pytest.mark.parametrize("syntax", [Hermes(), Mistral()], ids=lambda syntax: syntax.name)
def test_a_model_that_must_not_call_cannot_begin_one(
    tokenizer: Tokenizer, compiler: GrammarCompiler, syntax: CallSyntax
) -> None:
    grammar = reply_grammar(syntax, TOOLS, ToolChoice("none"))
    assert grammar is not None
    constraint = compiler.compile(grammar)
    *beginning, last = tokenizer.encode("so " + syntax.triggers[0]).tolist()
    follow(constraint, beginning)
    assert last not in allowed(constraint)


WITHIN_TEXT = [
    (Hermes(), 'So.\n<tool_call>\n{"name": "forecast", "arguments": {"city": "', 'Rome"}}\n</tool_call>'),
    (Mistral(), 'So.\n[TOOL_CALLS][{"name": "forecast", "arguments": {"city": "', 'Rome"}}]'),
    (Mistral(named=True), 'So.\n[TOOL_CALLS]forecast[ARGS]{"city": "', 'Rome"}'),
]


@pytest.mark.parametrize(("syntax", "opening", "rest"), WITHIN_TEXT)
@pytest.mark.parametrize("parallel", [True, False])
def test_with_strict_tools_a_call_within_text_is_whole_and_valid(
    tokenizer: Tokenizer, compiler: GrammarCompiler, syntax: CallSyntax, opening: str, rest: str, parallel: bool
) -> None:
    strict = (Tool("forecast", None, FORECAST, strict=True),)
    grammar = reply_grammar(syntax, strict, ToolChoice(parallel=parallel))
    assert grammar is not None
    constraint = compiler.compile(grammar)
    follow(constraint, tokenizer.encode(opening).tolist())
    texts = {tokenizer.token_text(i) for i in allowed(constraint)}
    assert texts
    assert all("Rome".startswith(text) or "Oslo".startswith(text) for text in texts)
    follow(constraint, tokenizer.encode(rest).tolist())
    assert constraint.finished is not parallel


def test_with_strict_tools_a_model_need_not_call(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    grammar = reply_grammar(Hermes(), (Tool("now", strict=True),), ToolChoice(parallel=False))
    assert grammar is not None
    constraint = compiler.compile(grammar)
    follow(constraint, tokenizer.encode("It is noon.").tolist())
    assert tokenizer.eos_token_ids <= allowed(constraint)


@pytest.mark.parametrize(
    ("syntax", "choice"),
    [
        (Hermes(), ToolChoice()),
        (BareJson(), ToolChoice("none")),
        (Pythonic(), ToolChoice(parallel=False)),
        (None, ToolChoice("none")),
    ],
)
def test_a_model_is_left_free_where_nothing_is_asked_of_it(syntax: CallSyntax | None, choice: ToolChoice) -> None:
    assert reply_grammar(syntax, TOOLS, choice) is None
    assert reply_grammar(syntax, (), ToolChoice()) is None


def test_special_tokens_are_named_by_their_ids() -> None:
    ids = {"[TOOL_CALLS]": 5, "[ARGS]": 6}
    grammar = reply_grammar(Mistral(named=True), TOOLS, REQUIRED, special_id=ids.get)
    assert grammar is not None
    assert "<[5]>" in grammar
    assert "<[6]>" in grammar
    assert "TOOL_CALLS" not in grammar


def test_a_schema_is_followed(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"city": CITY, "n": {"type": "integer"}}, "required": ["city", "n"]}
    grammar = json_grammar({**schema, "additionalProperties": False})
    for seed in range(5):
        given = json.loads(write(tokenizer, compiler, grammar, seed))
        assert set(given) == {"city", "n"}
        assert given["city"] in CITY["enum"]


def test_the_folder_of_the_tokenizer_is_not_needed_any_more(tmp_path: Path) -> None:
    folder = save_tiny_tokenizer(tmp_path / "gone")
    loaded = Tokenizer.load(folder)
    for path in folder.iterdir():
        path.unlink()
    assert not GrammarCompiler(loaded, VOCAB_SIZE).compile('start: "a"').finished


@pytest.mark.parametrize("step", [10_001, 999_983, 0.12345678])
def test_a_multiple_that_would_take_seconds_to_compile_is_refused(step: float) -> None:
    with pytest.raises(InvalidRequest, match="multipleOf"):
        json_grammar({"type": "object", "properties": {"a": {"anyOf": [{"type": "number", "multipleOf": step}]}}})


@pytest.mark.parametrize("step", [2, 0.01, 10_000])
def test_a_usual_multiple_is_not(step: float) -> None:
    assert str(step) in json_grammar({"type": "number", "multipleOf": step})
