"""Where in a rendered prompt the breakpoints of a conversation are.

Templates are programs, so where a message went is found by looking for its text, message by message. A part that the
template changed is not found, and its breakpoint is left out: what it asks for is a wish. It knows nothing of caches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mainstem.tokens.conversation import Conversation, Message

if TYPE_CHECKING:
    from mainstem.tokens.known_prompt import KnownPrompt

MAX_BREAKPOINTS = 4
"""Of more, the last ones count."""
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

    What it begins with is looked for from its beginning. The other marks that count are mostly near its end, so they
    are looked for from there: a prompt that grows is not searched as a whole at each turn.
    """
    messages = conversation.messages
    num_instructions = next((i for i, m in enumerate(messages) if m.role not in _INSTRUCTIONS), len(messages))
    ends: list[_End] = []
    begin = 0
    for message in messages[:num_instructions]:
        if (found := _find(message, partial(_from_left, text, begin))) is not None:
            ends += _marks(message, found)
            begin = found.stop
    of_tools = [tool.breakpoint for tool in conversation.tools if tool.breakpoint is not None]
    if of_tools:
        # Where a template puts the tools is its own affair; before the first turn they are all there.
        first = (_find(message, partial(_from_left, text, begin)) for message in messages[num_instructions:])
        ends += [_End(found.start, of_tools[-1].ttl) for found in first if found is not None][:1]
    later: list[_End] = []
    stop = len(text)
    marked = [index for index, message in enumerate(messages) if message.breakpoints and index >= num_instructions]
    for message in reversed(messages[marked[0] :] if marked else ()):
        if len(later) >= MAX_BREAKPOINTS:
            break
        if (found := _find(message, partial(_from_right, text, begin, stop))) is not None:
            later = [*_marks(message, found), *later]
            stop = found.start
    return ends + later


def _find(message: Message, find: Callable[[str], int]) -> _Found | None:
    """Where the text of a message is, as it is or without the white space around it."""
    whole = message.text
    stripped = whole.strip()
    if not stripped:
        return None
    if (start := find(whole)) >= 0:
        return _Found(start, start + len(whole), 0)
    if (start := find(stripped)) >= 0:
        return _Found(start, start + len(stripped), len(whole) - len(whole.lstrip()))
    return None


def _from_left(text: str, begin: int, wanted: str) -> int:
    return text.find(wanted, begin)


def _from_right(text: str, begin: int, stop: int, wanted: str) -> int:
    return text.rfind(wanted, begin, stop)


def _marks(message: Message, found: _Found) -> list[_End]:
    lengths = (len("\n".join(message.parts[: mark.part + 1])) - found.cut for mark in message.breakpoints)
    return [
        _End(min(max(found.start + length, found.start), found.stop), mark.ttl)
        for mark, length in zip(message.breakpoints, lengths, strict=True)
    ]
