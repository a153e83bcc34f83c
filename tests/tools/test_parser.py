"""Replies taken apart: every syntax, every way of cutting, and nothing lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.tools import Call, CallSyntax, ReplyParser, Text
from mainstem.tools.syntax import BareJson, Hermes, Mistral, Pythonic
from tests.tools.parsing import Parsed, parse

KNOWN = {"look_up", "now"}
THINK = ("<think>", "</think>")
SYNTAXES: dict[str, Callable[[], CallSyntax]] = {
    "hermes": Hermes,
    "json": BareJson,
    "mistral": Mistral,
    "pythonic": Pythonic,
}
# What replies, right and wrong, are made of.
FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool_call>\n", "\n</tool_call>", "<tool"],
    "json": ["<|python_tag|>", "; ", "<|python", "{", '{"a": 1}'],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS]look_up[ARGS]", "[ARGS]", "[TOOL", "look_up", "[CALL_ID]abc"],
    "pythonic": [
        "<|python_start|>",
        "<|python_end|>",
        "[look_up(a=1)]",
        "[look_up(",
        "now()",
        "[now(), look_up(a='b')]",
    ],
}
COMMON = [
    '{"name": "look_up", "arguments": {"a": "b"}}',
    '{"name": "look_up", "parameters": {"a": [1, {"b": "}"}]}}',
    '[{"name": "now", "arguments": {}}]',
    '{"name": "other", "arguments": {}}',
    '{"name": "look_up", "arguments": ',
    '"', "\\", "{", "}", "[", "]", "(", ")", ",", "'", " ", "\n", "text", "ü", "<", ">", "</tool_call>", "x = [1]",
]  # fmt: skip


@pytest.mark.parametrize("name", SYNTAXES)
@given(data=st.data())
def test_pieces_make_no_difference_and_nothing_is_lost(name: str, data: st.DataObject) -> None:
    reply = "".join(data.draw(st.lists(st.sampled_from([*FRAGMENTS[name] * 3, *COMMON]), max_size=14)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=20)))
    pieces = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    whole = parse(ReplyParser(SYNTAXES[name](), KNOWN), [reply])
    assert parse(ReplyParser(SYNTAXES[name](), KNOWN), pieces) == whole
    assert parse(ReplyParser(SYNTAXES[name](), KNOWN), reply) == whole
    if not whole.calls:
        assert whole.text == reply
    assert sorted("".join((whole.text + whole.sources).split())) == sorted("".join(reply.split()))
    for _, arguments in whole.calls:
        assert isinstance(json.loads(arguments), dict)


@given(data=st.data())
def test_thoughts_are_the_same_however_they_are_cut(data: st.DataObject) -> None:
    fragments = ["<think>", "</think>", "\n", " ", "a", "<", "</thi", '<tool_call>{"name": "now"}</tool_call>']
    reply = "".join(data.draw(st.lists(st.sampled_from(fragments), max_size=12)))
    inside = data.draw(st.booleans())
    whole, pieces = (
        parse(ReplyParser(Hermes(), KNOWN, reasoning=THINK, in_reasoning=inside), cut) for cut in ([reply], reply)
    )
    assert whole == pieces


@pytest.mark.parametrize(
    ("syntax", "reply", "text", "calls"),
    [
        (Hermes(), '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "", [("now", "{}")]),
        (
            Hermes(),
            '<tool_call>{"arguments": {"b":1,  "a": 2}, "name": "x"}</tool_call>',
            "",
            [("x", '{"b":1,  "a": 2}')],
        ),
        (Hermes(), 'Hm.\n<tool_call>{"name": "now"}</tool_call>\n', "Hm.", [("now", "{}")]),
        (
            Hermes(),
            '<tool_call>{"name": "now"}</tool_call>\n<tool_call>{"name": "f"}</tool_call>',
            "",
            [("now", "{}"), ("f", "{}")],
        ),
        (Hermes(), 'a\n<tool_call>{"name": "now"}</tool_call>\nb', "a\n\nb", [("now", "{}")]),
        (
            Hermes(),
            '<tool_call>{"name": "now", "arguments": {"a": "</tool_call>"}}</tool_call>',
            "",
            [("now", '{"a": "</tool_call>"}')],
        ),
        (
            Hermes(),
            '<tool_call>{"name": "now", "arguments": {"a": "x\ny"}}</tool_call>',
            "",
            [("now", '{"a": "x\\ny"}')],
        ),
        (Hermes(), '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("now", '{"a": 1}')]),
        (Hermes(), '<tool_call>{"name": "now", "arguments": {}}', "", [("now", "{}")]),
        (Hermes(), '<tool_call>oh <tool_call>{"name": "now"}</tool_call>', "<tool_call>oh", [("now", "{}")]),
        (BareJson(), '{"name": "now", "parameters": {}}', "", [("now", "{}")]),
        (BareJson(), '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}', "", [("now", "{}")]),
        (
            BareJson(),
            '{"name": "now", "parameters": {}}; {"name": "look_up", "parameters": {"a": 1}}',
            "",
            [("now", "{}"), ("look_up", '{"a": 1}')],
        ),
        (BareJson(), 'It is {"name": "Ann", "parameters": {}}.', 'It is {"name": "Ann", "parameters": {}}.', []),
        (
            Mistral(),
            '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "f", "arguments": {"a": 1}}]',
            "",
            [("now", "{}"), ("f", '{"a": 1}')],
        ),
        (
            Mistral(),
            '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]f[CALL_ID]1a[ARGS]{"a": 1}',
            "",
            [("now", "{}"), ("f", '{"a": 1}')],
        ),
        (
            Pythonic(),
            "[now(), look_up(a='x', b=[1, None, True], c={'d': 2.5})]",
            "",
            [("now", "{}"), ("look_up", '{"a": "x", "b": [1, null, true], "c": {"d": 2.5}}')],
        ),
        (Pythonic(), "See [1] and [look_up].", "See [1] and [look_up].", []),
    ],
)
def test_calls_are_read_and_text_stays(syntax: CallSyntax, reply: str, text: str, calls: list[tuple[str, str]]) -> None:
    parsed = parse(ReplyParser(syntax, KNOWN), [reply])
    assert (parsed.text, parsed.calls) == (text, calls)


@pytest.mark.parametrize(
    "reply",
    [
        "<tool_call>no JSON</tool_call>",
        '<tool_call>{"name": "now", "arguments": {"a": 1}</tool_call>',
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": NaN',
        '<tool_call>{"name": "now", "arguments": {"a": "never closed}}</tool_call> and more\n',
        "<tool_call>",
    ],
)
def test_what_is_no_call_is_text_to_the_last_character(reply: str) -> None:
    assert parse(ReplyParser(Hermes(), KNOWN), [reply]) == Parsed(reply, "", [], "")


def test_text_comes_out_as_soon_as_it_cannot_be_a_call() -> None:
    parser = ReplyParser(Hermes(), KNOWN)
    assert parser.push("Hello <tool") == [Text("Hello")]
    assert parser.push("box>") == [Text(" <toolbox>")]
    json_parser = ReplyParser(BareJson(), KNOWN)
    assert json_parser.push('{"x":') == [Text("{"), Text('"x":')]


def test_a_call_comes_out_when_it_is_whole() -> None:
    parser = ReplyParser(Hermes(), KNOWN)
    assert parser.push('<tool_call>{"name": "now"}</tool_call') == []
    assert parser.push(">") == [Call("now", "{}", '<tool_call>{"name": "now"}</tool_call>')]


def test_calls_beyond_the_allowed_number_are_left_out() -> None:
    one = '<tool_call>{"name": "now"}</tool_call>'
    assert len(parse(ReplyParser(Hermes(), KNOWN, max_calls=1), [one * 3]).calls) == 1


@pytest.mark.parametrize(
    ("reply", "inside", "reasoning", "text"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, "hm", "yes"),
        ("hm\n</think>\n\nyes", True, "hm", "yes"),
        ("  <think>hm</think>yes", False, "hm", "yes"),
        ("yes <think>no", False, "", "yes <think>no"),
        ("hm, never done", True, "hm, never done", ""),
        ("<think>\n\n</think>\n\nyes", False, "", "yes"),
    ],
)
def test_thoughts_are_parted_from_the_answer(reply: str, inside: bool, reasoning: str, text: str) -> None:
    parsed = parse(ReplyParser(reasoning=THINK, in_reasoning=inside), [reply])
    assert (parsed.reasoning, parsed.text) == (reasoning, text)


def test_a_parser_with_nothing_to_look_for_gives_everything_back() -> None:
    assert parse(ReplyParser(), ["<think>", "a \n", " <tool_call>"]).text == "<think>a \n <tool_call>"


@pytest.mark.parametrize("reply", ['{"name":' * 4000, "[look_up(" * 4000, '{"name": "' + '{"name": "' * 4000])
def test_a_reply_that_is_all_beginnings_takes_no_long_time(reply: str) -> None:
    syntax = Pythonic() if reply[0] == "[" else BareJson()
    began = time.perf_counter()
    assert parse(ReplyParser(syntax, KNOWN), [reply]).text == reply
    assert time.perf_counter() - began < 10


def test_many_calls_before_a_long_text_are_read_in_linear_time() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    parser = ReplyParser(Hermes(), {"f"})
    began = time.perf_counter()
    parsed = parse(parser, ["\n".join([call] * 3_000) + "x" * 20_000_000])
    assert time.perf_counter() - began < 5.0  # copying what follows each of them takes half a minute
    assert len(parsed.calls) == 3_000
