"""What a chat template does to prefixes, found by rendering probe conversations with it, never by its name.

An agent's prompt begins with its last prompt and what the model replied, unless the template writes these otherwise
once more has been said. Two probes are rendered turn by turn, one with tools and one without; where a prompt does not
begin with the one before it, the probes' texts, each unlike any other, tell what has moved or gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from mainstem.errors import InvalidRequest
from mainstem.tokens.conversation import Conversation, Message, ToolCall
from mainstem.tokens.rendering import PROBE_TOOL, ChatTemplate


class Finding(NamedTuple):
    """One thing that a template does.

    Attributes:
        kind: a word for it; docs/templates.md explains each.
        text: a sentence without its subject, which is the template.
    """

    kind: str
    text: str


class _Turn(NamedTuple):
    """What has happened when a turn begins, in words, and the messages that this adds."""

    when: str
    messages: tuple[Message, ...]


class _Break(NamedTuple):
    """Something that a prompt has otherwise than the one before it: a kind of finding, when, and what."""

    kind: str
    when: str
    what: str


_SYSTEM = Message(role="system", parts=("probe instructions",))
_QUESTIONS = ("probe question one", "probe question two", "probe question three")
_VALUES, _RESULTS = ("probe value 0001", "probe value 0002"), ("probe result one", "probe result two")
_NEXT, _ANSWERED = "the user speaks again", "a tool has answered"
# What may be dropped later, or come in another place, and the texts that tell where it is.
_TOLD_BY = {
    "tools": ("the tools", (PROBE_TOOL.description or "",)),
    "system": ("the system message", (_SYSTEM.text,)),
    "calls": ("tool calls", _VALUES),
    "results": ("what tools answered", _RESULTS),
}
_IN_ORDER = (*_QUESTIONS, *_VALUES, *_RESULTS)


def findings(chat: ChatTemplate) -> tuple[Finding, ...]:
    """What users should know of a model's template; nothing, if each prompt simply begins with the one before it."""
    if not chat.exists:
        return ()
    breaks = [*_breaks(chat, _with_tools(), uses_tools=True), *_breaks(chat, _without_tools(), uses_tools=False)]
    return (*_of_clock(chat), *_of_tools(chat), *_joined(breaks))


def _with_tools() -> tuple[_Turn, ...]:
    steps = []
    for number, (value, result) in enumerate(zip(_VALUES, _RESULTS, strict=True)):
        call = ToolCall(f"probe{value[-4:]}", PROBE_TOOL.name, f'{{"probe_key": "{value}"}}')
        called = Message(role="assistant", reasoning=f"probe thought {number}", tool_calls=(call,))
        answered = Message(role="tool", parts=(result,), tool_call_id=call.id, name=call.name)
        steps.append(_Turn(_ANSWERED, (called, answered)))
    return (_Turn("", (_user(_QUESTIONS[0]),)), *steps, _Turn(_NEXT, (_reply(3), _user(_QUESTIONS[1]))))


def _without_tools() -> tuple[_Turn, ...]:
    return (
        _Turn("", (_user(_QUESTIONS[0]),)),
        _Turn(_NEXT, (_reply(1), _user(_QUESTIONS[1]))),
        _Turn(_NEXT, (_reply(2), _user(_QUESTIONS[2]))),
    )


def _user(text: str) -> Message:
    return Message(role="user", parts=(text,))


def _reply(number: int) -> Message:
    return Message(role="assistant", parts=(f"probe reply {number}",), reasoning=f"probe thought {number}")


def _of_clock(chat: ChatTemplate) -> Iterator[Finding]:
    reads = next((reads for reads in chat.reads.values() if reads.clock), None)
    if reads is None:
        return
    what = "time" if reads.to_the_second else "date"
    share = "; those that begin more than ten minutes apart share nothing after it" if reads.to_the_second else ""
    yield Finding("clock", f"writes the {what}: each conversation keeps the {what} it began with{share}")


def _of_tools(chat: ChatTemplate) -> Iterator[Finding]:
    asked = (_user(_QUESTIONS[0]),)
    if _rendered(chat, Conversation(asked)) is None:
        yield Finding("needs-tools", "refuses conversations without tools")
    text = _rendered(chat, Conversation(asked, (PROBE_TOOL,)))
    if text is None:
        yield Finding("no-tools", "refuses conversations with tools")
    elif PROBE_TOOL.name not in text:
        instructed = _rendered(chat, Conversation((_SYSTEM, *asked), (PROBE_TOOL,))) or ""
        where = " where there is no system message" if PROBE_TOOL.name in instructed else ""
        yield Finding("no-tools", f"leaves tools out{where}, so that the model does not learn of them")
    elif PROBE_TOOL.name not in chat.call_example:
        yield Finding("no-calls", "leaves tool calls out of the history, or refuses them")


