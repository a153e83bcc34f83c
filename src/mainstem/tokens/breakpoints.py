"""Where in a rendered prompt the breakpoints of a conversation are.

Templates are programs, so where a message went is found by looking for its text, message after message. A part that the
template changed is not found, and its breakpoint is left out: what it asks for is a wish. It knows nothing of caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mainstem.tokens.conversation import Conversation

if TYPE_CHECKING:
    from mainstem.tokens.known_prompt import KnownPrompt

MAX_BREAKPOINTS = 4
"""Of more, the last ones count."""


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
    ends: list[_End] = []
    at = 0
    of_tools = [tool.breakpoint for tool in conversation.tools if tool.breakpoint is not None]
    for message in conversation.messages:
        whole = message.text
        start = text.find(whole, at)
        if start < 0:
            whole = whole.strip()
            start = text.find(whole, at)
        if start < 0 or not whole:
            continue
        if of_tools and message.role not in ("system", "developer"):
            # Where a template puts the tools is its own affair; before the first turn they are all there.
            ends.append(_End(start, of_tools[-1].ttl))
            of_tools = []
        cut = len(message.text) - len(message.text.lstrip()) if whole != message.text else 0
        for mark in message.breakpoints:
            length = len("\n".join(message.parts[: mark.part + 1])) - cut
            ends.append(_End(start + min(max(length, 0), len(whole)), mark.ttl))
        at = start + len(whole)
    return ends
