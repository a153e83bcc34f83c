"""Masks of grammars, over a real tokenizer."""

from __future__ import annotations

import numpy as np
import pytest

from mainstem.errors import InvalidRequest
from mainstem.tokens import Tokenizer
from mainstem.tokens.grammar import Constraint, GrammarCompiler
from tests.support.tiny_models import VOCAB_SIZE, save_tiny_tokenizer

TURN_END = 2


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, VOCAB_SIZE)


def allowed(constraint: Constraint) -> set[int]:
    bits = np.unpackbits(constraint.mask().view(np.uint8), count=VOCAB_SIZE, bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def follow(constraint: Constraint, ids: list[int]) -> None:
    """Accept tokens, each of which must be allowed."""
    for token_id in ids:
        assert token_id in allowed(constraint)
        constraint.accept(token_id)


def test_a_mask_allows_every_token_that_can_go_on_and_no_other(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    constraint = compiler.compile('start: "sea" | "system"')
    texts = {tokenizer.token_text(i) for i in allowed(constraint)}
    assert "s" in texts
    assert texts <= {text[:n] for text in ("sea", "system") for n in range(1, 7)}


def test_a_text_that_follows_the_grammar_is_allowed_however_it_is_cut(
    tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    text = '{"name": "Straße, 東京 🌊"}'
    grammar = 'start: %json {"type": "object", "x-guidance": {"key_separator": ": "}}'
    follow(compiler.compile(grammar), tokenizer.encode(text).tolist())
    by_bytes = [i for letter in text.encode() for i in range(VOCAB_SIZE) if tokenizer.token_bytes(i) == bytes([letter])]
    assert len(by_bytes) == len(text.encode())
    follow(compiler.compile(grammar), by_bytes)


def test_the_end_of_turn_is_allowed_where_the_text_may_end(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    constraint = compiler.compile('start: "a" "a"?')
    (letter,) = tokenizer.encode("a").tolist()
    assert TURN_END not in allowed(constraint)
    constraint.accept(letter)
    assert allowed(constraint) == {letter, TURN_END}
    assert not constraint.finished
    constraint.accept(letter)
    assert constraint.finished


def test_the_end_of_turn_finishes_it(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    constraint = compiler.compile('start: "a" "a"?')
    follow(constraint, [*tokenizer.encode("a").tolist(), TURN_END])
    assert constraint.finished


def test_text_never_allows_a_special_token(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    assert allowed(compiler.compile("start: /(?s:.*)/")).isdisjoint(tokenizer.special_ids - {TURN_END})


def test_a_special_token_is_named_by_its_id(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile('start: <[1]> "a"')
    assert allowed(constraint) == {1}
    constraint.accept(1)
    assert 1 not in allowed(constraint)


def test_a_copy_goes_its_own_way(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    first = compiler.compile('start: "ab" | "ac"')
    a, b, c = (tokenizer.encode(letter).tolist()[0] for letter in "abc")
    first.accept(a)
    second = first.copy()
    first.accept(b)
    assert first.finished
    assert allowed(second) == {b, c}


@pytest.mark.parametrize(
    "grammar",
    [
        "start: nothing",
        "start: (",
        'start: %json {"type": "wish"}',
        'start: %json {"not": {"type": "string"}}',
        'start: %json {"$ref": "#"}',
        'start: %json {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}',
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused(compiler: GrammarCompiler, grammar: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be used"):
        compiler.compile(grammar)


def test_masks_are_counted_and_timed(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile('start: "a"')
    constraint.mask()
    constraint.mask()
    assert constraint.num_masks == 2
    assert 0 < constraint.seconds < 1
