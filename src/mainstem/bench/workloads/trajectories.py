"""Real recordings of agents as workloads, turn by turn, in the tokens of a model.

Every request of a recording is one call. Its prompt is what the model's chat template makes of the messages before it,
and its recorded reply is the assistant's message as the template writes it, up to and with the token that ends the
turn, which is where a model stops. A prompt extends the one before only if its tokens really begin with that prompt and
reply; an edited history, a template that writes the past differently once there is more of it, or text that is cut
into other tokens where a reply begins, make it a prompt of its own, and the cache finds what is left in common.

Tools go to the template as they would in the server: a ChatML model whose template ignores tools gets the built-in
template, which writes definitions, calls and results as JSON in `<tools>`, `<tool_call>` and `<tool_response>` tags.
Where any other template leaves calls or results out, or refuses them, they become text in the same tags: definitions
at the end of the system message, calls at the end of the assistant's, results in messages of the user. Lists of content
parts become their texts, line by line. A session that the template refuses even so is left out and named.

A text is cut after every token that ends a turn, and each different piece is tokenised once. That this gives the tokens
of whole prompts is checked on the last prompt of every session; a session where it does not is tokenised whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from mainstem.bench.recordings import Message, RecordedCall, Recording
from mainstem.bench.workload import Call, Workload
from mainstem.errors import InvalidRequest
from mainstem.model import Progress, no_progress
from mainstem.tokens import TokenArray, Tokenizer
from mainstem.tree import common_length

_NO_TOKENS: TokenArray = np.empty(0, np.int32)


class Turn(NamedTuple):
    """One call of a session, in tokens; `extends`, `appended`, `reply` and `wait` are those of `Call`.

    Attributes:
        prompt_tokens: length of the whole prompt.
    """

    extends: bool
    appended: TokenArray
    reply: TokenArray
    wait: float
    prompt_tokens: int


class Session(NamedTuple):
    """A recording in the tokens of a model."""

    source: str
    name: str
    turns: tuple[Turn, ...]


class Refusal(NamedTuple):
    """A recording that cannot be put into tokens, and why."""

    name: str
    reason: str


class TokenizeResult(NamedTuple):
    """Sessions in the order of their recordings, and the recordings that gave none."""

    sessions: list[Session]
    refusals: list[Refusal]


class WorkloadResult(NamedTuple):
    """A workload, and how many recorded turns did not fit the context."""

    workload: Workload
    turns_left_out: int


def tokenize(
    recordings: Sequence[Recording], tokenizer: Tokenizer, *, progress: Progress = no_progress
) -> TokenizeResult:
    """Render recordings with the model's chat template, and put them into its tokens.

    Args:
        recordings: as read.
        tokenizer: of the model.
        progress: told how many turns of all are done.
    """
    writer = _Writer(tokenizer)
    total = sum(len(recording.calls) for recording in recordings)
    done = 0
    sessions: list[Session] = []
    refusals: list[Refusal] = []
    for recording in recordings:
        turns: list[Turn] = []
        try:
            for turn in _turns(recording.calls, writer):
                turns.append(turn)
                progress("tokenising", done + len(turns), total)
            sessions.append(Session(recording.source, recording.name, tuple(turns)))
        except InvalidRequest as error:
            refusals.append(Refusal(recording.name, str(error)))
        done += len(recording.calls)
    return TokenizeResult(sessions, refusals)


def trajectories(
    sessions: Sequence[Session],
    vocab_size: int,
    *,
    max_len: int | None = None,
    concurrency: int = 1,
    waits: bool = False,
) -> WorkloadResult:
    """Replay sessions, several at a time.

    Sessions are dealt to the lanes in turn; the next one of a lane begins when the one before it has ended.

    Args:
        sessions: in the order in which they begin.
        vocab_size: of the model.
        max_len: most tokens of a prompt and its reply; a session ends before the first turn that is longer.
        concurrency: how many sessions go on at the same time.
        waits: wait before each turn as long as in the recording, where it says.
    """
    calls: list[Call] = []
    last_of_lane: dict[int, int] = {}
    left_out = 0
    for number, session in enumerate(sessions):
        lane = number % concurrency
        after = last_of_lane.get(lane)
        turns = session.turns if max_len is None else _fitting(session.turns, max_len)
        left_out += len(session.turns) - len(turns)
        for turn_number, turn in enumerate(turns, 1):
            calls.append(
                Call(
                    session=number,
                    turn=turn_number,
                    after=after,
                    extends=turn.extends,
                    appended=turn.appended,
                    reply_tokens=len(turn.reply),
                    reply=turn.reply,
                    wait=turn.wait if waits else 0.0,
                )
            )
            after = last_of_lane[lane] = len(calls) - 1
    settings: dict[str, object] = {
        "sources": sorted({session.source for session in sessions}),
        "sessions": len(sessions),
        "max_len": max_len,
        "concurrency": concurrency,
        "waits": waits,
    }
    workload = Workload(name="trajectories", settings=settings, calls=tuple(calls), vocab_size=vocab_size)
    return WorkloadResult(workload, left_out)


def _fitting(turns: Sequence[Turn], max_len: int) -> Sequence[Turn]:
    """The turns before the first that is too long."""
    for index, turn in enumerate(turns):
        if turn.prompt_tokens + len(turn.reply) > max_len:
            return turns[:index]
    return turns


def _turns(calls: Sequence[RecordedCall], writer: _Writer) -> Iterator[Turn]:
    writer.begin(calls[-1])
    before = _NO_TOKENS
    for index, call in enumerate(calls):
        prompt, reply = writer.write(call)
        extends = index > 0 and common_length(before, prompt) == len(before) < len(prompt)
        appended = prompt[len(before) :].copy() if extends else prompt
        yield Turn(extends, appended, reply, call.wait, len(prompt))
        before = np.concatenate([prompt, reply])


class _Written(NamedTuple):
    """A prompt and the recorded reply to it, in tokens."""

    prompt: TokenArray
    reply: TokenArray


class _Writer:
    """Renders calls and puts them into tokens, piece by piece where that makes no difference."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ends = sorted((tokenizer.token_text(token) for token in tokenizer.eos_token_ids), key=len, reverse=True)
        self._end = re.compile("|".join(map(re.escape, ends)) or "(?!)")
        self._end_ids = np.array(sorted(tokenizer.eos_token_ids), np.int32)
        self._known: dict[str, TokenArray] = {}
        self._by_piece = True
        self._shows_calls = _shows(tokenizer, _PROBE, None, ("probe_name", "probe_argument", "probe_result"))
        self._shows_tools = _shows(tokenizer, _PROBE[:1], [_PROBE_TOOL], ("probe_tool",))

    def begin(self, longest: RecordedCall) -> None:
        """A new session: find out, on its last prompt, whether it may be tokenised by piece."""
        text = self._render(longest.messages, longest.tools)
        self._by_piece = True
        self._by_piece = np.array_equal(self._encode(text), self._tokenizer.encode(text))

    def write(self, call: RecordedCall) -> _Written:
        """The prompt and the reply of one call.

        Raises:
            InvalidRequest: when the template refuses the messages, a text is not valid Unicode, or a reply is empty.
        """
        prompt = self._render(call.messages, call.tools)
        whole = self._render((*call.messages, call.reply), call.tools, add_generation_prompt=False)
        if whole.startswith(prompt):
            text = whole[len(prompt) :]
        else:  # it writes a past turn otherwise than it begins a new one: what the message says must do
            ends = self._end.findall(whole)
            text = _text_of(call.reply) + (ends[-1] if ends else "")
        reply = self._encode(text)
        at_end = np.flatnonzero(np.isin(reply, self._end_ids))
        if len(at_end):
            reply = reply[: at_end[-1] + 1]
        if not len(reply):
            raise InvalidRequest("a reply is empty, and the template writes nothing after it")
        return _Written(self._encode(prompt), reply)

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> str:
        if tools and not self._shows_tools:
            messages, tools = _with_definitions(messages, tools), ()
        if not self._shows_calls:
            messages = _with_calls_as_text(messages)
        return self._tokenizer.render_chat(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def _encode(self, text: str) -> TokenArray:
        if not self._by_piece:
            return self._tokenizer.encode(text)
        bounds = [0, *(match.end() for match in self._end.finditer(text)), len(text)]
        pieces = [text[start:stop] for start, stop in pairwise(bounds) if start < stop]
        unknown = list(dict.fromkeys(piece for piece in pieces if piece not in self._known))
        self._known.update(zip(unknown, self._tokenizer.encode_batch(unknown), strict=True))
        return np.concatenate([_NO_TOKENS, *(self._known[piece] for piece in pieces)])


# -- tools as text ----------------------------------------------------------------------------------------------------

_PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "question"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call12345",  # nine letters and digits, as one family of templates demands
                "type": "function",
                "function": {"name": "probe_name", "arguments": {"probe_argument": 1}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call12345", "name": "probe_name", "content": "probe_result"},
)
_PROBE_TOOL: Message = {
    "type": "function",
    "function": {"name": "probe_tool", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def _shows(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Message] | None, words: Sequence[str]
) -> bool:
    """Whether the template takes these messages, and all of the words are in what it makes of them."""
    try:
        rendered = tokenizer.render_chat(messages, tools=tools)
    except InvalidRequest:
        return False
    return all(word in rendered for word in words)


def _with_definitions(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """The messages, with the definitions of tools at the end of the system message."""
    written = "\n".join(json.dumps(tool) for tool in tools)
    definitions = f"<tools>\n{written}\n</tools>"
    if messages and messages[0]["role"] == "system":
        system = {"role": "system", "content": f"{_text_of(messages[0])}\n\n{definitions}"}
        return [system, *messages[1:]]
    return [{"role": "system", "content": definitions}, *messages]


def _with_calls_as_text(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages, with calls and results of tools as text; neighbours that then have one role become one message."""
    written: list[dict[str, Any]] = []
    for message in messages:
        role, text = message["role"], _text_of(message)
        if role in ("tool", "function"):
            role, text = "user", f"<tool_response>\n{text}\n</tool_response>"
        if written and role != "system" and written[-1]["role"] == role:
            written[-1]["content"] += f"\n{text}"
        else:
            written.append({"role": role, "content": text})
    return written


def _text_of(message: Message) -> str:
    """What a message says, its calls of tools included."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return "\n".join(filter(None, [content, *map(_call_text, message.get("tool_calls") or ())]))


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    arguments = function["arguments"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {written}}}\n</tool_call>'
