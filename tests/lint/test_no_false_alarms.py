"""What is no fault raises no alarm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.lint import Level, LintResult, Scope
from tests.lint.logs import TOOLS, Body, conversation, lint, messages, tool


def quiet(result: LintResult) -> None:
    assert not result.alarms, result.alarms
    assert result.share == 1.0


def test_constants_that_look_like_what_changes(tmp_path: Path) -> None:
    result = lint(tmp_path, conversation(6))
    quiet(result)
    assert (result.conversations, result.compared, result.findings) == (1, 5, [])


def test_a_date_that_is_stable_for_the_day(tmp_path: Path) -> None:
    def change(turn: int, body: Body) -> None:
        body["messages"][0]["content"] += f"\nToday is {'2026-11-30' if turn < 6 else '2026-12-01'}."

    result = lint(tmp_path, conversation(9, change))
    quiet(result)
    assert [(finding.level, finding.cause) for finding in result.findings] == [(Level.NOTE, "date")]


def test_a_date_that_is_not_stable_for_the_day(tmp_path: Path) -> None:
    result = lint(
        tmp_path,
        conversation(5, lambda turn, body: body["messages"][0].update(content=f"On 2026-11-{turn + 10}. Be careful.")),
    )
    assert [(finding.level, finding.cause) for finding in result.findings] == [(Level.ALARM, "date")]


def test_conversations_of_different_days(tmp_path: Path) -> None:
    bodies = []
    for day in range(10, 14):
        (body,) = conversation(1)
        body["messages"][0]["content"] += f"\nToday is 2026-11-{day}."
        body["messages"][1]["content"] = f"Another task: {'abcdefgh'[day - 10] * 40}"
        bodies.append(body)
    quiet(lint(tmp_path, bodies))


def test_a_history_that_is_shortened_seldom(tmp_path: Path) -> None:
    def change(turn: int, body: Body) -> None:
        if turn >= 10:
            body["messages"][2:18] = [
                {"role": "user", "content": "Summary: eight cases were tried, all of them passed."}
            ]

    result = lint(tmp_path, conversation(18, change))
    assert not result.alarms
    assert [(finding.cause, len(finding.occurrences)) for finding in result.findings] == [("history_elided", 1)]
    assert result.share < 1  # that it is done seldom does not make it free


def test_a_clock_that_is_only_in_the_newest_message(tmp_path: Path) -> None:
    def change(turn: int, body: Body) -> None:
        body["messages"].append({"role": "user", "content": f"<env>It is 10:0{turn}:00, cwd /tmp/x{turn}</env>"})

    result = lint(tmp_path, conversation(5, change))
    quiet(result)


def test_cache_markers_that_move_along(tmp_path: Path) -> None:
    def change(_: int, body: Body) -> None:
        last = body["messages"][-1]
        last["content"] = [{"type": "text", "text": last["content"], "cache_control": {"type": "ephemeral"}}]

    quiet(lint(tmp_path, conversation(4, change)))


@pytest.mark.parametrize("part", [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": "a"}}])
def test_markers_that_only_another_server_takes(tmp_path: Path, part: Body) -> None:
    def change(turn: int, body: Body) -> None:
        mark = {"cache_control": {"type": "ephemeral", "ttl": "2h"}} if turn % 2 else {}
        body["messages"][1]["content"] = [{**part, **mark}]

    quiet(lint(tmp_path, conversation(4, change)))


def test_no_text_and_an_empty_one(tmp_path: Path) -> None:
    def change(turn: int, body: Body) -> None:
        for message in body["messages"][2::2]:
            message["content"] = None if turn % 2 else ""

    quiet(lint(tmp_path, conversation(4, change)))


def task(words: str, *more: Body) -> Body:
    text = f"Solve this issue, step by step, and stop when all tests of the repository pass: {words}"
    return {"messages": [messages(0)[0], {"role": "user", "content": text}, *more], "tools": TOOLS}


FIRST_WORDS = {"role": "assistant", "content": "I will look at the files first."}
LISTED = {"role": "tool", "tool_call_id": "c", "content": "README.md\nsetup.py\ntests\n"}


def test_different_tasks_from_one_template(tmp_path: Path) -> None:
    tasks = ["the parser drops a comma", "the cache is never cleared", "issue 12 of 40", "issue 13 of 40"]
    quiet(lint(tmp_path, [task(words) for words in tasks]))


def test_whole_conversations_one_a_line(tmp_path: Path) -> None:
    tasks = ["the parser drops a comma", "the cache is never cleared"]
    lines = [task(words, FIRST_WORDS, LISTED, {"role": "user", "content": "Go on."}) for words in tasks]
    result = lint(tmp_path, lines)
    quiet(result)
    assert result.conversations == 2


@pytest.mark.parametrize(
    "replies", [("Number 5 it is.", "Number 7 it is."), ("I read a.py.", "I would rather run it.")]
)
def test_several_replies_to_one_question(tmp_path: Path, replies: tuple[str, str]) -> None:
    asked = task("the parser drops a comma")
    go_on = {"role": "user", "content": "Go on."}
    lines = [asked, asked]
    for reply in replies:
        said = [*asked["messages"], {"role": "assistant", "content": reply}, LISTED, go_on]
        lines.append({**asked, "messages": said})
    quiet(lint(tmp_path, lines))
    quiet(lint(tmp_path, lines[1:]))  # one question, from which two branches go on


def test_one_question_for_two_models_or_with_other_tools(tmp_path: Path) -> None:
    asked = task("the parser drops a comma")
    quiet(lint(tmp_path, [{**asked, "model": "a"}, {**asked, "model": "b"}]))
    quiet(lint(tmp_path, [asked, {**asked, "tools": [tool("answer")]}]))


def test_requests_beside_the_conversation(tmp_path: Path) -> None:
    """Titles, summaries, checks: another prompt in between, often over the same first question."""
    bodies: list[Body] = []
    for body in conversation(4):
        said = [{"role": "system", "content": "You give titles."}, *body["messages"][1:2]]
        bodies += [body, {"model": "m", "messages": said}]
    quiet(lint(tmp_path, bodies))


def test_text_put_after_the_end(tmp_path: Path) -> None:
    quiet(lint(tmp_path, [{"prompt": "Once upon a time\n" + "and then it rained\n" * i} for i in range(1, 5)]))
    asked = task("the parser drops a comma")
    longer = task("the parser drops a comma, at 10:30, in /tmp/a")
    quiet(lint(tmp_path, [asked, longer]))


def test_a_reply_that_the_client_cut_or_continued(tmp_path: Path) -> None:
    asked = task("the parser drops a comma")
    for sent in ("Action: ls", "Action: ls\nObservation: README.md\nAction: cat\nObservation: none"):
        later = {**asked, "messages": [*asked["messages"], {"role": "assistant", "content": sent}]}
        reply = {"role": "assistant", "content": "Action: ls\nObservation: README.md"}
        quiet(lint(tmp_path, [{"request": asked, "response": reply}, {"request": later}]))


# -- any conversations that only grow ----------------------------------------------------------------------------------

TEXTS = st.sampled_from(
    [
        "Go on.",
        "It is 10:0{n}.",
        "cwd /tmp/x{n}",
        "a.py\nb{n}.py\n",
        '{{"a": {n}, "b": 1}}',
        "step {n} of 9",
        "",
        "ok  ok",
    ]
)


@st.composite
def grown(draw: st.DrawFn) -> list[Body]:
    """Requests of several agents at once, each of which only appends; their replies are their own."""
    agents = draw(st.integers(1, 4))
    shared = draw(st.sampled_from(["You help. Policy of 2024-05-01.", "You are agent 7, at 10:00, in /tmp/x."]))
    histories: list[list[Body]] = []
    for agent in range(agents):
        question = draw(st.sampled_from(["Repair the test.", f"Task {agent} of 9: write a poem."]))
        histories.append([{"role": "system", "content": shared}, {"role": "user", "content": question}])
    sent: list[Body] = [request(history, None) for history in histories]
    for number in range(draw(st.integers(0, 8))):
        agent = draw(st.integers(0, agents - 1))
        name = ["Ann", "Bob", "Cid", "Dan"][agent]
        reply: Body = {"role": "assistant", "content": f"{name} says: " + draw(TEXTS).format(n=number)}
        if draw(st.booleans()):
            function = {"name": "run", "arguments": json.dumps({"x": number, "by": name})}
            reply["tool_calls"] = [{"id": f"c{number}", "type": "function", "function": function}]
        if draw(st.booleans()) and is_last(sent, histories[agent]):
            sent[-1] = with_reply(sent[-1], reply)
        role = draw(st.sampled_from(["tool", "user"]))
        histories[agent] += [reply, {"role": role, "content": draw(TEXTS).format(n=0)}]
        sent.append(request(histories[agent], draw(st.sampled_from([None, "id"]))))
    return sent


def request(history: list[Body], field: str | None) -> Body:
    """A log entry of a request; fields that say nothing to the model may differ."""
    body: dict[str, Any] = {"model": "m", "messages": list(history), "tools": TOOLS}
    return {"request": body | ({"metadata": {"id": str(len(history))}} if field else {})}


def with_reply(entry: Body, reply: Body) -> Body:
    return {**entry, "response": {"choices": [{"message": reply}]}}


def is_last(sent: list[Body], history: list[Body]) -> bool:
    return bool(sent[-1]["request"]["messages"] == history)


@given(grown())
@settings(max_examples=150, deadline=None)
def test_conversations_that_only_grow_raise_no_alarm(sent: list[Body]) -> None:
    with TemporaryDirectory() as folder:
        result = lint(Path(folder), sent)
    assert not [finding for finding in result.findings if finding.scope is Scope.TURNS], result.findings
    quiet(result)


def test_the_same_conversations_with_a_clock_do(tmp_path: Path) -> None:
    """So that the property is not empty: the least change of such a log raises one."""
    clocks: Iterator[int] = iter(range(9))

    def change(_: int, body: Body) -> None:
        body["messages"][0]["content"] += f" It is 10:0{next(clocks)}."

    assert lint(tmp_path, conversation(3, change)).alarms