def _breaks(chat: ChatTemplate, turns: tuple[_Turn, ...], *, uses_tools: bool) -> Iterator[_Break]:
    """What each turn's prompt has otherwise than the one before it."""
    tools = (PROBE_TOOL,) if uses_tools else ()
    opening = Conversation((_SYSTEM, *turns[0].messages), tools)
    if _rendered(chat, opening) is None:
        opening = Conversation(turns[0].messages, tools)
    turns = _as_the_model_replies(chat, opening, turns)
    conversations = [opening]
    for turn in turns[1:]:
        conversations.append(replace(opening, messages=conversations[-1].messages + turn.messages))
    prompts = [_rendered(chat, conversation) for conversation in conversations]
    for number, turn in enumerate(turns[1:], 1):
        before, now = prompts[number - 1], prompts[number]
        if before is None or now is None:
            return
        thoughts = [message.reasoning for message in conversations[number].messages if message.reasoning]
        missing = [*_moved(before, now), *_forgotten(chat, thoughts, before, now)]
        if not missing and not now.startswith(before):
            missing = [_otherwise(chat, conversations[number - 1], before, now)]
        yield from (_Break(kind, turn.when, what) for kind, what in missing)


def _as_the_model_replies(chat: ChatTemplate, opening: Conversation, turns: tuple[_Turn, ...]) -> tuple[_Turn, ...]:
    """The turns, without thoughts where the first prompt leaves the model no room for them."""
    first = _rendered(chat, opening) or ""
    thoughtless = tuple(
        _Turn(turn.when, tuple(replace(message, reasoning=None) for message in turn.messages)) for turn in turns
    )
    marks = chat.reasoning_marks
    if marks and first.rstrip().endswith(marks.end):
        return thoughtless
    for version in (turns, thoughtless):
        second = _rendered(chat, replace(opening, messages=opening.messages + version[1].messages)) or ""
        if second.startswith(first):
            return version
    return turns


def _moved(before: str, now: str) -> Iterator[tuple[str, str]]:
    said = [text for text in _IN_ORDER if text in before and text in now]
    for kind, (name, texts) in _TOLD_BY.items():
        shown = [text for text in texts if text in before]
        if any(text not in now for text in shown):
            yield kind, f"it drops {name}"
        elif any(_precedes(one, other, before) != _precedes(one, other, now) for one in shown for other in said):
            yield kind, f"it moves {name} to the end"


def _precedes(one: str, other: str, prompt: str) -> bool:
    return prompt.find(one) < prompt.find(other)


def _forgotten(chat: ChatTemplate, thoughts: list[str], before: str, now: str) -> Iterator[tuple[str, str]]:
    """What a prompt leaves out of what the model thought."""
    if any(thought in before and thought not in now for thought in thoughts):
        yield "reasoning", "it drops what the model thought"
    elif chat.reasoning_marks and thoughts and thoughts[-1] not in now:
        yield "reasoning", "it leaves out what the model thought"


def _otherwise(chat: ChatTemplate, earlier: Conversation, before: str, now: str) -> tuple[str, str]:
    """What the prompt `now` has where it parts from the one before it."""
    at = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
    mark = before.rfind("<", 0, at)
    if mark > before.rfind(">", 0, at):  # marks are shown whole
        at = mark
    said = _rendered(chat, earlier, add_generation_prompt=False) or ""
    if before.startswith(said) and at >= len(said):
        opening, instead = before[len(said) :], now[len(said) : len(before)]
        return "opening", f"it begins a reply with {opening!r}, but its history with {instead!r}"
    return "rewrites", f"{before[at : at + 30]!r} becomes {now[at : at + 30]!r}"


def _joined(breaks: list[_Break]) -> Iterator[Finding]:
    """One finding a kind, with every occasion for it."""
    for kind in dict.fromkeys(found.kind for found in breaks):
        alike = [found for found in breaks if found.kind == kind]
        when = " and when ".join(dict.fromkeys(found.when for found in alike))
        yield Finding(kind, f"breaks prefixes when {when}: {alike[0].what}")


def _rendered(chat: ChatTemplate, conversation: Conversation, *, add_generation_prompt: bool = True) -> str | None:
    """The prompt; None if the template refuses the conversation."""
    try:
        # Any moment will do, if it stays the same.
        return chat.render(conversation, add_generation_prompt=add_generation_prompt, at=datetime(2026, 1, 1))
    except InvalidRequest:
        return None
