"""How values that came as JSON are shown in errors."""

from __future__ import annotations

import json

import pytest

from mainstem.wording import json_fault, json_value, one_of


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("null", "null"),
        ("true", "true"),
        ("5", "5"),
        ("0.5", "0.5"),
        ('"robot"', "'robot'"),
        ("[1]", "a list"),
        ("{}", "an object"),
        ("1" + "0" * 30, "a number too large to use"),
        (json.dumps("x" * 100), "a long string"),
    ],
)
def test_a_value_is_shown_as_json_spells_it(text: str, told: str) -> None:
    assert json_value(json.loads(text)) == told


def test_a_fault_of_json_is_told_by_its_character_alone() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{a}")
    assert json_fault(caught.value) == "Expecting property name enclosed in double quotes, at character 2"


@pytest.mark.parametrize(
    ("choices", "told"), [(["a"], "'a'"), (["a", "b"], "'a' or 'b'"), (list("abc"), "'a', 'b' or 'c'")]
)
def test_choices_are_listed(choices: list[str], told: str) -> None:
    assert one_of(choices) == told
