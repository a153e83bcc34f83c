"""Each class of change at the head, in the middle and at the tail of a prompt: found, placed, and its price."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainstem.diagnosis import Cause
from mainstem.diagnosis import Place as Region
from mainstem.lint import Level, Scope, Sizes, read
from tests.lint.logs import TOOLS, Body, conversation, lint, only, step

VOLATILE = {
    Cause.TIMESTAMP: "It is 2026-11-30T12:0{}:09Z.",
    Cause.UUID: "run 9f8b1c1e-6a54-4f0e-9f55-0a1d8b7a6c2{}",
    Cause.COUNTER: "step {} of 40",
    Cause.PATH: "cwd: /tmp/tmpx8{}a/repo",
    Cause.LISTING: "files:\na.py\n{animal}.py\nz.py\n",
}
ANIMALS = ("bird", "crow", "dove", "eagle")
PLACES = [0, 3, -1]  # the system's text, the first result, the last message of the request before


def put_into(body: Body, index: int, text: str) -> None:
    """A text into the middle of a message."""
    message = body["messages"][index]
    first, _, rest = message["content"].partition("\n")
    message["content"] = f"{first}\n{text}\n{rest or 'Go on.'}"


@pytest.mark.parametrize("index", PLACES)
@pytest.mark.parametrize("cause", VOLATILE)
def test_what_always_changes(tmp_path: Path, cause: Cause, index: int) -> None:
    def change(turn: int, body: Body) -> None:
        # The last message of the first request is there in all later ones.
        put_into(body, 3 if index == -1 else index, VOLATILE[cause].format(turn, animal=ANIMALS[turn]))

    finding = only(lint(tmp_path, conversation(2 if index == -1 else 4, change)))
    place = 3 if index == -1 else index
    assert (finding.cause, finding.parts) == (cause, [f"messages[{place}].content"])
    assert (finding.first.after.file, finding.first.after.number) == (str(tmp_path / "requests.jsonl"), 2)
    assert str(finding.first.after).endswith("requests.jsonl:2")
    assert finding.lost_per_turn > 0
    assert finding.fix


@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize(("texts", "cause"), [(("a  b", "a b"), Cause.WHITESPACE)])
def test_whitespace(tmp_path: Path, index: int, texts: tuple[str, str], cause: Cause) -> None:
    found = lint(tmp_path, conversation(4, lambda turn, body: put_into(body, index, texts[turn % 2])))
    assert only(found).cause is cause


@pytest.mark.parametrize("index", [2, 4])
def test_arguments_with_their_keys_in_another_order(tmp_path: Path, index: int) -> None:
    def change(turn: int, body: Body) -> None:
        function = body["messages"][index]["tool_calls"][0]["function"] if len(body["messages"]) > index else {}
        if turn % 2 and function:
            function["arguments"] = json.dumps({"timeout": 60, "command": f"pytest -k case_{(index - 2) // 2}"})

    finding = only(lint(tmp_path, conversation(4, change)))
    assert finding.cause is Cause.KEY_ORDER
    assert finding.parts == [f"messages[{index}].tool_calls[0].function.arguments"]


@pytest.mark.parametrize("at", [0, 1])
def test_tools_in_another_order(tmp_path: Path, at: int) -> None:
    def change(turn: int, body: Body) -> None:
        tools = body["tools"]
        if turn % 2:
            tools[at], tools[at + 1] = tools[at + 1], tools[at]

    finding = only(lint(tmp_path, conversation(4, change)))
    assert (finding.cause, finding.parts) == (Cause.TOOLS_REORDERED, [f"tools[{at}].function"])


@pytest.mark.parametrize("at", [0, 1, 2])
def test_schemas_with_their_keys_in_another_order(tmp_path: Path, at: int) -> None:
    def change(turn: int, body: Body) -> None:
        function = body["tools"][at]["function"]
        if turn % 2:
            function["parameters"] = dict(reversed(function["parameters"].items()))

    finding = only(lint(tmp_path, conversation(4, change)))
    assert (finding.cause, finding.parts) == (Cause.KEY_ORDER, [f"tools[{at}].function"])


@pytest.mark.parametrize("at", [0, 1, 3])
def test_tools_that_come_and_go(tmp_path: Path, at: int) -> None:
    def change(turn: int, body: Body) -> None:
        if turn % 2:
            body["tools"].insert(at, {"type": "function", "function": {"name": "search"}})

    found = lint(tmp_path, conversation(4, change))
    assert {finding.cause for finding in found.alarms} == {Cause.TOOLS_ADDED, Cause.TOOLS_REMOVED}


@pytest.mark.parametrize("first", [1, 2])
def test_a_sliding_window(tmp_path: Path, first: int) -> None:
    def change(turn: int, body: Body) -> None:
        del body["messages"][first : first + 2 * max(0, turn - 1)]

    finding = only(lint(tmp_path, conversation(6, change)))
    assert (finding.cause, finding.parts) == (Cause.HISTORY_WINDOWED, [f"messages[{first}]"])
    assert (len(finding.occurrences), finding.compared) == (4, 5)


def test_old_results_that_are_left_out(tmp_path: Path) -> None:
    def change(turn: int, body: Body) -> None:
        for index in range(3, 2 * turn, 2):
            body["messages"][index]["content"] = "[old output omitted]"

    finding = only(lint(tmp_path, conversation(6, change)))
    assert finding.cause is Cause.HISTORY_ELIDED
    assert finding.parts == ["messages[3].content", "messages[5].content", "messages[7].content", "messages[9].content"]


def test_a_history_that_becomes_a_summary_at_every_turn(tmp_path: Path) -> None:
    def change(turn: int, body: Body) -> None:
        if turn > 1:
            summary = {"role": "user", "content": f"Summary: {turn - 1} cases were tried, and all of them passed."}
            body["messages"][2 : 2 * turn] = [summary]

    finding = only(lint(tmp_path, conversation(6, change)))
    assert finding.cause is Cause.HISTORY_ELIDED


@pytest.mark.parametrize("index", [2, 4])
def test_thoughts_that_are_not_sent_back_later(tmp_path: Path, index: int) -> None:
    def change(_: int, body: Body) -> None:
        if len(body["messages"]) == index + 2:  # it is the newest turn
            body["messages"][index]["reasoning_content"] = "The day may be off by one, or the month. I look first."

    finding = only(lint(tmp_path, conversation(4, change)))
    assert (finding.cause, finding.parts) == (Cause.REASONING_DROPPED, [f"messages[{index}].reasoning_content"])


def test_two_changes_in_one_prompt_are_two_findings(tmp_path: Path) -> None:
    def change(turn: int, body: Body) -> None:
        put_into(body, 0, f"It is 10:0{turn}:00.\nstep {turn} of 40")
        put_into(body, 3, f"cwd: /tmp/tmpx8{turn}a/repo")

    found = lint(tmp_path, conversation(4, change))
    assert [(finding.cause, finding.parts) for finding in found.alarms] == [
        (Cause.TIMESTAMP, ["messages[0].content"]),
        (Cause.COUNTER, ["messages[0].content"]),
        (Cause.PATH, ["messages[3].content"]),
    ]


def test_the_price_is_what_was_sent_before_and_stands_behind_the_change(tmp_path: Path) -> None:
    clock = "It is 10:0{}."
    found = lint(tmp_path, conversation(3, lambda turn, body: put_into(body, 3, clock.format(turn))))
    assert not found.conversations - 1
    # Behind the number are a full stop, a line break, the rest of that result, and in the third request one more turn.
    rest = len(".\n") + len("a line of output 0\n") * 12
    assert only(found).lost == found.kept - found.reused == rest + rest + turn_size(1)
    assert found.share == found.reused / found.kept


def test_what_a_cache_still_has_from_the_request_before_the_last_is_not_lost(tmp_path: Path) -> None:
    def change(turn: int, body: Body) -> None:
        if turn % 2:
            body["tools"].reverse()

    found = lint(tmp_path, conversation(3, change))
    first, _, third = (request.prompt for request in read([tmp_path / "requests.jsonl"]).conversations[0].requests)
    shared = Sizes(len).overlap(first, third)
    second_loses = Sizes(len).prompt(first)  # all of the first but what stands before the first tool's name
    assert shared.lost == 0
    assert only(found).first.lost == pytest.approx(second_loses, abs=12)
    assert only(found).occurrences[1].lost == Sizes(len).prompt(third) - shared.reused - turn_size(2)


def turn_size(number: int) -> int:
    """Characters that a turn adds."""
    (call,) = step(number)[0]["tool_calls"]
    said = sum(len(message["content"]) + 4 for message in step(number))
    return said + len(call["function"]["name"]) + len(call["function"]["arguments"])


def test_the_whole_history_is_lost_when_the_model_changes(tmp_path: Path) -> None:
    found = lint(tmp_path, conversation(2, lambda turn, body: body.update(model=f"m{turn}")))
    finding = only(found)
    assert (finding.cause, finding.place) == (Cause.MODEL_CHANGED, Region.MODEL)
    assert found.reused == 0


def test_a_reply_that_is_not_sent_back_as_it_came(tmp_path: Path) -> None:
    first, second = conversation(2)
    reply = {**step(1)[0], "content": step(1)[0]["content"] + "  \n"}
    lines = [{"request": first, "response": {"choices": [{"message": reply}]}}, {"request": second}]
    finding = only(lint(tmp_path, lines))
    assert (finding.cause, finding.place) == (Cause.WHITESPACE, Region.REPLY)
    assert finding.parts == ["messages[4].content"]


@pytest.mark.parametrize(
    ("cause", "texts"),
    [
        (Cause.TIMESTAMP, ("It is 10:01.", "It is 10:09.", "It is 11:00.")),
        (Cause.UUID, ("session 4fa8e21b9c", "session 77ab01cd3e", "session 0d9e8f7a61")),
    ],
)
def test_what_no_conversation_needs_to_have_of_its_own(tmp_path: Path, cause: Cause, texts: tuple[str, ...]) -> None:
    bodies = []
    for i, text in enumerate(texts):
        (body,) = conversation(1, lambda _, body, text=text: put_into(body, 0, text))  # type: ignore[misc]
        body["messages"][1:] = [{"role": "user", "content": f"Another task, of its own kind: {'xyz'[i] * 50}"}]
        bodies.append(body)
    found = lint(tmp_path, bodies)
    finding = only(found)
    assert (found.conversations, finding.scope, finding.cause) == (3, Scope.CONVERSATIONS, cause)
    assert len(finding.occurrences) == 2


def test_places_of_anthropics_messages(tmp_path: Path) -> None:
    def body(turn: int) -> Body:
        said: list[Body] = [{"role": "user", "content": "Repair the test of dates, please."}]
        for number in range(turn + 1):
            use = {"type": "tool_use", "id": f"t{number}", "name": "run", "input": {"command": f"pytest {number}"}}
            result = [{"type": "text", "text": f"passed, pid {turn}{number}" if not number else f"passed {number}"}]
            said.append({"role": "assistant", "content": [{"type": "text", "text": f"I try {number}."}, use]})
            block = {"type": "tool_result", "tool_use_id": f"t{number}", "content": result}
            said.append({"role": "user", "content": [block, {"type": "text", "text": "Go on, please."}]})
        system = [
            {"type": "text", "text": "You repair code, and do so with care."},
            {"type": "text", "text": f"It is 10:0{turn}.", "cache_control": {"type": "ephemeral"}},
        ]
        return {"model": "c", "max_tokens": 9, "system": system, "messages": said, "tools": [anthropic_tool()]}

    found = lint(tmp_path, [body(turn) for turn in range(3)])
    assert [(finding.cause, finding.parts) for finding in found.findings] == [
        (Cause.TIMESTAMP, ["system[1].text"]),
        (Cause.COUNTER, ["messages[2].content[0].content[0].text"]),
    ]
    assert found.findings[0].first.difference.offset == len("It is 10:0")


def anthropic_tool() -> Body:
    function: dict[str, Any] = TOOLS[1]["function"]
    return {"name": function["name"], "description": "To run.", "input_schema": function["parameters"]}


def test_places_of_responses(tmp_path: Path) -> None:
    def body(turn: int) -> Body:
        items: list[Body] = [{"role": "user", "content": [{"type": "input_text", "text": "Repair the test, please."}]}]
        for number in range(turn + 1):
            arguments = '{"a": 1, "b": 2}' if (turn + number) % 2 else '{"b": 2, "a": 1}'
            items.append({"type": "function_call", "call_id": f"c{number}", "name": "run", "arguments": arguments})
            items.append({"type": "function_call_output", "call_id": f"c{number}", "output": f"passed {number} " * 9})
        return {"model": "m", "instructions": f"Be careful. Step {turn}.", "input": items}

    found = lint(tmp_path, [body(turn) for turn in range(3)])
    assert found.conversations == 1
    assert {(finding.cause, *finding.parts) for finding in found.alarms} == {
        (Cause.COUNTER, "instructions"),
        (Cause.KEY_ORDER, "input[1].arguments", "input[3].arguments"),
    }


def test_places_of_plain_completions(tmp_path: Path) -> None:
    text = "You repair code.\nIt is 10:0{}:00.\nBe careful.\nUser: repair it\n"
    lines = [{"model": "m", "prompt": text.format(i) + "A: I try\nB: failed\n" * (i + 1)} for i in range(3)]
    finding = only(lint(tmp_path, lines))
    assert (finding.cause, finding.parts, finding.first.difference.offset) == (Cause.TIMESTAMP, ["prompt"], 27)


def test_findings_with_the_highest_price_come_first(tmp_path: Path) -> None:
    def change(turn: int, body: Body) -> None:
        put_into(body, 3, f"It is 10:0{turn}.")
        put_into(body, 0, f"step {turn} of 40")

    found = lint(tmp_path, conversation(4, change))
    assert [finding.cause for finding in found.findings] == [Cause.COUNTER, Cause.TIMESTAMP]
    assert all(finding.level is Level.ALARM for finding in found.findings)
