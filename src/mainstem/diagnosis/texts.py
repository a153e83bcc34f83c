"""What changed between two texts, place by place, and of which class each change is.

Lines that are in both are found first, then the changes within lines. It knows nothing of prompts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from mainstem.diagnosis.atoms import atom_at
from mainstem.diagnosis.causes import Cause

_MAX_LINES = 1_000  # more changed lines are one change: aligning them takes too long
_MAX_CHANGES = 200
_AROUND = 40
# A line of `ls`, `tree`, `find`, `git status` or a bulleted list of names.
_ENTRY = re.compile(
    r"""\s*(?:[-*•+]\s+|[│├└─|`\s]+|\d+[.)]\s+|[-dlbcps][rwxsStT-]{9}[.+@]?\s.*\s|[ MADRCU?!]{2}\s)?"""
    r"""[\w.@~+/\\-]+(?:\.\w+|[/*@]|\([^)]*\))?\s*"""
)


class Change(NamedTuple):
    """One place in which two texts differ.

    Attributes:
        start: where it begins in the earlier and in the later text.
        before, after: what stands there; one of them may be empty.
        cause: None where it is an edit of no special kind.
    """

    start: tuple[int, int]
    before: str
    after: str
    cause: Cause | None


def common_prefix(before: str, after: str) -> int:
    """How many characters two texts begin with in common."""
    low, high = 0, min(len(before), len(after))
    while low < high:  # comparing slices is far faster than comparing characters
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix(before: str, after: str, at_most: int) -> int:
    """How many characters two texts end with in common, no more than `at_most`."""
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        if before[len(before) - middle : len(before) - low] == after[len(after) - middle : len(after) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def excerpt(text: str, at: int) -> str:
    """The text around a character, on one line, with dots where something is left out."""
    start, stop = max(0, at - _AROUND // 2), min(len(text), at + _AROUND)
    inner = re.sub(r"\s", _visible, text[start:stop])
    return ("…" if start else "") + inner + ("…" if stop < len(text) else "")


def same_json(before: str, after: str) -> Cause | None:
    """Whether two texts are one JSON object or list, written in two ways; `KEY_ORDER` or `WHITESPACE` if they are."""
    if before.lstrip()[:1] not in ("{", "[") or after.lstrip()[:1] not in ("{", "["):
        return None
    try:
        values = json.loads(before), json.loads(after)
    except (ValueError, RecursionError):
        return None
    if not _equal(*values):
        return None
    return Cause.WHITESPACE if _squeezed(before) == _squeezed(after) else Cause.KEY_ORDER


def changes(before: str, after: str) -> list[Change]:
    """The places in which two texts differ, first one first; empty if they are equal."""
    if before == after:
        return []
    at = common_prefix(before, after)
    whole = same_json(before, after)
    if whole is None and _squeezed(before) == _squeezed(after):
        whole = Cause.WHITESPACE
    if whole is not None:
        end = common_suffix(before, after, min(len(before), len(after)) - at)
        return [Change((at, at), before[at : len(before) - end], after[at : len(after) - end], whole)]
    found: list[Change] = []
    for change in _line_changes(before, after, at):
        found.append(change)
        if len(found) == _MAX_CHANGES:
            break
    return found


def _line_changes(before: str, after: str, at: int) -> Iterator[Change]:
    """Changes of texts whose first `at` characters are equal."""
    start = before.rfind("\n", 0, at) + 1
    olds, news = _lines(before[start:]), _lines(after[start:])
    shared = next(
        (i for i, (old, new) in enumerate(zip(reversed(olds), reversed(news), strict=False)) if old != new), 0
    )
    middle = olds[: len(olds) - shared], news[: len(news) - shared]
    if _reordered(*middle):
        yield _block(middle[0], middle[1], (start, start), Cause.LISTING)
    elif max(map(len, middle)) > _MAX_LINES:
        yield _block(middle[0], middle[1], (start, start), None)
    else:
        yield from _aligned(middle[0], middle[1], (start, start))


def _aligned(olds: Sequence[str], news: Sequence[str], start: tuple[int, int]) -> Iterator[Change]:
    old_at, new_at = [start[0]], [start[1]]
    for line in olds:
        old_at.append(old_at[-1] + len(line))
    for line in news:
        new_at.append(new_at[-1] + len(line))
    for kind, i, j, k, m in SequenceMatcher(None, olds, news).get_opcodes():
        if kind == "equal":
            continue
        if j - i == m - k and not _reordered(olds[i:j], news[k:m]):
            for old, new, a, b in zip(olds[i:j], news[k:m], old_at[i:j], new_at[k:m], strict=True):
                yield from _within_line(old, new, (a, b))
        else:
            yield _block(olds[i:j], news[k:m], (old_at[i], new_at[k]), None)


def _within_line(old: str, new: str, start: tuple[int, int]) -> Iterator[Change]:
    a = b = 0  # how far both lines have been told
    while old[a:] != new[b:]:
        # Aligned so that one offset serves both: what is behind us does not matter, but its length does.
        left, right = old[a:], new[b:]
        at = common_prefix(left, right)
        atom = atom_at(left, right, at)
        if atom is None:
            end = common_suffix(left, right, min(len(left), len(right)) - at)
            gone, come = left[at : len(left) - end], right[at : len(right) - end]
            yield Change((start[0] + a + at, start[1] + b + at), gone, come, _inline_cause(old, new, left, right))
            return
        places = (start[0] + a + atom.start, start[1] + b + atom.start)
        yield Change(places, left[atom.start : atom.before_end], right[atom.start : atom.after_end], atom.cause)
        a, b = a + atom.before_end, b + atom.after_end


def _inline_cause(old: str, new: str, left: str, right: str) -> Cause | None:
    """The class of a change within a line that is of no known form."""
    if _squeezed(left) == _squeezed(right):
        return Cause.WHITESPACE
    inner = _json_within(old), _json_within(new)
    if inner[0] and inner[1] and (cause := same_json(*inner)):
        return cause
    words = re.findall(r"[^\s,;]+", left), re.findall(r"[^\s,;]+", right)
    if len(words[0]) > 1 and sorted(words[0]) == sorted(words[1]):
        return Cause.LISTING
    return Cause.LISTING if _are_entries([old, new]) and "\n" in old + new else None


def _block(olds: Sequence[str], news: Sequence[str], start: tuple[int, int], cause: Cause | None) -> Change:
    before, after = "".join(olds), "".join(news)
    if cause is None and _squeezed(before) == _squeezed(after):
        cause = Cause.WHITESPACE
    if cause is None and _are_entries([*olds, *news]):
        cause = Cause.LISTING
    at = common_prefix(before, after)
    return Change((start[0] + at, start[1] + at), before[at:], after[at:], cause)


def _reordered(olds: Sequence[str], news: Sequence[str]) -> bool:
    """Whether the lines are the same ones in another order."""
    old, new = [line.strip() for line in olds if line.strip()], [line.strip() for line in news if line.strip()]
    return len(old) > 1 and len(old) == len(new) and old != new and sorted(old) == sorted(new)


def _are_entries(lines: Sequence[str]) -> bool:
    """Whether every line could be one of a listing, and at least one has the look of a file's name."""
    told = [line for line in lines if line.strip()]
    return (
        bool(told)
        and all(len(line) < 300 and _ENTRY.fullmatch(line) for line in told)
        and any(re.search(r"[./\\_]\w|^\s*[-*•+│├└]", line) for line in told)
    )


def _lines(text: str) -> list[str]:
    """Lines with their breaks."""
    *lines, last = text.split("\n")
    return [line + "\n" for line in lines] + ([last] if last else [])


def _json_within(line: str) -> str:
    """From the first bracket to the last."""
    starts = [line.find(bracket) for bracket in "{[" if bracket in line]
    return line[min(starts) : max(line.rfind("}"), line.rfind("]")) + 1] if starts else ""


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _equal(one: object, other: object) -> bool:
    """Equality of JSON values that tells `true` from `1` and `1` from `1.0`."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _visible(match: re.Match[str]) -> str:
    return {"\n": "⏎", "\t": "⇥"}.get(match[0], " ")
