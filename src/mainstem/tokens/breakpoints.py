"""Where in a rendered prompt the breakpoints of a conversation are.

Templates are programs, so where a message went is found by looking for its text, message by message. A part that the
template changed is not found, and its breakpoint is left out: what it asks for is a wish. It knows nothing of caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mainstem.tokens.conversation import Conversation, Message

if TYPE_CHECKING:
    from mainstem.tokens.known_prompt import KnownPrompt

MAX_BREAKPOINTS = 4
"""Of more, the last ones count."""
ANCHOR = 64
"""Characters that a text must have to be looked for from the end of a prompt."""
MAX_MISSES = 500
"""Messages that are not found, after which no more are looked for: each time the rest of the prompt is searched."""
_INSTRUCTIONS = ("system", "developer")


class PromptBreakpoint(NamedTuple):
    """A breakpoint in a prompt.

    Attributes:
        length: how many of the prompt's tokens are before it.
        ttl: for how long they are to be kept, as the client wrote it; None for the request's own.
    """

    length: int
    ttl: str | None


class _End(NamedTuple):
    character: int
    ttl: str | None


class _Found(NamedTuple):
    """A message's text, from `start` to `stop`; so many characters of it are missing there before it."""

    start: int
    stop: int
    cut: int


class _Search(NamedTuple):
    """The marks of messages, where the last message ends, and whether all of them were found."""

    ends: list[_End]
    stop: int
    whole: bool


def locate(
    conversation: Conversation, prompt: KnownPrompt, encode: Callable[[str], NDArray[np.int32]]
) -> tuple[PromptBreakpoint, ...]:
    """The breakpoints of a conversation in the prompt that was made of it."""
    marked = [message for message in conversation.messages if message.breakpoints]
    if not marked and all(tool.breakpoint is None for tool in conversation.tools):
        return ()
    ends = _ends(conversation, prompt.text)[-MAX_BREAKPOINTS:]
    found = [PromptBreakpoint(_tokens_before(end.character, prompt, encode), end.ttl) for end in ends]
    return tuple(mark for mark in found if mark.length)


def _tokens_before(character: int, prompt: KnownPrompt, encode: Callable[[str], NDArray[np.int32]]) -> int:
    """How many of a prompt's tokens end before a character; one that lies across the place does not."""
    length = 0
    for part in (*prompt.settled, prompt.opening):
        if character >= len(part.text):
            character -= len(part.text)
            length += len(part.ids)
            continue
        before = encode(part.text[:character])
        same = before[: len(part.ids)] == part.ids[: len(before)]
        return length + (len(same) if same.all() else int(same.argmin()))
    return length


def _ends(conversation: Conversation, text: str) -> list[_End]:
    """Where the text of a prompt is marked, in order.

    What it begins with is looked for from its beginning. The other marks that count are mostly near its end, so a long
    message before them is looked for from there: a prompt that grows is not searched as a whole at each turn.
    """
    messages = conversation.messages
    first = next((i for i, m in enumerate(messages) if m.role not in _INSTRUCTIONS), len(messages))
    instructions = _search(messages[:first], text, 0)
    ends = instructions.ends
    of_tools = [tool.breakpoint for tool in conversation.tools if tool.breakpoint is not None]
    if of_tools:
        # Where a template puts the tools is its own affair; before the first turn they are all there.
        starts = (_find(message, text, instructions.stop) for message in messages[first : first + MAX_MISSES])
        ends += [_End(found.start, of_tools[-1].ttl) for found in starts if found is not None][:1]
    marked, num_marks = len(messages), 0
    for index in range(len(messages) - 1, first - 1, -1):
        if messages[index].breakpoints and num_marks < MAX_BREAKPOINTS:
            marked, num_marks = index, num_marks + len(messages[index].breakpoints)
    if num_marks:
        ends += _search_late(messages[first:], marked - first, text, instructions.stop)
    return ends


def _search_late(messages: Sequence[Message], marked: int, text: str, begin: int) -> list[_End]:
    """The marks from message number `marked` on, in the text from `begin` on."""
    anchor = next((i for i in range(marked - 1, -1, -1) if len(messages[i].text) >= ANCHOR), None)
    if anchor is not None:
        # A text that is there twice is taken to be where it was last; then what follows it is not found.
        stop = _end_of_last(text, messages[anchor].text, begin)
        if stop is not None:
            found = _search(messages[anchor + 1 :], text, stop)
            if found.whole:
                return found.ends
    return _search(messages, text, begin).ends


def _end_of_last(text: str, wanted: str, begin: int) -> int | None:
    """Where a text ends that is in another one, after `begin`; where it is last.

    Python finds from the left in linear time, but not from the right; so it is looked for in the reversed text, in as
    much of it as is needed.
    """
    backwards, size = wanted[::-1], 2 * len(wanted) + 1024
    while True:
        at = text[max(len(text) - size, begin) :][::-1].find(backwards)
        if at >= 0:
            return len(text) - at
        if size >= len(text) - begin:
            return None
        size *= 2


def _search(messages: Sequence[Message], text: str, at: int) -> _Search:
    """Look for messages one after the other."""
    ends: list[_End] = []
    misses = 0
    for message in messages:
        found = _find(message, text, at)
        if found is None:
            misses += bool(message.text.strip())
            if misses == MAX_MISSES:
                break
            continue
        marks = message.breakpoints[-MAX_BREAKPOINTS:]
        lengths = (len("\n".join(message.parts[: mark.part + 1])) - found.cut for mark in marks)
        ends += [
            _End(found.start + min(max(length, 0), found.stop - found.start), mark.ttl)
            for mark, length in zip(marks, lengths, strict=True)
        ]
        at = found.stop
    return _Search(ends, at, not misses)


def _find(message: Message, text: str, begin: int) -> _Found | None:
    """Where the text of a message is, as it is or without the white space around it."""
    whole = message.text
    if not whole:
        return None
    if (start := text.find(whole, begin)) >= 0:
        return _Found(start, start + len(whole), 0)
    stripped = whole.strip()
    if len(stripped) not in (0, len(whole)) and (start := text.find(stripped, begin)) >= 0:
        return _Found(start, start + len(stripped), len(whole) - len(whole.lstrip()))
    return None
