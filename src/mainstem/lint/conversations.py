"""Which requests belong to one conversation, found by what they say.

A request goes on with the conversation whose latest request it begins with. Where it begins with none, because
something in it changed that should not have, it goes on with the one of which it keeps the most: the model's replies
and the results of tools, or the same first question after instructions of nearly the same text. Another question after
the same instructions is another conversation. It knows no ids: agents share them between conversations, or send none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from mainstem.diagnosis import Field, Kind, MessagePart, Prompt, changes
from mainstem.lint.sizes import item_text, similar

_RECENT = 64  # conversations that a request that begins with none is compared with
_ENOUGH = 0.5  # of what was said in the shorter one
_Key: TypeAlias = int
_VARYING = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|\b(?=\w*\d)[0-9a-fA-F]{7,64}\b|\d+")


class Place(NamedTuple):
    """Where a request was read: a file, and its line, or its number in a recording."""

    file: str
    number: int
    is_line: bool = True

    def __str__(self) -> str:
        return f"{self.file}:{self.number}" if self.is_line else f"{self.file}, request {self.number}"


class Request(NamedTuple):
    """One request to a model, and the reply where it is known."""

    place: Place
    prompt: Prompt
    reply: MessagePart | None = None

    @property
    def answered(self) -> Prompt:
        """The prompt with the reply at its end."""
        return self.prompt if self.reply is None else self.prompt.with_reply(self.reply)


@dataclass(slots=True)
class Conversation:
    """Requests that go on with one another, in their order."""

    requests: list[Request] = field(default_factory=list)

    @property
    def latest(self) -> Request:
        """The last one so far."""
        return self.requests[-1]


def group(requests: Sequence[Request]) -> list[Conversation]:
    """Sort requests, in the order in which they were made, into conversations."""
    grouping = _Grouping()
    for request in requests:
        grouping.add(request)
    return grouping.conversations


class _Grouping:
    def __init__(self) -> None:
        self.conversations: list[Conversation] = []
        self._recent: list[Conversation] = []  # the same ones, the latest used last
        self._tips: dict[_Key, list[Conversation]] = {}  # by the whole of their latest request
        self._seen: set[_Key] = set()

    def add(self, request: Request) -> None:
        keys = _keys(request.prompt)
        conversation = self._continued(request, keys)
        if conversation is None:
            conversation = Conversation()
            self.conversations.append(conversation)
        else:
            self._recent.remove(conversation)
            before = self._tips[_keys(conversation.latest.prompt)[-1]]
            before[:] = [other for other in before if other is not conversation]
        self._recent.append(conversation)
        conversation.requests.append(request)
        self._tips.setdefault(keys[-1], []).append(conversation)
        self._seen.add(keys[-1])

    def _continued(self, request: Request, keys: Sequence[_Key]) -> Conversation | None:
        for key in reversed(keys[:-1]):  # the same request once more is asked for another reply
            fitting = [tip for tip in self._tips.get(key, ()) if _may_follow(tip.latest.prompt, request.prompt)]
            if fitting:
                return max(fitting, key=lambda tip: _fit(tip.latest, request))
        known = next((length for length in range(len(keys), 0, -1) if keys[length - 1] in self._seen), 0)
        scored = [(_evidence(tip.latest, request, known), tip) for tip in self._recent[-_RECENT:]]
        score, tip = max(scored, key=lambda pair: pair[0], default=(0.0, None))
        return tip if score >= _ENOUGH else None


def _keys(prompt: Prompt) -> list[_Key]:
    """For each message, what stands for it and all before it."""
    keys: list[_Key] = []
    key = 0
    for message in prompt.messages:
        key = hash((key, message.content))
        keys.append(key)
    return keys or [0]


def _fit(earlier: Request, later: Request) -> tuple[int, bool]:
    """Which of several requests with the same messages one goes on with: that whose reply it sends back, if any."""
    next_one = later.prompt.messages[len(earlier.prompt.messages)]
    sends_reply = 1 if earlier.reply is None else 2 * (earlier.reply.content == next_one.content)
    return sends_reply, earlier.prompt.tools == later.prompt.tools


def _may_follow(before: Prompt, after: Prompt) -> bool:
    """Whether a request that begins with all messages of another goes on with it.

    The same messages for another model, or with other tools, are another request.
    """
    grown = any(message.role == "assistant" for message in after.messages[len(before.messages) :])
    if grown:
        return True
    return before.model == after.model and _names(before) == _names(after)


def _names(prompt: Prompt) -> list[str]:
    return sorted(tool.name for tool in prompt.tools)


def _evidence(earlier: Request, later: Request, known: int) -> float:
    """How much speaks for two requests being of one conversation, of 1; `known` messages are in other requests too.

    What is cheap to see is looked at first: a file may have thousands of conversations.
    """
    before, after = earlier.prompt, later.prompt
    if not _same_model(before, after) or before.num_system == len(before.messages):
        return 0.0
    if _text_goes_on(before, after):
        return 1.0
    if before.messages[0].path == after.messages[0].path == "prompt":
        return _kept_lines(before.messages[0], after.messages[0])
    olds, news = before.messages[max(known, before.num_system) :], after.messages[max(known, after.num_system) :]
    if not olds or not news:
        return 0.0
    if any(message.role != "user" for message in olds):
        return _replies_in_common(olds, news, is_branch=known > 0) if _begin_alike(before, after, olds, news) else 0.0
    return 1.0 if _same_question(before, after, olds, news) else 0.0


def _text_goes_on(before: Prompt, after: Prompt) -> bool:
    """Whether only text was put after the end of the last message, and messages after it."""
    *whole, last = before.messages
    rest = after.messages[: len(whole)]
    if len(after.messages) <= len(whole) or any(a.content != b.content for a, b in zip(whole, rest, strict=True)):
        return False
    grown = after.messages[len(whole)]
    old, new = item_text(last), item_text(grown)
    return last.role == grown.role and bool(old) and old != new and new.startswith(old)


def _same_model(before: Prompt, after: Prompt) -> bool:
    return before.model == after.model or None in (before.model, after.model)


def _begin_alike(before: Prompt, after: Prompt, olds: Sequence[MessagePart], news: Sequence[MessagePart]) -> bool:
    """Whether requests with replies may be of one conversation, by how they begin.

    Agents answer different questions with the same first words, so these prove nothing where the question is another
    one, nor where both the question and the instructions are.
    """
    if olds[0].role != "user" or news[0].role != "user" or _spelt_alike(olds[0], news[0]):
        return True
    heads = [prompt.messages[: prompt.num_system] for prompt in (before, after)]
    told_alike = len(heads[0]) == len(heads[1]) and all(map(_spelt_alike, *heads))
    replies = {_masked(message) for message in olds if message.role == "assistant"}
    return told_alike and sum(_masked(message) in replies for message in news) > 1


def _replies_in_common(olds: Sequence[MessagePart], news: Sequence[MessagePart], *, is_branch: bool) -> float:
    """The share of what the model and its tools said that is in both, in order, of the shorter one.

    What goes on from another request too may be a branch: then a reply of the model's must be in both, with the same
    numbers. Tools often say the same.
    """
    said = [[message for message in messages if message.role != "user"] for messages in (olds, news)]
    common = _in_both(*said)
    if is_branch and not any(old.role == "assistant" and _respelt(old) == _respelt(new) for old, new in common):
        return 0.0
    sizes = [sum(len(item_text(message)) for message in messages) for messages in said]
    return sum(min(len(item_text(old)), len(item_text(new))) for old, new in common) / max(1, min(sizes))


def _in_both(olds: Sequence[MessagePart], news: Sequence[MessagePart]) -> list[tuple[MessagePart, MessagePart]]:
    """Messages of both that are the same but for numbers and the like, or stand between such and are similar."""
    first, second = [_masked(message) for message in olds], [_masked(message) for message in news]
    found = []
    for kind, i, j, k, m in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        pairs = zip(olds[i:j], news[k:m], strict=False)
        for old, new in pairs if kind in ("equal", "replace") else ():
            if kind == "equal" or (old.role == new.role and similar(item_text(old), item_text(new))):
                found.append((old, new))
    return found


def _kept_lines(old: MessagePart, new: MessagePart) -> float:
    """The share of a plain prompt's lines that a longer one has; 0 where it is not the same text gone on."""
    before, after = item_text(old).splitlines(), item_text(new).splitlines()
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    share = sum(block.size for block in blocks) / max(1, len(before))
    return share if len(after) > len(before) and share > 0.5 else 0.0


