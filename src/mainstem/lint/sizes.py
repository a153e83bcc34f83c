"""How many tokens of a request stand where a cache finds them, and how many would if nothing had changed before them.

Counts are of the parts' own texts, plus a few tokens for what a chat template writes around each message. Tools count
as standing before the system's text, where most templates and both hosted APIs put them. It knows no tokenizer: it is
given a function that counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from mainstem.diagnosis import MessagePart, Prompt, ToolPart, changes
from mainstem.diagnosis.texts import common_prefix, common_suffix

MESSAGE_TOKENS = 4  # role and marks around a message, in most templates
_SIMILAR = 0.4  # two texts of which less is equal are two texts, and not one that was edited


class Item(NamedTuple):
    """A tool or a message: what makes it the same one, its text, and whose message it is; no one's if it is a tool."""

    key: Any
    text: str
    role: str


class Overlap(NamedTuple):
    """What a request has in common with an earlier one, in tokens.

    Attributes:
        reused: at its beginning, up to the first difference; all that any prefix cache can reuse.
        kept: anywhere.
        per_item: what is kept of each tool and each message, in that order.
    """

    reused: int
    kept: int
    per_item: tuple[int, ...]

    @property
    def lost(self) -> int:
        """Tokens that were sent before, but are no longer where a cache looks for them."""
        return self.kept - self.reused


class Sizes:
    """Measures parts of prompts; each different text is counted once.

    Args:
        count: tokens of a text.
    """

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self._known: dict[str, int] = {}

    def text(self, text: str) -> int:
        """Tokens of a text."""
        size = self._known.get(text)
        if size is None:
            size = self._known[text] = self._count(text) if text else 0
        return size

    def message(self, message: MessagePart) -> int:
        """Tokens of a message."""
        return MESSAGE_TOKENS + sum(self.text(field.text) for field in message.fields)

    def tool(self, tool: ToolPart) -> int:
        """Tokens of a tool's definition."""
        return self.text(written(tool))

    def prompt(self, prompt: Prompt) -> int:
        """Tokens of a prompt."""
        return sum(map(self.tool, prompt.tools)) + sum(map(self.message, prompt.messages))

    def overlap(self, before: Prompt, after: Prompt) -> Overlap:
        """What the later prompt has of the earlier one's."""
        kept = (*self._kept_tools(before.tools, after.tools), *self._kept_messages(before.messages, after.messages))
        olds, news = items(before), items(after)
        at = next((i for i, (old, new) in enumerate(zip(olds, news, strict=False)) if old.key != new.key), None)
        shared = min(len(olds), len(news)) if at is None else at
        reused = sum(kept[:shared])
        if at is not None and olds[at].role == news[at].role:
            reused += min(kept[at], self.beginning(news[at], common_prefix(olds[at].text, news[at].text)))
        if before.model != after.model and None not in (before.model, after.model):
            reused = 0
        return Overlap(reused, sum(kept), kept)

    def beginning(self, item: Item, length: int) -> int:
        """Tokens of an item up to this character of its text."""
        return (MESSAGE_TOKENS if item.role else 0) + (self._count(item.text[:length]) if length else 0)

    def _kept_tools(self, before: Sequence[ToolPart], after: Sequence[ToolPart]) -> list[int]:
        known = {_canonical(tool) for tool in before}
        named = {tool.name: written(tool) for tool in before}
        return [
            self.tool(tool) if _canonical(tool) in known else self._common(named.get(tool.name, ""), written(tool))
            for tool in after
        ]

    def _kept_messages(self, before: Sequence[MessagePart], after: Sequence[MessagePart]) -> list[int]:
        kept = [0] * len(after)
        olds, news = [message.content for message in before], [message.content for message in after]
        same = next((i for i, (a, b) in enumerate(zip(olds, news, strict=False)) if a != b), min(len(olds), len(news)))
        kept[:same] = map(self.message, after[:same])
        for kind, i, j, k, m in SequenceMatcher(None, olds[same:], news[same:], autojunk=False).get_opcodes():
            pairs = zip(before[same + i : same + j], range(same + k, same + m), strict=False)
            for old, index in pairs if kind in ("equal", "replace") else ():
                kept[index] = self._kept_of(old, after[index])
        return kept

    def _kept_of(self, before: MessagePart, after: MessagePart) -> int:
        if before.content == after.content:
            return self.message(after)
        if before.role != after.role:
            return 0
        fields = zip(before.fields, after.fields, strict=False)
        common = sum(self._common(old.text, new.text) for old, new in fields if old.kind is new.kind)
        return MESSAGE_TOKENS + common if common else 0

    def _common(self, before: str, after: str) -> int:
        """Tokens of the later text that are in the earlier one too."""
        if before == after:
            return self.text(after)
        found = changes(before, after)
        if any(change.cause is None for change in found) and not similar(before, after):
            return 0
        changed = [change.after[common_prefix(change.before, change.after) :] for change in found]
        return max(0, self.text(after) - sum(map(self.text, changed)))


def similar(before: str, after: str) -> bool:
    """Whether two texts begin and end so much alike that one could have been edited into the other."""
    longer, shorter = max(len(before), len(after)), min(len(before), len(after))
    at = common_prefix(before, after)
    return bool(shorter) and at + common_suffix(before, after, shorter - at) >= _SIMILAR * longer


def written(tool: ToolPart) -> str:
    """A tool's definition as text, with its keys in the order in which they were sent."""
    return json.dumps(tool.definition, ensure_ascii=False)


def item_text(message: MessagePart) -> str:
    """A message's texts in one."""
    return "\n".join(field.text for field in message.fields)


def items(prompt: Prompt) -> list[Item]:
    """Tools and messages, in the order in which they are counted."""
    tools = [Item((tool.name, written(tool)), written(tool), "") for tool in prompt.tools]
    return tools + [Item(message.content, item_text(message), message.role) for message in prompt.messages]


def _canonical(tool: ToolPart) -> str:
    return json.dumps([tool.name, tool.definition], sort_keys=True)
