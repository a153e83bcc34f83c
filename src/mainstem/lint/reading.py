"""Reads files of requests: JSON lines of bodies, logs that wrap them, and recordings of agents.

Of a line, the body is the object that has messages, an input or a prompt, whether it is the whole line or stands under
`body`, `request` and the like; the reply is looked for beside it. What `mainstem.bench.recordings` reads is read too.
Images, hosted tools and other things that are no text count as a short stand-in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mainstem.bench.recordings import Recording, files_of, json_body, load, read_recordings
from mainstem.diagnosis import MessagePart, Prompt, prompt_of_body, reply_of_response, with_stand_ins
from mainstem.errors import ConfigError, InvalidRequest
from mainstem.lint.conversations import Conversation, Place, Request, group
from mainstem.wording import json_fault

STANDARD_INPUT = Path("-")
_BODY_KEYS = ("body", "request", "request_body", "kwargs", "params", "data", "json", "input_data")
_REPLY_KEYS = ("response", "reply", "response_body", "completion", "message")
_ENDPOINTS = ("/chat/completions", "/responses", "/messages", "/completions")
_LOOKED_AT = 20  # values of a file, to see whether there are requests in it


class ReadResult(NamedTuple):
    """Conversations, and files and lines in which there are no requests."""

    conversations: list[Conversation]
    skipped: list[str]


def read(paths: Iterable[Path]) -> ReadResult:
    """Read files, and all that is in folders.

    Raises:
        ConfigError: when there is no such file, or something in one is wrong; the message says in which line.
    """
    conversations: list[Conversation] = []
    skipped: list[str] = []
    recorded: list[Path] = []
    for path in _files(paths):
        values = _values(path)
        if values is None:
            recorded.append(path)
            continue
        requests = list(_requests(values, skipped))
        conversations += group(requests)
    for paths in _apart(recorded):
        found = read_recordings(paths)
        skipped += map(str, found.skipped)
        conversations += _recorded(found.recordings, paths)
    return ReadResult(conversations, skipped)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        yield from [path] if path == STANDARD_INPUT else files_of([path], missing="there is no file")


def _apart(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Files by themselves, so that what is read has their names; JSON together: some recordings take several."""
    together = [path for path in paths if path.suffix == ".json"]
    yield from ([path] for path in paths if path.suffix != ".json")
    if together:
        yield together


# -- bodies ------------------------------------------------------------------------------------------------------------


def _values(path: Path) -> list[tuple[Place, Any]] | None:
    """The logged values of a file of requests, with their places; None for other files."""
    if path == STANDARD_INPUT:
        return [(Place("standard input", number, True), value) for number, value in _lines(path)]
    if path.suffix == ".yaml":
        values = _of_cassette(path)
    elif path.suffix == ".json":
        content = load(path)
        values = list(enumerate(content if isinstance(content, list) else (), 1))
    elif path.suffix in (".jsonl", ".ndjson"):
        values = _lines(path)
        if values and all(isinstance(value, Mapping) and "role" in value for _, value in values):
            return None  # one conversation, message by message
    else:
        return None
    if not any(_body_of(value) is not None for _, value in values[:_LOOKED_AT]):
        return None
    is_line = path.suffix in (".jsonl", ".ndjson")
    return [(Place(str(path), number, is_line), value) for number, value in values]


def _lines(path: Path) -> list[tuple[int, Any]]:
    try:
        text = sys.stdin.read() if path == STANDARD_INPUT else path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    name = "standard input, line " if path == STANDARD_INPUT else f"{path}:"
    return [(i, _parsed(f"{name}{i}", line)) for i, line in enumerate(text.split("\n"), 1) if line.strip()]


def _of_cassette(path: Path) -> list[tuple[int, Any]]:
    """Requests and answers in recorded HTTP."""
    content = load(path)
    interactions = content.get("interactions") if isinstance(content, Mapping) else None
    if not isinstance(interactions, list):
        return []
    try:
        return [
            (number, {"request": json_body(one["request"]), "response": json_body(one["response"])})
            for number, one in enumerate(interactions, 1)
            if str(one["request"].get("uri")).partition("?")[0].endswith(_ENDPOINTS)
        ]
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} looks like recorded HTTP, but cannot be read") from None


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON: {json_fault(error)}") from None


