"""Tests of when two replies say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainstem.tools.meaning import ReplyMeaning
from mainstem.tools.syntax import Hermes

MEANING = ReplyMeaning(Hermes(), ["look"])


def said(arguments: Any) -> object:
    """What a reply with one call says."""
    call = json.dumps({"name": "look", "arguments": arguments})
    return MEANING("", f"<tool_call>\n{call}\n</tool_call>")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": True}, {"a": 1}),
        ({"a": True}, {"a": ["constant", 1]}),
        ({"a": None}, {"a": "None"}),
        ({"a": False}, {"a": 0.0}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
    ],
)
def test_values_that_are_not_the_same_are_told_apart(one: Any, other: Any) -> None:
    assert said(one) != said(other)


def test_the_order_of_keys_and_how_numbers_are_written_do_not_count() -> None:
    assert said({"a": 1, "b": [True, None]}) == said({"b": [True, None], "a": 1.0})
