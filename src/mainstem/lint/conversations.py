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
from typing import Any, NamedTuple, TypeAlias

from mainstem.diagnosis import Cause, Field, Kind, MessagePart, Prompt, changes, compare
from mainstem.lint.sizes import item_text, similar

_RECENT = 64  # conversations that a request that begins with none is compared with
_ENOUGH = 0.3  # of the shorter one's text
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
        for key in reversed(keys):
            fitting = [tip for tip in self._tips.get(key, ()) if _may_follow(tip.latest.prompt, request.prompt)]
            if fitting:
                return max(fitting, key=lambda tip: tip.latest.prompt.tools == request.prompt.tools)
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
    """How much speaks for two requests being of one conversation, of 1; `known` messages are in other requests too."""
    before, after = earlier.prompt, later.prompt
    plain = compare(before, after)
    if before.num_system == len(before.messages) or not _same_model(before, after):
        return 0.0
    olds, news = before.messages[max(known, before.num_system) :], after.messages[max(known, after.num_system) :]
    if plain is not None and plain.cause is Cause.APPENDED:
        return 1.0 if olds else 0.0
    if not olds or not news:
        return 0.0
    if before.messages[0].path == after.messages[0].path == "prompt":
        return _kept_lines(before.messages[0], after.messages[0])
    matched, replies = _matched(olds, news)
    if any(message.role != "user" for message in olds):
        if not replies or _begins_anew(before, after):
            return 0.0
    elif not _same_question(before, after, olds, news):
        return 0.0
    sizes = [sum(len(item_text(message)) for message in messages) for messages in (olds, news)]
    return matched / max(1, min(sizes))


def _same_model(before: Prompt, after: Prompt) -> bool:
    return before.model == after.model or None in (before.model, after.model)


def _matched(olds: Sequence[MessagePart], news: Sequence[MessagePart]) -> tuple[int, int]:
    """Characters of the earlier messages that are in the later ones, and how many of these are no user's messages."""
    first, second = [_masked(message) for message in olds], [_masked(message) for message in news]
    size = replies = 0
    for kind, i, j, k, m in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if kind not in ("equal", "replace"):
            continue
        for old, new in zip(olds[i:j], news[k:m], strict=False):
            if kind == "equal" or (old.role == new.role and similar(item_text(old), item_text(new))):
                size += min(len(item_text(old)), len(item_text(new)))
            # A reply that is but similar may be another one to the same question.
            replies += kind == "equal" and old.role != "user" and bool(item_text(old))
    return size, replies


def _kept_lines(old: MessagePart, new: MessagePart) -> float:
    """The share of a plain prompt's lines that a longer one has; 0 where it is not the same text gone on."""
    before, after = item_text(old).splitlines(), item_text(new).splitlines()
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    share = sum(block.size for block in blocks) / max(1, len(before))
    return share if len(after) > len(before) and share > 0.5 else 0.0


def _begins_anew(before: Prompt, after: Prompt) -> bool:
    """Whether both the instructions and the first question were rewritten: an answer may be the same by chance."""
    old, new = (prompt.messages[prompt.num_system : prompt.num_system + 1] for prompt in (before, after))
    if not old or not new or _spelt_alike(old[0], new[0]):
        return False
    heads = [prompt.messages[: prompt.num_system] for prompt in (before, after)]
    return len(heads[0]) != len(heads[1]) or not all(map(_spelt_alike, *heads))


def _same_question(before: Prompt, after: Prompt, olds: Sequence[MessagePart], news: Sequence[MessagePart]) -> bool:
    """Whether a request without a reply in it is asked again or goes on: all its messages are there, spelt alike."""
    if len(news) < len(olds) or not _system_alike(before, after):
        return False
    pairs = list(zip(olds, news, strict=False))
    if all(old.content == new.content for old, new in pairs):
        return len(news) > len(olds) or _names(before) == _names(after)
    return any(message.role == "assistant" for message in news) and all(_spelt_alike(old, new) for old, new in pairs)


def _spelt_alike(old: MessagePart, new: MessagePart) -> bool:
    if old.role != new.role:
        return False
    found = changes(item_text(old), item_text(new))
    return all(change.cause is not None for change in found)


def _system_alike(before: Prompt, after: Prompt) -> bool:
    olds, news = ("\n".join(map(item_text, p.messages[: p.num_system])) for p in (before, after))
    return olds == news or similar(olds, news) or all(c.cause is not None for c in changes(olds, news))


def _masked(message: MessagePart) -> tuple[Any, ...]:
    """What is left of a message without numbers, ids, spaces and the order of keys."""
    return message.role, tuple((field.kind, _without_varying(field)) for field in message.fields if field.text)


def _without_varying(field: Field) -> str:
    text = field.text
    if field.kind is Kind.ARGUMENTS:
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), sort_keys=True)
    return _VARYING.sub("0", "".join(text.split()))