def _body_of(value: Any, depth: int = 3) -> Mapping[str, Any] | None:
    """The request's body in a logged value; None if there is none."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, list) and value and all(isinstance(m, Mapping) and "role" in m for m in value):
        return {"messages": value}
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("messages"), list) or isinstance(value.get("prompt"), str):
        return value
    if isinstance(value.get("input"), str | list) and "output" not in value:
        return value
    inner = (_body_of(value[key], depth - 1) for key in _BODY_KEYS if key in value and depth)
    return next((body for body in inner if body is not None), None)


def _response_of(value: Any) -> Any:
    """The body of the response in a logged value; None if there is none."""
    if not isinstance(value, Mapping):
        return None
    for key in _REPLY_KEYS:
        response = value.get(key)
        if isinstance(response, Mapping):
            inner = response.get("body", response)
            return inner if isinstance(inner, Mapping) else response
    return None


def _requests(values: Sequence[tuple[Place, Any]], skipped: list[str]) -> Iterator[Request]:
    stored: dict[str, Prompt] = {}  # of Responses, by id
    texts: dict[str, str] = {}
    for place, value in values:
        body = _body_of(value)
        if body is None:
            skipped.append(str(place))
            continue
        response = _response_of(value)
        try:
            prompt = prompt_of_body(with_stand_ins(body))
            reply = _reply(response)
        except InvalidRequest as error:
            raise ConfigError(f"{place}: {error}") from None
        if (earlier := stored.get(str(body.get("previous_response_id")))) is not None:
            prompt = replace(prompt, messages=_gone_on(earlier, prompt))
        request = Request(place, _interned(prompt, texts), reply)
        if isinstance(response, Mapping) and isinstance(response.get("id"), str):
            stored[response["id"]] = request.answered
        yield request


def _reply(response: Any) -> MessagePart | None:
    """The reply in a response's body, or a message of the model's itself."""
    if not isinstance(response, Mapping):
        return None
    if "content" in response and isinstance(response.get("content"), list | str):
        (said,) = with_stand_ins({"messages": [{**response, "role": "assistant"}]})["messages"]
        return reply_of_response(said)
    if isinstance(response.get("output"), list):
        return reply_of_response({"output": with_stand_ins({"input": response["output"]})["input"]})
    return reply_of_response(response)


def _gone_on(earlier: Prompt, prompt: Prompt) -> tuple[MessagePart, ...]:
    """The messages of a request that goes on from a stored response: instructions are not stored."""
    own = prompt.messages[: prompt.num_system]
    return (*own, *earlier.messages[earlier.num_system :], *prompt.messages[prompt.num_system :])


def _interned(prompt: Prompt, texts: dict[str, str]) -> Prompt:
    """The prompt with texts that are kept once, however many requests send them again."""
    messages = tuple(
        replace(
            message,
            fields=tuple(field._replace(text=texts.setdefault(field.text, field.text)) for field in message.fields),
        )
        for message in prompt.messages
    )
    return replace(prompt, messages=messages)


# -- recordings --------------------------------------------------------------------------------------------------------


def _recorded(recordings: Sequence[Recording], paths: Sequence[Path]) -> Iterator[Conversation]:
    named: dict[str, set[str]] = {}
    for path in paths:
        named.setdefault(path.name, set()).add(str(path))
        named.setdefault(path.parent.name, set()).add(str(path.parent))  # of a folder of logs
    for recording in recordings:
        name, _, number = recording.name.partition("#")
        known = named.get(name, set())
        file = (min(known) if len(known) == 1 else name) + (f", conversation {number}" if number else "")
        requests = list(_of_recording(recording, file))
        if recording.source == "openhands":  # sorted into sessions by equal beginnings, which hides what broke them
            yield from group(requests)
        else:
            yield Conversation(requests)


def _of_recording(recording: Recording, file: str) -> Iterator[Request]:
    texts: dict[str, str] = {}
    for number, call in enumerate(recording.calls, 1):
        place = Place(file, number, is_line=False)
        try:
            body = {"messages": list(call.messages), "tools": list(call.tools)}
            prompt = prompt_of_body(with_stand_ins(body))
            reply = _reply(dict(call.reply))
        except InvalidRequest as error:
            raise ConfigError(f"{place}: {error}") from None
        yield Request(place, _interned(prompt, texts), reply)
