"""What is remembered of rendered prompts is bounded, and no tenant loses what it has to another that has more."""

from __future__ import annotations

from typing import Any

import pytest

from mainstem.tokens import Conversation, Message
from mainstem.tokens.render_memory import MESSAGE_CHARACTERS, RenderMemory

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
LENGTH = 1000


class Seeing:
    """Renders through a memory, and counts the messages that were not known."""

    def __init__(self, *, room_for: float) -> None:
        self.memory = RenderMemory(max_characters=int(room_for * (LENGTH + MESSAGE_CHARACTERS + 10)))
        self._seen = 0

    def new(self, name: str, *namespace: str) -> int:
        """How many messages of a conversation were not known; it has one."""
        before = self._seen
        conversation = Conversation((Message(role="user", parts=(name.ljust(LENGTH, "."),)),), namespace=namespace)
        assert self.memory.render(TEMPLATE, conversation, {}, self._see) == f"user: {name.ljust(LENGTH, '.')}\n"
        return self._seen - before

    def _see(self, message: Message) -> dict[str, Any]:
        self._seen += 1
        return {"role": message.role, "content": message.text}


def test_what_was_rendered_is_known_until_there_is_too_much() -> None:
    seeing = Seeing(room_for=2)
    assert [seeing.new(name) for name in "aabbaca"] == [1, 0, 1, 0, 0, 1, 0]
    assert seeing.new("b") == 1  # the least recently used


@pytest.mark.parametrize("salt", [(), ("salt", "x")])
def test_one_tenant_cannot_push_out_what_another_has(salt: tuple[str, ...]) -> None:
    seeing = Seeing(room_for=4)
    seeing.new("a", "tenant", "alice")
    for i in range(20):
        seeing.new(str(i), "tenant", "bob", *salt)
    assert seeing.new("a", "tenant", "alice") == 0
    assert [seeing.new(str(i), "tenant", "bob", *salt) for i in (19, 18, 17)] == [0, 0, 0]


def test_what_is_too_long_is_not_remembered_at_all() -> None:
    seeing = Seeing(room_for=0.5)
    assert [seeing.new("a"), seeing.new("a")] == [1, 1]


def test_a_smaller_bound_forgets_at_once() -> None:
    seeing = Seeing(room_for=2)
    seeing.new("a")
    seeing.memory.remember_at_most(0)
    assert seeing.new("a") == 1
