"""What changed between the messages of two requests: the system's, the history, the model's own last reply."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

from mainstem.diagnosis.causes import Cause, Place
from mainstem.diagnosis.difference import Difference, in_texts
from mainstem.diagnosis.prompt import REPLY, Field, Kind, MessagePart, Prompt
from mainstem.diagnosis.texts import Change, changes, common_prefix, common_suffix, excerpt

# Below this share of equal text at both ends, two messages are two messages and not one that was edited.
_SIMILAR = 0.4
_SHORT = 60  # a placeholder may be longer than what it stands for, if it is no longer than this
_PLACEHOLDER = re.compile(
    r"(?i)\b(?:omitted|elided|truncated|removed|cleared|compact(?:ed|ion)|summar(?:y|ised|ized)|collapsed|pruned|hidden|"
    r"no longer available)\b|\[\.\.\.\]|^\s*(?:\.\.\.|…)\s*$"
)


class _Alignment(NamedTuple):
    """Where the histories come together again: so many messages differ in each, then `kept` are the same."""

    olds: int
    news: int
    kept: int


def compare_messages(before: Prompt, after: Prompt) -> Difference | None:
    """The first difference; None if the later request has nothing that the earlier one has not.

    Where the earlier prompt ends with the reply that was given to it, its part is `reply`.
    """
    old, new = before.messages, after.messages
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a.content != b.content), None)
    if at is None:
        if len(new) <= len(old):
            return None
        return _appended(new[len(old)], len(old))
    place = before.place_of(at)
    if place is Place.REPLY:
        return _reply(old[at], new[at], at)
    if at < max(before.num_system, after.num_system):
        return _system(before, after, at)
    return _history(old, new, at, at <= before.num_system + 1)


def _system(before: Prompt, after: Prompt, at: int) -> Difference:
    old, new = before.messages[at], after.messages[at]
    if at >= before.num_system or at >= after.num_system:
        gone = at >= after.num_system
        detail = f"the {old.role} message is gone" if gone else f"a {new.role} message was put in"
        return _whole(Cause.SYSTEM_EDITED, Place.SYSTEM, old, new, at, detail)
    return _within(old, new, Place.SYSTEM, Cause.SYSTEM_EDITED, at) or _whole(
        Cause.SYSTEM_EDITED, Place.SYSTEM, old, new, at, ""
    )


def _reply(old: MessagePart, new: MessagePart, at: int) -> Difference:
    if new.role != old.role or not _similar(old, new):
        # Another answer, or a second question: nothing of what was computed for the prompt is lost.
        return _whole(Cause.BRANCHED, Place.REPLY, old, new, at, "the reply was not sent back")
    if _continues(old, new) and old.text().strip() != new.text().strip():
        return _appended(new, at)
    return _edited(old, new, Place.REPLY, at)


def _history(old: Sequence[MessagePart], new: Sequence[MessagePart], at: int, near_front: bool) -> Difference:
    olds, news, kept = _align(old, new, at)
    if not kept:
        olds, news, kept = _window(old, new, at)
    first, second = old[at], new[at]
    if not kept:
        return _parted(old[at:], new[at:], at)
    if olds == news:
        return _edited(first, second, Place.MESSAGES, at)
    if not news:
        cause = Cause.HISTORY_WINDOWED if near_front else Cause.HISTORY_ELIDED
        return _whole(cause, Place.MESSAGES, first, second, at, f"{_messages(olds)} left out")
    if olds > news:
        detail = f"{_messages(olds)} became {news}"
        return _whole(Cause.HISTORY_ELIDED, Place.MESSAGES, first, second, at, detail)
    detail = f"{_messages(news - olds)} put in"
    return _whole(Cause.HISTORY_EDITED, Place.MESSAGES, first, second, at, detail)


def _parted(old: Sequence[MessagePart], new: Sequence[MessagePart], at: int) -> Difference:
    """The difference of histories that never come together again."""
    first, second = old[0], new[0]
    sent = [message for message in old if message.path != REPLY]
    sizes = [sum(len(field.text) for message in part for field in message.fields) for part in (sent, new)]
    if len(sent) <= 1 and first.role == second.role and _continues(first, second):
        return _appended(second, at)
    if first.role == second.role and (_similar(first, second) or _is_elided(first.text(), second.text())):
        return _edited(first, second, Place.MESSAGES, at)
    if len(new) < len(sent) and sizes[1] < sizes[0] / 2 and len(old) > 2:
        detail = f"{_messages(len(sent))} became {len(new)}"
        return _whole(Cause.HISTORY_ELIDED, Place.MESSAGES, first, second, at, detail)
    if len(old) == 1 or first.role == "assistant":
        return _whole(Cause.BRANCHED, Place.MESSAGES, first, second, at, "")
    return _whole(Cause.HISTORY_EDITED, Place.MESSAGES, first, second, at, f"{_messages(len(sent))} replaced")


def _align(old: Sequence[MessagePart], new: Sequence[MessagePart], at: int) -> _Alignment:
    """The longest end of the old history that the new one has, after `at`: with the reply, or without it if that was
    not sent back. What comes without it may be one message that comes again by chance, unless nothing follows it, or as
    many messages are before it in both.
    """
    olds, news = [message.content for message in old[at:]], [message.content for message in new[at:]]
    best = _Alignment(len(olds), len(news), 0)
    sent = len(olds) - (old[-1].path == REPLY)
    for stop in dict.fromkeys((len(olds), sent)):
        for end, kept in enumerate(reversed(_common_beginnings(olds[:stop][::-1], news[::-1])), 1):
            certain = stop == len(olds) or kept > 1 or end in (stop, len(news))
            if certain and kept > best.kept:
                best = _Alignment(stop - kept, end - kept, kept)
    return best


def _window(old: Sequence[MessagePart], new: Sequence[MessagePart], at: int) -> _Alignment:
    """The longest stretch of the old history that the new one goes on with at `at`, as if what is before it were gone.

    Where the reply was not sent back, the old history's end is not in the new one, and yet its oldest messages may have
    been dropped. One message that comes again may be chance, unless nothing follows it in either.
    """
    olds, news = [message.content for message in old[at:]], [message.content for message in new[at:]]
    sent = len(olds) - (old[-1].path == REPLY)
    best = _Alignment(len(olds), len(news), 0)
    for start, kept in enumerate(_common_beginnings(news, olds[1:sent]), 1):
        certain = kept > 1 or (start + kept == sent and kept == len(news))
        if certain and kept > best.kept:
            best = _Alignment(start, 0, kept)
    return best


def _common_beginnings(pattern: Sequence[Hashable], items: Sequence[Hashable]) -> list[int]:
    """For each place in a list, how many items from there on are those with which a pattern begins.

    In linear time, by the Z algorithm (Gusfield, Algorithms on Strings, Trees, and Sequences, 1.4).
    """
    both = (*pattern, object(), *items)
    lengths = [0] * len(both)
    start = stop = 0  # of the stretch that reaches furthest among those that are as the pattern begins
    for at in range(1, len(both)):
        length = min(lengths[at - start], stop - at) if at < stop else 0
        while at + length < len(both) and both[length] == both[at + length]:
            length += 1
        lengths[at] = length
        if at + length > stop:
            start, stop = at, at + length
    return lengths[len(pattern) + 1 :]


def _edited(old: MessagePart, new: MessagePart, place: Place, at: int) -> Difference:
    found = _within(old, new, place, Cause.HISTORY_EDITED, at)
    return found or _whole(Cause.HISTORY_EDITED, place, old, new, at, "")


def _within(old: MessagePart, new: MessagePart, place: Place, otherwise: Cause, at: int) -> Difference | None:
    """The first difference within a message; None if its role changed or it has other fields."""
    if old.role != new.role:
        return None
    rest = [tuple(field.text for field in part.fields if field.kind is not Kind.REASONING) for part in (old, new)]
    if not new.text(Kind.REASONING) and old.text(Kind.REASONING) and rest[0] == rest[1]:
        thought = next(field for field in old.fields if field.kind is Kind.REASONING)
        part = thought.path.replace(old.path, new.path, 1)
        return Difference(Cause.REASONING_DROPPED, place, part, 0, excerpt(thought.text, 0), index=at)
    for mine, theirs in zip(old.fields, new.fields, strict=False):
        if mine.kind is not theirs.kind:
            return None
        if mine.text != theirs.text:
            return _field(mine, theirs, place, otherwise, at)
    return None


def _field(old: Field, new: Field, place: Place, otherwise: Cause, index: int) -> Difference:
    found = changes(old.text, new.text)
    cause = found[0].cause
    # A history's text that changes in more than what always changes was edited, whatever its first change looks like.
    if cause is None or (place is not Place.SYSTEM and not _explained(found, old.text)):
        cause = otherwise
        if place is not Place.SYSTEM and _is_elided(old.text, new.text):
            cause = Cause.HISTORY_ELIDED
    at = common_prefix(old.text, new.text)
    path, offset = new.place_of(at)
    found_here = in_texts(cause, place, path, (old.text, new.text), (at, at), index=index)
    return replace(found_here, offset=offset)


def _explained(found: Sequence[Change], old: str) -> bool:
    """Whether each change is of a known form, or only puts text after the end of the earlier one."""
    return all(change.cause is not None or _is_put_after(change, old) for change in found)


def _is_put_after(change: Change, old: str) -> bool:
    rest = old[change.start[0] :]  # not empty where what was put there repeats the end
    return not change.before and (change.after + rest).startswith(rest)


def _is_elided(old: str, new: str) -> bool:
    """Whether a text is what is left of a longer one."""
    if len(new) >= max(len(old), _SHORT):
        return False
    if _PLACEHOLDER.search(new) and not _PLACEHOLDER.search(old):
        return True
    if len(new) >= len(old):
        return False
    at = common_prefix(old, new)
    return at + common_suffix(old, new, len(new) - at) >= len(new) and len(new) < len(old) / 2


def _similar(old: MessagePart, new: MessagePart) -> bool:
    """Whether two messages could be one that was edited."""
    if [f.text for f in old.fields if f.kind is not Kind.REASONING] == [
        f.text for f in new.fields if f.kind is not Kind.REASONING
    ]:
        return True
    for one, other in zip(old.fields, new.fields, strict=False):
        if one.kind is not other.kind:
            continue
        shorter = min(len(one.text), len(other.text))
        at = common_prefix(one.text, other.text)
        if shorter and at + common_suffix(one.text, other.text, shorter - at) >= _SIMILAR * max(
            len(one.text), len(other.text)
        ):
            return True
        if one.text != other.text and _explained(changes(one.text, other.text), one.text):
            return True
    return False


def _continues(old: MessagePart, new: MessagePart) -> bool:
    """Whether the later message is the earlier one with more at its end."""
    *whole, last = old.fields or (Field("", Kind.TEXT, ""),)
    told = [(field.kind, field.text) for field in new.fields]
    return (
        len(told) > len(whole)
        and [(field.kind, field.text) for field in whole] == told[: len(whole)]
        and told[len(whole)][0] is last.kind
        and told[len(whole)][1].startswith(last.text)
    )


def _appended(message: MessagePart, index: int) -> Difference:
    return Difference(Cause.APPENDED, Place.MESSAGES, message.path, 0, "", excerpt(message.text(), 0), index=index)


def _whole(cause: Cause, place: Place, old: MessagePart, new: MessagePart, index: int, detail: str) -> Difference:
    """A difference between messages as wholes."""
    texts = [f"{part.role}: " + " ".join(field.text for field in part.fields) for part in (old, new)]
    return Difference(cause, place, new.path, 0, excerpt(texts[0], 0), excerpt(texts[1], 0), detail, index)


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"
