"""Replies of real models, as the canitoolcall project recorded them, with what a right parser makes of each."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from mainstem.tools import CallSyntax, ReplyParser
from mainstem.tools.syntax import BareJson, Hermes, Mistral, Pythonic
from tests.tools.parsing import Parsed, parse

canitoolcall = pytest.importorskip("canitoolcall", reason="the recorded replies are in the package canitoolcall")
FAMILIES = ("qwen3-hermes", "llama", "mistral")
# Both end in a call that was cut off. We give it back as text, like everything that is no call; they want it dropped.
DROPPED_ELSEWHERE = {"qwen3-hermes/truncated-second-parallel-call", "mistral/v13think-stop-at-open-marker"}


def fixtures() -> Iterator[Any]:
    for family in FAMILIES:
        folder = files("canitoolcall") / "_data" / "fixtures" / family
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            if path.name.endswith(".jsonl"):
                for line in path.read_text(encoding="utf-8").splitlines():
                    if line.strip():
                        fixture = json.loads(line)
                        yield pytest.param(fixture, id=fixture["id"])


def parser_for(fixture: dict[str, Any]) -> ReplyParser:
    syntax: CallSyntax
    if fixture["family"] == "qwen3-hermes":
        syntax = Hermes()
    elif fixture["family"] == "mistral":
        syntax = Mistral()
    else:
        syntax = Pythonic() if "x-llama-pythonic" in fixture["tags"] else BareJson()
    square = fixture["family"] == "mistral" and "<think>" not in fixture["raw_output"]
    marks = ("[THINK]", "[/THINK]") if square else ("<think>", "</think>")
    return ReplyParser(
        syntax,
        {tool["function"]["name"] for tool in fixture["tools"]},
        reasoning=marks,
        in_reasoning=(fixture.get("generation_prompt") or "").rstrip().endswith(marks[0]),
    )


@pytest.mark.parametrize("fixture", list(fixtures()))
def test_a_recorded_reply_is_read_as_it_was_meant(fixture: dict[str, Any]) -> None:
    parsed = parse(parser_for(fixture), [fixture["raw_output"]])
    if fixture["id"] in DROPPED_ELSEWHERE:
        cut_off = parsed.text.strip()
        assert cut_off
        assert fixture["raw_output"].endswith(cut_off)
        return
    if "expected_error" in fixture:
        assert parsed.calls == []
        return
    expected = fixture["expected"]
    assert parsed.text.strip() == (expected["content"] or "").strip()
    assert parsed.reasoning.strip() == (expected["reasoning_content"] or "").strip()
    calls = [(name, json.loads(arguments)) for name, arguments in parsed.calls]
    assert calls == [(call["name"], call["arguments"]) for call in expected["tool_calls"]]


@pytest.mark.parametrize("fixture", list(fixtures()))
def test_a_recorded_reply_is_read_the_same_in_pieces(fixture: dict[str, Any]) -> None:
    reply: str = fixture["raw_output"]
    whole = parse(parser_for(fixture), [reply])
    for seed in range(3):
        assert parse(parser_for(fixture), pieces(reply, seed)) == whole


def pieces(text: str, seed: int) -> Iterator[str]:
    """The text in pieces of one to six characters."""
    sizes = random.Random(seed)
    at = 0
    while at < len(text):
        size = sizes.randint(1, 6)
        yield text[at : at + size]
        at += size


def test_the_pieces_make_the_text() -> None:
    assert "".join(pieces("some text", 1)) == "some text"
    assert parse(ReplyParser(), pieces("some text", 2)) == Parsed("some text", "", [], "")
