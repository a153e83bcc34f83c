"""All that changed between two requests in places that should not: the first difference, then what else there would be.

A difference hides those behind it. So each one that is found is undone, and the rest compared again. It knows pairs of
requests, and not which belong together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from mainstem.diagnosis import Difference, MessagePart, Place, Prompt, changes, differences
from mainstem.diagnosis.texts import common_prefix, excerpt
from mainstem.lint.sizes import Overlap, Sizes, items

_MAX_FAULTS = 12  # of one pair of requests


class Fault(NamedTuple):
    """One thing that changed.

    Attributes:
        difference: where and what.
        lost: tokens that it alone would cost: all that was sent before and stands behind it.
    """

    difference: Difference
    lost: int


class _Spot(NamedTuple):
    """A difference, and the character of the whole tool or message at which it is."""

    difference: Difference
    at: int


def faults(before: Prompt, after: Prompt, sizes: Sizes, overlap: Overlap) -> list[Fault]:
    """What changed, the costliest first; empty where the conversation only went on."""
    found = []
    for spot in _spots(before, after):
        found.append(Fault(spot.difference, _behind(spot, after, sizes, overlap)))
        if len(found) == _MAX_FAULTS:
            break
    return sorted(found, key=lambda fault: -fault.lost)


def _spots(before: Prompt, after: Prompt) -> Iterator[_Spot]:
    while True:
        difference = next((d for d in differences(before, after) if d.is_fault), None)
        if difference is None:
            return
        if difference.place is Place.MODEL:
            yield _Spot(difference, 0)
            after = replace(after, model=before.model)
        elif difference.place is Place.TOOLS:
            yield _Spot(difference, _parting(difference, before, after))
            after = replace(after, tools=before.tools)
        elif _is_whole(difference, before, after):
            yield _Spot(difference, _parting(difference, before, after))
            return  # messages came or went: there is no telling what else changed
        else:
            old, new = before.messages[difference.index], after.messages[difference.index]
            yield _Spot(difference, _parting(difference, before, after))
            yield from _others_within(difference, old, new)
            index = difference.index
            after = replace(after, messages=(*after.messages[:index], old, *after.messages[index + 1 :]))


def _others_within(difference: Difference, before: MessagePart, after: MessagePart) -> Iterator[_Spot]:
    """What else changed in the message in which this difference is the first, one of each class."""
    if [field.kind for field in before.fields] != [field.kind for field in after.fields]:
        return
    told, start = {difference.cause}, 0
    for old, new in zip(before.fields, after.fields, strict=True):
        for change in changes(old.text, new.text):
            if change.cause is None or change.cause in told:
                continue
            told.add(change.cause)
            part, offset = new.place_of(change.start[1])
            around = excerpt(old.text, change.start[0]), excerpt(new.text, change.start[1])
            other = replace(
                difference,
                cause=change.cause,
                part=part,
                offset=offset,
                before=around[0],
                after=around[1],
                detail="",
            )
            yield _Spot(other, start + change.start[1])
        start += len(new.text) + 1


def _is_whole(difference: Difference, before: Prompt, after: Prompt) -> bool:
    """Whether the difference is between messages as wholes, and not within one that both requests have."""
    index = difference.index
    if index >= min(len(before.messages), len(after.messages)):
        return True
    old, new = before.messages[index], after.messages[index]
    named_whole = difference.part == new.path and all(field.path != new.path for field in new.fields)
    return old.role != new.role or named_whole


def _parting(difference: Difference, before: Prompt, after: Prompt) -> int:
    """Characters that the items in which two requests part have in common at their beginnings."""
    olds, news = items(before), items(after)
    at = [difference.index + (0 if difference.place is Place.TOOLS else len(p.tools)) for p in (before, after)]
    if at[0] >= len(olds) or at[1] >= len(news) or olds[at[0]].role != news[at[1]].role:
        return 0
    return common_prefix(olds[at[0]].text, news[at[1]].text)


def _behind(spot: _Spot, after: Prompt, sizes: Sizes, overlap: Overlap) -> int:
    """Tokens that the later request has of the earlier one behind a difference."""
    difference = spot.difference
    if difference.place is Place.MODEL:
        return overlap.kept
    in_tools = difference.place is Place.TOOLS
    at = difference.index + (0 if in_tools else len(after.tools))
    if at >= len(overlap.per_item):
        return 0
    if in_tools and difference.index >= len(after.tools):  # tools are gone: what follows stands right behind
        return sum(overlap.per_item[at:])
    before_it = sizes.beginning(items(after)[at], spot.at)
    return sum(overlap.per_item[at + 1 :]) + max(0, overlap.per_item[at] - before_it)
