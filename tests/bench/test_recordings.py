"""Tests of the readers of recordings, each on a small file of its format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainstem.bench.recordings import Recording, read_recordings
from mainstem.errors import ConfigError

SYSTEM = {"role": "system", "content": "You are an agent."}
TASK = {"role": "user", "content": "Mend it."}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "1"}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def read_one(path: Path) -> Recording:
    (recording,) = read_recordings([path]).recordings
    return recording


def texts(recording: Recording) -> list[list[Any]]:
    """The prompts of its calls, as texts."""
    return [[message["content"] for message in call.messages] for call in recording.calls]


def test_every_message_of_the_assistant_is_a_call(tmp_path: Path) -> None:
    messages = [SYSTEM, TASK, assistant("a"), tool("b"), assistant("c"), tool("d")]
    recording = read_one(write(tmp_path / "run.json", messages))
    assert [call.reply["content"] for call in recording.calls] == ["a", "c"]
    assert [len(call.messages) for call in recording.calls] == [2, 4]
    assert recording.source == "messages"


def test_a_trajectory_of_swe_agent_is_its_history(tmp_path: Path) -> None:
    history = [SYSTEM, TASK, assistant("a"), tool("b"), assistant("c")]
    steps = [{"execution_time": 0.25}, {"execution_time": 0.5}]
    recording = read_one(write(tmp_path / "run.traj", {"history": history, "trajectory": steps}))
    assert recording.source == "swe-agent"
    assert [call.wait for call in recording.calls] == [0.0, 0.25]


def test_a_history_that_was_edited_on_the_way_is_sent_as_it_was_edited(tmp_path: Path) -> None:
    history = [SYSTEM, TASK, assistant("a"), tool("long"), assistant("c"), tool("e"), assistant("f")]
    edited = [SYSTEM, TASK, assistant("a"), tool("left out"), assistant("c"), tool("e")]
    steps = [{"messages": history[:4]}, {"messages": edited}, {"messages": history}]
    recording = read_one(write(tmp_path / "run.traj", {"history": history, "trajectory": steps}))
    assert texts(recording)[1][3] == "long"
    assert texts(recording)[2][3] == "left out"


def test_tau_bench_has_a_session_for_each_task(tmp_path: Path) -> None:
    task = {"traj": [SYSTEM, TASK, assistant("a"), TASK, assistant("b")]}
    found = read_recordings([write(tmp_path / "airline.json", [task, task])]).recordings
    assert [(recording.source, len(recording.calls)) for recording in found] == [("tau-bench", 2)] * 2
    assert len({recording.name for recording in found}) == 2


def log(messages: list[Any], reply: str, timestamp: float, **more: Any) -> dict[str, Any]:
    answer = {"choices": [{"message": assistant(reply)}]}
    return {"messages": messages, "response": answer, "timestamp": timestamp, "latency_sec": 1.0, "tools": [], **more}


def test_requests_of_openhands_are_put_in_order_and_waits_found(tmp_path: Path) -> None:
    messages = [SYSTEM, TASK]
    write(tmp_path / "logs" / "b.json", log(messages, "a", 10.0))
    write(tmp_path / "logs" / "a.json", log([*messages, assistant("a"), tool("b")], "c", 13.5))
    recording = read_one(tmp_path)
    assert recording.source == "openhands"
    assert [call.reply["content"] for call in recording.calls] == ["a", "c"]
    assert [call.wait for call in recording.calls] == [0.0, 2.5]


def test_requests_that_do_not_follow_each_other_are_sessions_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "1.json", log([SYSTEM, TASK], "a", 10.0))
    write(tmp_path / "2.json", log([SYSTEM, {"role": "user", "content": "Another."}], "b", 20.0))
    assert [len(recording.calls) for recording in read_recordings([tmp_path]).recordings] == [1, 1]


def test_a_model_that_knew_no_tools_said_what_it_wrote(tmp_path: Path) -> None:
    raw = {"choices": [{"message": assistant("<function=ls>") | {"tool_calls": [{}]}}]}
    content = log([SYSTEM, TASK], "", 10.0, raw_messages=[SYSTEM], raw_response=raw, tools=[{"type": "function"}])
    (call,) = read_one(write(tmp_path / "1.json", content)).calls
    assert call.reply == assistant("<function=ls>")
    assert call.tools == ()


def test_a_conversation_told_again_beside_its_logs_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "logs" / "1.json", log([SYSTEM, TASK], "a", 10.0))
    again = write(tmp_path / "message.json", [SYSTEM, TASK, assistant("a")])
    found = read_recordings([tmp_path])
    assert [recording.source for recording in found.recordings] == ["openhands"]
    assert found.skipped == [again]


def pi_entry(role: str, *parts: dict[str, Any], at: float = 0.0, **more: Any) -> dict[str, Any]:
    return {
        "type": "message",
        "timestamp": f"1970-01-01T00:00:{at:06.3f}Z",
        "message": {"role": role, "content": list(parts), "timestamp": at * 1000, **more},
    }


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def write_pi(path: Path, entries: list[Any]) -> Path:
    session = {"type": "session", "cwd": "/", "id": "1"}
    path.write_text("\n".join(json.dumps(entry) for entry in [session, *entries]))
    return path


def test_a_session_of_pi_in_the_form_of_chat_completions(tmp_path: Path) -> None:
    call = {"type": "toolCall", "id": "1", "name": "ls", "arguments": {"path": "."}}
    entries = [
        pi_entry("user", text("Mend it."), at=1),
        pi_entry("assistant", text("I look."), call, at=2),
        pi_entry("toolResult", text("a.py"), toolCallId="1", toolName="ls"),
        {"type": "message", "timestamp": "", "message": {"role": "bashExecution", "command": "pwd", "output": "/"}},
        pi_entry("assistant", at=3),  # stopped before it said anything
        pi_entry("assistant", {"type": "thinking", "thinking": "Hm."}, text("Done."), at=6),
    ]
    recording = read_one(write_pi(tmp_path / "pi.jsonl", entries))
    first, second = recording.calls
    assert first.reply["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"path": "."}'}
    assert [message["role"] for message in second.messages] == ["user", "assistant", "tool", "user"]
    assert "pwd" in second.messages[-1]["content"]
    assert second.reply == {"role": "assistant", "content": "Done.", "reasoning_content": "Hm."}
    assert second.wait == 4.0


def test_a_compaction_puts_a_summary_in_place_of_what_came_before_an_entry(tmp_path: Path) -> None:
    entries = [
        pi_entry("user", text("one")),
        pi_entry("assistant", text("two")),
        pi_entry("user", text("three")),
        {"type": "compaction", "summary": "so far", "firstKeptEntryIndex": 3},
        pi_entry("assistant", text("four")),
    ]
    recording = read_one(write_pi(tmp_path / "pi.jsonl", entries))
    assert texts(recording) == [["one"], ["so far", "three"]]


def test_a_cassette_gives_its_chat_completions(tmp_path: Path) -> None:
    def interaction(uri: str, asked: Any, said: Any) -> dict[str, Any]:
        return {
            "request": {"uri": uri, "body": json.dumps(asked)},
            "response": {"body": {"string": json.dumps(said)}},
        }

    uri = "https://example.org/v1/chat/completions"
    first = {"messages": [SYSTEM, TASK], "tools": [{"type": "function"}]}
    second = {"messages": [SYSTEM, TASK, assistant("a"), tool("b")]}
    content = {
        "interactions": [
            interaction(uri, first, {"choices": [{"message": assistant("a")}]}),
            interaction("https://example.org/v1/traces", {}, {}),
            interaction(uri, second, {"choices": [{"message": assistant("c")}]}),
        ]
    }
    # JSON is YAML.
    recording = read_one(write(tmp_path / "cassette.yaml", content))
    assert [len(call.tools) for call in recording.calls] == [1, 0]
    assert [call.reply["content"] for call in recording.calls] == ["a", "c"]


def test_files_that_hold_no_conversation_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "state.json", {"id": 1})
    assert read_recordings([tmp_path]) == ([], [path])


def test_a_path_that_is_not_there_and_a_file_that_is_not_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no recording at"):
        read_recordings([tmp_path / "none.json"])
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_recordings([broken])


def test_a_line_that_is_no_json_is_told_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "pi.jsonl"
    path.write_text('{"type": "session"}\n\n{no}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"pi\.jsonl:3 is not JSON: .*, at character 2$"):
        read_recordings([path])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.json", "[" * 100_000),
        ("cassette.yaml", "interactions: [{request: 5}]"),
        ("task.json", '[{"traj": 5}]'),
    ],
)
def test_a_file_that_only_looks_like_a_recording_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        read_recordings([tmp_path / name])
