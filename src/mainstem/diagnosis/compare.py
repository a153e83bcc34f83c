"""What changed from one request to a later one: the first difference of their parts, or of what became of them.

Parts are compared first. Where they only grew, the rendered texts say whether the template broke the prefix; where
those agree, it was the tokens. It knows nothing of caches: whether a token was still in memory is another question.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mainstem.diagnosis.causes import Cause, Place
from mainstem.diagnosis.difference import Difference, in_texts
from mainstem.diagnosis.history import compare_messages
from mainstem.diagnosis.prompt import Kind, Prompt
from mainstem.diagnosis.texts import changes, common_prefix
from mainstem.diagnosis.tools import compare_tools

_WORD_END = re.compile(r"\w\W|\S\s")


class Rendered(NamedTuple):
    """A prompt and the text that the chat template made of it."""

    prompt: Prompt
    text: str


def differences(before: Prompt, after: Prompt, *, canonical_tools: bool = False) -> list[Difference]:
    """The first difference of each region: model, tools, messages (system and history as one). Empty if all is equal.

    Args:
        before: the earlier request; `Prompt.with_reply` adds what was answered.
        after: the later one.
        canonical_tools: the order of keys in tools' schemas does not matter, because the server sorts them.
    """
    found = []
    if before.model is not None and after.model is not None and before.model != after.model:
        found.append(Difference(Cause.MODEL_CHANGED, Place.MODEL, "model", 0, before.model, after.model))
    tools = compare_tools(before.tools, after.tools, canonical=canonical_tools)
    messages = compare_messages(before, after)
    return found + [difference for difference in (tools, messages) if difference is not None]


def compare(before: Prompt, after: Prompt, *, canonical_tools: bool = False) -> Difference | None:
    """The first difference of two requests: a fault if there is one, else how the conversation went on, else None.

    Tools count as standing before the system's text; `compare_rendered` looks where they really are.
    """
    found = differences(before, after, canonical_tools=canonical_tools)
    faults = [difference for difference in found if difference.is_fault]
    return next(iter(faults or found), None)


def compare_rendered(
    before: Rendered, after: Rendered, *, at: int | None = None, canonical_tools: bool = False
) -> Difference | None:
    """The first difference of two requests whose rendered prompts are known.

    Args:
        before: the earlier request. Its text should have the reply that was generated at its end, if there is one.
        after: the later one.
        at: the character of the later text at which the first token that differs begins; None to go by texts alone.
            Where a whole word from there on is the same text, it was tokenized otherwise.
        canonical_tools: as for `differences`.
    """
    shared = common_prefix(before.text, after.text)
    if at is not None and _WORD_END.search(after.text, at, shared):
        return in_texts(Cause.RETOKENIZED, Place.TOKENS, "text", (before.text, after.text), (at, at))
    found = differences(before.prompt, after.prompt, canonical_tools=canonical_tools)
    faults = [difference for difference in found if difference.is_fault]
    if faults:
        return min(faults, key=lambda fault: _rank(fault, before, shared))
    if shared == len(before.text):
        return found[0] if found else None
    if not found:
        return None if shared >= _end_of(after, len(after.prompt.messages)) else _template(before, after, shared)
    branched = found[0].cause is Cause.BRANCHED and shared >= _end_of(after, found[0].index)
    return found[0] if branched else _template(before, after, shared)


def _rank(fault: Difference, before: Rendered, shared: int) -> tuple[bool, bool]:
    """Order of faults: what the texts part at first."""
    if fault.place is Place.MODEL:
        return False, False
    stretch = _system_stretch(before)
    in_system = stretch is not None and stretch[0] <= shared <= stretch[1]
    return True, (fault.place is not Place.SYSTEM) if in_system else (fault.place is not Place.TOOLS)


def _system_stretch(rendered: Rendered) -> tuple[int, int] | None:
    prompt = rendered.prompt
    if not prompt.num_system:
        return None
    text = prompt.messages[0].text().strip()
    start = rendered.text.find(text) if text else -1
    return None if start < 0 else (start, start + len(text))


def _end_of(rendered: Rendered, count: int) -> int:
    """Where the text of the first `count` messages ends; what comes then is the next one, or asks for a reply."""
    end = 0
    for message in rendered.prompt.messages[:count]:
        text = message.text().strip()
        start = rendered.text.find(text, end)
        end = end if start < 0 else start + len(text)
    return end


def _template(before: Rendered, after: Rendered, at: int) -> Difference | None:
    """Parts only grew, and yet the texts part before the end of the earlier one."""
    texts = before.text, after.text
    thoughts = (
        (field.path, field.text.strip())
        for message in before.prompt.messages
        for field in message.fields
        if field.kind is Kind.REASONING
    )
    for path, thought in thoughts:
        if thought and texts[0].count(thought) > texts[1].count(thought):
            return in_texts(
                Cause.REASONING_DROPPED, Place.TEMPLATE, path, texts, (at, at), detail="by the chat template"
            )
    first = changes(*texts)[0]
    detail = first.cause.label if first.cause is not None else ""
    return in_texts(Cause.TEMPLATE, Place.TEMPLATE, "template", texts, (at, at), detail=detail)
