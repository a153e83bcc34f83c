"""Reads recordings of real agents: which messages went to a model at each turn, and what it answered.

Formats, told apart by what a file says and not by its name:

- SWE-agent trajectories (`.traj`): the history of an agent. Where it was edited on the way (old outputs left out) and
  the file says what each step's messages were, those are the prompts; where it does not, the unedited history is.
- tau-bench results: a list of conversations between a customer and an airline's agent.
- OpenHands request logs: one file per request, with the messages as sent, the tools and the answer. Where the model
  knew no tools, the answer is what it wrote, before the agent read tool calls out of it. Lists of messages beside the
  folders with the logs tell the same conversations again and are left out.
- pi sessions (`.jsonl`): the entries of a conversation, with compactions, at which the history up to an entry gives way
  to a summary. System prompt and tools are not recorded, so they are not in the prompts. Answers that were stopped
  before they said anything are left out. A command that the user ran himself is a user message.
- VCR cassettes (`.yaml`): recorded HTTP; requests of OpenAI chat completions whose answer is a JSON object are taken,
  everything else is not.
- plain lists of messages (mini-swe-agent), or an object with such a list under `messages`.

It knows nothing of tokens, templates and models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from mainstem.errors import ConfigError
from mainstem.wording import json_fault

Message: TypeAlias = Mapping[str, Any]
SUFFIXES = (".traj", ".json", ".jsonl", ".yaml")


class RecordedCall(NamedTuple):
    """One request to a model.

    Attributes:
        messages: the prompt, in the form of OpenAI chat completions.
        tools: tool definitions that went with it; empty where none did or none were recorded.
        reply: the assistant's message.
        wait: seconds from the end of the reply before to this request; 0 where the recording does not say.
    """

    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    reply: Message
    wait: float


class Recording(NamedTuple):
    """One session of an agent.

    Attributes:
        source: which agent it was.
        name: the file, and the number of the session in it where there are several.
        calls: in the order in which they were made; never empty.
    """

    source: str
    name: str
    calls: tuple[RecordedCall, ...]


class ReadResult(NamedTuple):
    """Recordings, and the files that hold none."""

    recordings: list[Recording]
    skipped: list[Path]


class _Request(NamedTuple):
    """A call of which it is not known yet which session it belongs to, and when it began and ended."""

    call: RecordedCall
    began: float
    ended: float


def read_recordings(paths: Iterable[Path]) -> ReadResult:
    """Read files, and folders with all that is under them, in the order of their names.

    Raises:
        ConfigError: when a path does not exist, or a file cannot be read.
    """
    logs: dict[Path, list[_Request]] = {}
    found: dict[Path, list[Recording]] = {}
    for path in files_of(paths, missing="there is no recording at"):
        content = load(path)
        request = _openhands_request(content)
        if request is not None:
            logs.setdefault(path.parent, []).append(request)
        else:
            found[path] = _sessions_of(content, path)
    retold = {folder.parent for folder in logs}
    for path, recordings in found.items():
        if path.parent in retold:
            recordings.clear()
    for folder, requests in logs.items():
        found[folder] = _group("openhands", folder.name, sorted(requests, key=lambda request: request.began))
    recordings = [recording for path in sorted(found) for recording in found[path]]
    return ReadResult(recordings, [path for path in found if not found[path]])


def files_of(paths: Iterable[Path], *, missing: str) -> Iterator[Path]:
    """The files that are named, and those with a suffix of `SUFFIXES` below the folders that are named.

    Raises:
        ConfigError: when there is nothing at a path; `missing` begins the sentence that ends with it.
    """
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        elif path.is_file():
            yield path
        else:
            raise ConfigError(f"{missing} {path}")


def load(path: Path) -> Any:
    """What a file says, whatever its format: of JSON lines, a list.

    Raises:
        ConfigError: when it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            return [_parsed(path, number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if path.suffix == ".yaml":
            import yaml  # only cassettes need it

            return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return json.loads(text)
    except RecursionError:
        raise ConfigError(f"{path} cannot be read: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{number} is not JSON: {json_fault(error)}") from None


def _sessions_of(content: Any, path: Path) -> list[Recording]:
    """What a file holds, by the first reader that recognises it."""
    try:
        return next((found for reader in _READERS if (found := reader(content, path.name))), [])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path} looks like a recording, but cannot be read: {_what(error)}") from None


def _what(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


# -- one reader per format --------------------------------------------------------------------------------------------


def _swe_agent(content: Any, name: str) -> list[Recording]:
    if not isinstance(content, dict) or not isinstance(content.get("history"), list):
        return []
    steps = content.get("trajectory") or []
    calls = list(_calls_of(content["history"]))
    # What a step's messages were after it is what the next one was asked with.
    recorded = [step.get("messages") for step in steps]
    for index, (call, step, messages) in enumerate(zip(calls[1:], steps, recorded, strict=False), 1):
        kept = tuple(messages) if messages else call.messages
        calls[index] = call._replace(messages=kept, wait=float(step.get("execution_time") or 0.0))
    return _recordings("swe-agent", name, [calls])


def _tau_bench(content: Any, name: str) -> list[Recording]:
    if not isinstance(content, list) or not all(isinstance(task, dict) and "traj" in task for task in content):
        return []
    return _recordings("tau-bench", name, [_calls_of(task["traj"]) for task in content])


def _pi(content: Any, name: str) -> list[Recording]:
    if not isinstance(content, list) or not content or not isinstance(content[0], dict):
        return []
    if content[0].get("type") != "session" or "cwd" not in content[0]:
        return []
    return _recordings("pi", name, [_pi_calls(content)])


def _pi_calls(entries: Sequence[Message]) -> Iterator[RecordedCall]:
    said: list[tuple[int, Message]] = []  # the history as it is sent, with the entry that each message came from
    ended: float | None = None
    for index, entry in enumerate(entries):
        if entry["type"] == "compaction":
            summary = {"role": "user", "content": entry["summary"]}
            said = [(-1, summary), *((i, m) for i, m in said if i >= entry["firstKeptEntryIndex"])]
        if entry["type"] != "message":
            continue
        message = _pi_message(entry["message"])
        if message["role"] == "assistant":
            if not message["content"] and not message.get("tool_calls"):
                continue
            began = entry["message"]["timestamp"] / 1000
            wait = 0.0 if ended is None else max(0.0, began - ended)
            yield RecordedCall(tuple(m for _, m in said), (), message, wait)
            ended = datetime.fromisoformat(entry["timestamp"]).timestamp()
        said.append((index, message))


def _pi_message(message: Message) -> Message:
    """One of pi's messages in the form of OpenAI chat completions."""
    if message["role"] == "bashExecution":
        return {"role": "user", "content": f"I ran this command:\n{message['command']}\n{message['output']}"}
    parts = message["content"]
    if isinstance(parts, str):
        parts = [{"type": "text", "text": parts}]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if message["role"] == "toolResult":
        return {
            "role": "tool",
            "tool_call_id": message["toolCallId"],
            "name": message["toolName"],
            "content": text,
        }
    plain: dict[str, Any] = {"role": message["role"], "content": text}
    thoughts = "\n".join(part["thinking"] for part in parts if part["type"] == "thinking")
    tool_calls = [
        _tool_call(part["id"], part["name"], part["arguments"]) for part in parts if part["type"] == "toolCall"
    ]
    return (
        plain
        | ({"reasoning_content": thoughts} if thoughts else {})
        | ({"tool_calls": tool_calls} if tool_calls else {})
    )


def _tool_call(call_id: str, name: str, arguments: Any) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _openhands_request(content: Any) -> _Request | None:
    if not isinstance(content, dict) or not {"messages", "response", "timestamp", "latency_sec"} <= content.keys():
        return None
    # With raw messages the agent wrote the tools into the prompt itself, and read the calls out of the answer.
    wrote_tools = "raw_messages" in content
    answer = content["raw_response" if wrote_tools else "response"]["choices"][0]["message"]
    if wrote_tools:
        answer = {"role": "assistant", "content": answer["content"]}
    tools = () if wrote_tools else tuple(content.get("tools") or ())
    ended = float(content["timestamp"])
    call = RecordedCall(tuple(content["messages"]), tools, answer, 0.0)
    return _Request(call, ended - float(content["latency_sec"]), ended)


def _cassette(content: Any, name: str) -> list[Recording]:
    if not isinstance(content, dict) or not isinstance(content.get("interactions"), list):
        return []
    requests: list[_Request] = []
    for interaction in content["interactions"]:
        request, response = interaction["request"], interaction["response"]
        asked = json_body(request)
        said = json_body(response)
        if "/chat/completions" in request.get("uri", "") and asked and said and said.get("choices"):
            reply = said["choices"][0]["message"]
            call = RecordedCall(tuple(asked["messages"]), tuple(asked.get("tools") or ()), reply, 0.0)
            requests.append(_Request(call, 0.0, 0.0))
    return _group("cassettes", name, requests)


def json_body(half: Message) -> dict[str, Any] | None:
    """The JSON object in a recorded request or response, None where there is something else."""
    body = half.get("parsed_body") or half.get("body")
    if isinstance(body, dict) and set(body) <= {"string", "base64_string"}:
        body = body.get("string")
    if isinstance(body, str | bytes):
        try:
            body = json.loads(body)
        except ValueError:
            return None
    return body if isinstance(body, dict) else None


def _messages(content: Any, name: str) -> list[Recording]:
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        return []
    return _recordings("messages", name, [_calls_of(messages)])


_Reader: TypeAlias = Callable[[Any, str], list[Recording]]
_READERS: tuple[_Reader, ...] = (_swe_agent, _tau_bench, _pi, _cassette, _messages)


# -- what they share --------------------------------------------------------------------------------------------------


def _calls_of(messages: Sequence[Message]) -> Iterator[RecordedCall]:
    """One call for each message of the assistant, with all messages before it as its prompt."""
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and index > 0:
            yield RecordedCall(tuple(messages[:index]), (), message, 0.0)


def _recordings(source: str, name: str, sessions: Iterable[Iterable[RecordedCall]]) -> list[Recording]:
    kept = [calls for session in sessions if (calls := tuple(session))]
    if len(kept) == 1:
        return [Recording(source, name, kept[0])]
    return [Recording(source, f"{name}#{number}", calls) for number, calls in enumerate(kept)]


def _group(source: str, name: str, requests: Sequence[_Request]) -> list[Recording]:
    """Sort requests into sessions: one goes on with a session whose latest request has its first messages."""
    sessions: list[list[_Request]] = []
    for request in requests:
        messages = request.call.messages
        before = [s for s in sessions if messages[: len(s[-1].call.messages)] == s[-1].call.messages]
        if before:
            session = max(before, key=lambda s: len(s[-1].call.messages))
            wait = max(0.0, request.began - session[-1].ended)
            session.append(request._replace(call=request.call._replace(wait=wait)))
        else:
            sessions.append([request])
    return _recordings(source, name, [[request.call for request in session] for session in sessions])
