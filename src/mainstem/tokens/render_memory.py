"""Prompts that were rendered lately, so that the next of a conversation is rendered from where it goes on.

What is remembered of one namespace is used for no other: how long a prompt takes would tell what others said. When it
is too much, the least recently used of the tenant that has most is forgotten. It knows conversations; what may be taken
from an earlier prompt is the business of `resuming`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from mainstem.owned import Owned
from mainstem.tokens.conversation import Conversation, Definition, Message
from mainstem.tokens.resuming import Rendered, render

# Of the prompts that are kept; about four times as many bytes.
MAX_CHARACTERS = 50_000_000
# What Python needs for a message and its point in a loop, as characters of which there are as many bytes.
MESSAGE_CHARACTERS = 500
# Messages that tell conversations apart: mostly instructions, and the first question.
_FIRST = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A prompt: its messages, as they came and as the template saw them, and its text."""

    messages: tuple[Message, ...]
    seen: list[dict[str, Any]]
    rendered: Rendered

    @property
    def characters(self) -> int:
        return len(self.rendered.text) + MESSAGE_CHARACTERS * len(self.messages)


_NOTHING = _Known((), [], Rendered(""))


class RenderMemory:
    """Renders, and remembers what it rendered. Safe to use from several threads."""

    def __init__(self, *, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._known: dict[Hashable, _Known] = {}
        self._keys: dict[_Known, Hashable] = {}
        self._sizes: Owned[_Known] = Owned()
        self._lock = threading.Lock()

    def remember_at_most(self, characters: int) -> None:
        """Bound what is remembered from now on."""
        with self._lock:
            self._max_characters = characters
            self._forget()

    def render(
        self,
        source: str,
        conversation: Conversation,
        variables: Mapping[str, Any],
        see: Callable[[Message], dict[str, Any]],
    ) -> str:
        """What a template makes of a conversation.

        Args:
            source: of the template.
            conversation: to render; its tools are among the variables.
            variables: what the template is given beside the messages.
            see: a message as the template is given it; always the same for a source.

        Raises:
            Exception: whatever the template raises.
        """
        messages = conversation.messages
        try:
            key = (conversation.namespace, source, *_written(variables), messages[:_FIRST])
        except (TypeError, ValueError, RecursionError):  # values that JSON does not have: nothing can be compared
            return render(source, [see(message) for message in messages], variables).text
        with self._lock:
            known = self._known.get(key, _NOTHING)
        common = _common(known.messages, messages)
        # Known messages are taken as they were, so that they are known at a glance the next time.
        kept = known.messages[:common] + messages[common:]
        seen = known.seen[:common] + [see(message) for message in messages[common:]]
        rendered = render(source, seen, variables, earlier=known.rendered, common=common)
        self._keep(key, _Known(kept, seen, rendered), conversation.tenant)
        return rendered.text

    def _keep(self, key: Hashable, known: _Known, tenant: Hashable) -> None:
        with self._lock:
            before = self._known.get(key)
            if before is not None:
                self._drop(before)
            self._known[key], self._keys[known] = known, key
            self._sizes.add(known, tenant, known.characters)
            self._forget()

    def _forget(self) -> None:
        while self._sizes.size > self._max_characters:
            self._drop(self._sizes.first(by_size=True))

    def _drop(self, known: _Known) -> None:
        del self._known[self._keys.pop(known)]
        self._sizes.remove(known)


def _written(variables: Mapping[str, Any]) -> tuple[str, ...]:
    """The variables as texts, in which tools are not written anew."""
    tools = [tool for tool in variables.get("tools") or () if isinstance(tool, Definition)]
    others = {name: value for name, value in variables.items() if not tools or name != "tools"}
    return json.dumps(others), *(tool.as_json() for tool in tools)


def _common(some: tuple[Message, ...], others: tuple[Message, ...]) -> int:
    """How many of the first messages are the same."""
    length = min(len(some), len(others))
    if some[:length] == others[:length]:  # mostly they are, and the very same objects
        return length
    for at, (a, b) in enumerate(zip(some, others, strict=False)):
        if a is not b and a != b:
            return at
    return length
