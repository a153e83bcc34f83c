"""Schemas come out the same however their keys are ordered, and unchanged in everything else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.tokens import Conversation, Message, Tokenizer, Tool
from mainstem.tokens.canonical import canonical_schema
from tests.support.tiny_models import save_tiny_tokenizer

KEYWORDS = (
    "type",
    "properties",
    "required",
    "items",
    "anyOf",
    "$defs",
    "default",
    "enum",
    "description",
    "x-order",
    "ü",
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS) | st.text(max_size=3), inner),
    max_leaves=20,
)
SCHEMAS = st.dictionaries(st.sampled_from(KEYWORDS), JSON)


def shuffled(value: Any, source: random.Random) -> Any:
    """The same JSON, the keys of every object in a random order."""
    if isinstance(value, dict):
        keys = list(value)
        source.shuffle(keys)
        return {key: shuffled(value[key], source) for key in keys}
    return [shuffled(item, source) for item in value] if isinstance(value, list) else value


def text_of(schema: dict[str, Any]) -> str:
    return json.dumps(canonical_schema(schema), ensure_ascii=False)


@given(SCHEMAS, st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(schema: dict[str, Any], source: random.Random) -> None:
    assert text_of(shuffled(schema, source)) == text_of(schema)


@given(SCHEMAS)
def test_nothing_but_the_order_of_keys_changes(schema: dict[str, Any]) -> None:
    # Equal objects may differ in the order of their keys, equal lists in nothing; numbers keep their spelling.
    assert json.dumps(canonical_schema(schema), sort_keys=True) == json.dumps(schema, sort_keys=True)


def test_a_schema_in_the_usual_order_stays_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "a city"}, "days": {"type": "integer", "default": 1}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert json.dumps(canonical_schema(schema)) == json.dumps(schema)


def test_properties_come_in_the_order_in_which_they_are_required() -> None:
    properties: dict[str, Any] = {"answer": {}, "zeal": {}, "reason": {}, "also": {}}
    schema = {"required": ["reason", "answer", "unknown", "reason"], "properties": properties}
    assert list(canonical_schema(schema)["properties"]) == ["reason", "answer", "also", "zeal"]
    other = {**schema, "required": ["answer", "reason"]}
    assert list(canonical_schema(other)["properties"]) == ["answer", "reason", "also", "zeal"]


def test_the_order_of_lists_is_kept() -> None:
    schema = {"enum": ["b", "a"], "anyOf": [{"type": "string"}, {"type": "null"}], "required": ["b", "a"]}
    assert text_of(schema) == (
        '{"enum": ["b", "a"], "required": ["b", "a"], "anyOf": [{"type": "string"}, {"type": "null"}]}'
    )


def test_definitions_within_definitions_are_ordered() -> None:
    inner = {"properties": {"b": {"$ref": "#/$defs/B"}, "a": True}, "type": "object", "$defs": {"B": {"x": 1}, "A": {}}}
    assert text_of({"$defs": {"Outer": inner}, "type": "object"}) == (
        '{"type": "object", "$defs": {"Outer": {"type": "object", "properties": {"a": true, "b": {"$ref": '
        '"#/$defs/B"}}, "$defs": {"A": {}, "B": {"x": 1}}}}}'
    )


def test_a_property_named_like_a_keyword_is_a_property() -> None:
    schema = {"properties": {"required": {"type": "array"}, "properties": {"type": "object", "required": ["x"]}}}
    assert text_of(schema) == (
        '{"properties": {"properties": {"type": "object", "required": ["x"]}, "required": {"type": "array"}}}'
    )


@pytest.mark.parametrize("number", ["0.1", "1.0", "1e-07", "-0.0", "1e+22", "12345678901234567890"])
def test_numbers_are_spelled_as_they_were(number: str) -> None:
    assert text_of({"minimum": json.loads(number)}) == f'{{"minimum": {number}}}'


def test_names_are_ordered_by_code_point_and_not_escaped() -> None:
    assert text_of({"properties": {"é": {}, "z": {}, "日": {}, "e\u0301": {}}}) == (
        '{"properties": {"e\u0301": {}, "z": {}, "é": {}, "日": {}}}'
    )


def prompt(tokenizer: Tokenizer, *tools: Tool) -> str:
    return tokenizer.chat.render(Conversation((Message(role="user", parts=("x",)),), tools))


def test_prompts_show_schemas_in_one_order_unless_that_is_switched_off(tmp_path: Path) -> None:
    folder = save_tiny_tokenizer(tmp_path)
    one = Tool("f", None, {"type": "object", "properties": {"a": {}, "b": {}}})
    other = Tool("f", None, {"properties": {"b": {}, "a": {}}, "type": "object"})
    canonical, as_sent = Tokenizer.load(folder), Tokenizer.load(folder, canonical_tools=False)
    assert prompt(canonical, one) == prompt(canonical, other) == prompt(as_sent, one)
    assert '"parameters": {"properties": {"b": {}, "a": {}}, "type": "object"}' in prompt(as_sent, other)


def test_the_order_of_tools_is_kept(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save_tiny_tokenizer(tmp_path))
    assert prompt(tokenizer, Tool("b"), Tool("a")) != prompt(tokenizer, Tool("a"), Tool("b"))
