"""Which requests are in files of all kinds, and what is said of those that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainstem.errors import ConfigError
from mainstem.lint import Request, read
from tests.lint.logs import Body, conversation, step, write

ASKED: Body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = {"role": "assistant", "content": "hello"}


def requests(*paths: Path) -> list[Request]:
    return [request for conversation in read(paths).conversations for request in conversation.requests]


@pytest.mark.parametrize(
    "line",
    [
        ASKED,
        {"body": ASKED, "custom_id": "1", "method": "POST", "url": "/v1/chat/completions"},
        {"request": {"body": ASKED}},
        {"request": json.dumps(ASKED)},
        {"kwargs": ASKED, "time": 1.5},
        ASKED["messages"],
        {"model": "m", "input": "hi"},
        {"model": "m", "system": "", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"prompt": "hi"},
    ],
)
def test_bodies_and_what_logs_wrap_them_in(tmp_path: Path, line: Any) -> None:
    (request,) = requests(write(tmp_path, [line]))
    assert request.prompt.messages[-1].text() == "hi"
    assert str(request.place) == f"{tmp_path / 'requests.jsonl'}:1"


@pytest.mark.parametrize(
    "response",
    [
        {"id": "x", "choices": [{"message": ANSWER}]},
        {"status_code": 200, "body": {"choices": [{"message": ANSWER}]}},
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "hello"}]},
        {"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}]},
        ANSWER,
    ],
)
def test_the_reply_beside_it(tmp_path: Path, response: Body) -> None:
    (request,) = requests(write(tmp_path, [{"request": ASKED, "response": response}]))
    assert request.reply is not None
    assert request.reply.text() == "hello"


def test_blank_lines_count_as_lines(tmp_path: Path) -> None:
    path = write(tmp_path, [ASKED])
    path.write_text("\n\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert [str(request.place) for request in requests(path)] == [f"{path}:3"]


def test_lines_without_a_request_are_named(tmp_path: Path) -> None:
    found = read([write(tmp_path, [ASKED, {"event": "start"}, ASKED])])
    assert found.skipped == [f"{tmp_path / 'requests.jsonl'}:2"]


def test_a_list_of_bodies_as_json(tmp_path: Path) -> None:
    path = tmp_path / "requests.json"
    path.write_text(json.dumps(conversation(3)), encoding="utf-8")
    assert [str(request.place) for request in requests(path)] == [f"{path}, request {i}" for i in (1, 2, 3)]


@pytest.mark.parametrize("name", ["said.json", "said.jsonl"])
def test_a_recorded_conversation(tmp_path: Path, name: str) -> None:
    said = [*ASKED["messages"], *step(0), *step(1)]
    path = tmp_path / name
    lines = "\n".join(map(json.dumps, said))
    path.write_text(json.dumps({"messages": said}) if name.endswith(".json") else lines, encoding="utf-8")
    (found,) = read([path]).conversations
    assert [len(request.prompt.messages) for request in found.requests] == [1, 3]
    assert str(found.requests[1].place) == f"{path}, request 2"


def test_a_response_that_goes_on_from_a_stored_one(tmp_path: Path) -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}
    first = {"request": {"input": "hi", "instructions": "Be kind."}, "response": {"id": "r1", "output": [said]}}
    second = {"request": {"input": "and now?", "instructions": "Be kind.", "previous_response_id": "r1"}}
    (found,) = read([write(tmp_path, [first, second])]).conversations
    texts = [message.text() for message in found.latest.prompt.messages]
    assert texts == ["Be kind.", "hi", "hello", "and now?"]


def test_what_is_no_text_is_told_apart(tmp_path: Path) -> None:
    def seeing(data: str) -> Body:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        hosted = {"type": "web_search", "search_context_size": "low"}
        return {
            "messages": [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}],
            "tools": [hosted],
        }

    first, second, other = (request.prompt for request in requests(write(tmp_path, list(map(seeing, "AAB")))))
    assert first.messages[0].content == second.messages[0].content != other.messages[0].content
    assert first.tools[0].name == "web_search"


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (['{"messages": [{"role": "user", "content": "hi"}]}', "{"], "requests.jsonl:2 is not JSON"),
        (['{"messages": [{"role": "poet", "content": "hi"}]}'], "requests.jsonl:1: messages[0].role must be one of"),
        (['{"messages": [{"role": "user", "content": 5}]}'], "requests.jsonl:1: messages[0].content must be a string"),
        (['{"messages": ["hi"]}'], "requests.jsonl:1: messages must be a list of objects"),
        (['{"messages": []}'], "requests.jsonl:1: messages must be a list of at least one"),
        (['{"role": "user", "content": "hi"}', "{"], "requests.jsonl:2 is not JSON: Expecting property name"),
        (["[" * 100_000], "requests.jsonl:1 is nested too deeply"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, lines: list[str], complaint: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        read([path])
    assert complaint in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        read([tmp_path / "none.jsonl"])