def _same_question(before: Prompt, after: Prompt, olds: Sequence[MessagePart], news: Sequence[MessagePart]) -> bool:
    """Whether a request without a reply in it is asked again or goes on: all its messages are there, spelt alike."""
    if len(news) < len(olds):
        return False
    pairs = list(zip(olds, news, strict=False))
    if all(old.content == new.content for old, new in pairs):
        grown = len(news) > len(olds)
        return (grown or _names(before) == _names(after)) and _system_alike(before, after)
    answered = any(message.role == "assistant" for message in news)
    return answered and all(_spelt_alike(old, new) for old, new in pairs) and _system_alike(before, after)


def _spelt_alike(old: MessagePart, new: MessagePart) -> bool:
    if old.role != new.role:
        return False
    found = changes(item_text(old), item_text(new))
    return all(change.cause is not None for change in found)


def _system_alike(before: Prompt, after: Prompt) -> bool:
    olds, news = ("\n".join(map(item_text, p.messages[: p.num_system])) for p in (before, after))
    return olds == news or similar(olds, news) or all(c.cause is not None for c in changes(olds, news))


@lru_cache(maxsize=100_000)
def _respelt(message: MessagePart) -> tuple[Any, ...]:
    """What is left of a message without spaces, the order of keys in arguments, and thoughts, which may be dropped."""
    said = [field for field in message.fields if field.text and field.kind is not Kind.REASONING]
    return message.role, tuple((field.kind, _bare(field)) for field in said or message.fields)


@lru_cache(maxsize=100_000)
def _masked(message: MessagePart) -> tuple[Any, ...]:
    """What is left of it without numbers and ids either."""
    role, fields = _respelt(message)
    return role, tuple((kind, _VARYING.sub("0", text)) for kind, text in fields)


def _bare(field: Field) -> str:
    text = field.text
    if field.kind is Kind.ARGUMENTS:
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), sort_keys=True)
    return "".join(text.split())
