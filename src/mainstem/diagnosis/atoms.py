"""Texts that are different at every request by nature: clock times, dates, ids, paths, numbers.

It knows their forms, and nothing of where they stand.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mainstem.diagnosis.causes import Cause

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_WEEKDAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_NUMERIC_DATE = r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}"
_WORDED_DATE = (
    rf"(?:{_WEEKDAY},? +)?(?:\d{{1,2}}(?:st|nd|rd|th)? +{_MONTH}|{_MONTH} +\d{{1,2}}(?:st|nd|rd|th)?)(?:,? +\d{{4}})?"
)
_DATE = rf"(?:{_WORDED_DATE}|{_NUMERIC_DATE})"
_ZONE = r"(?: ?(?:Z|UTC|GMT|[A-Z]{3,4}|[+-]\d{2}:?\d{2})\b)?"
_TIME = rf"\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?:[.,]\d+)?(?: ?[AaPp]\.?[Mm]\b\.?)?{_ZONE}"
# A run of characters that a path may have, with a slash in it.
_PATH = r"""[^\s"'`<>|,;()\[\]{}=*]*[/\\][^\s"'`<>|,;()\[\]{}*]*"""

_FORMS: tuple[tuple[Cause, re.Pattern[str]], ...] = tuple(
    (cause, re.compile(form))
    for cause, form in (
        (Cause.TIMESTAMP, rf"\b{_DATE}(?:T|[ ,]+(?:at +)?){_TIME}(?: \d{{4}}\b)?"),
        (Cause.UUID, r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
        (Cause.TIMESTAMP, rf"(?<![\w:.]){_TIME}(?![\w:])"),
        (Cause.TIMESTAMP, r"(?<![\w.])1[4-9]\d{8}(?:\d{3})?(?:\.\d+)?(?![\w])"),  # seconds or milliseconds since 1970
        (Cause.DATE, rf"\b{_DATE}(?![\w])"),
        (Cause.DATE, rf"\b{_WEEKDAY}\b"),
        (Cause.PATH, _PATH),
        (Cause.UUID, r"(?i)(?<![0-9a-z])(?:0x)?(?=[0-9a-f]*\d)[0-9a-f]{7,64}(?![0-9a-z])"),
        (Cause.UUID, r"[A-Za-z0-9_-]{10,}"),
        (Cause.COUNTER, r"\d(?:[\d,_.]*\d)?"),
    )
)
_REACH = 300  # no form is longer


class Atom(NamedTuple):
    """A text of one of the forms: where it begins in both texts, where it ends in each, and what it is."""

    start: int
    before_end: int
    after_end: int
    cause: Cause


def atom_at(before: str, after: str, at: int) -> Atom | None:
    """What the first difference of two texts, at character `at`, is a part of; None if it is of no known form."""
    for cause, form in _FORMS:
        spans = _spans(form, before, at)
        for start, after_end in _spans(form, after, at).items():
            before_end = spans.get(start)
            if before_end is None:
                continue
            told = before[start:before_end], after[start:after_end]
            if told[0] != told[1] and _fits(cause, form, *told):
                return Atom(start, before_end, after_end, cause)
    return None


def _spans(form: re.Pattern[str], text: str, at: int) -> dict[int, int]:
    """Where matches that touch `at` begin, and where they end."""
    found = form.finditer(text, max(0, at - _REACH), at + _REACH)
    return {match.start(): match.end() for match in found if match.start() <= at <= match.end()}


def _fits(cause: Cause, form: re.Pattern[str], before: str, after: str) -> bool:
    both = (before, after)
    if cause is Cause.PATH:
        # Neither addresses nor fractions nor words with a slash between them.
        return not any("://" in text or not re.search(r"[A-Za-z]", text) for text in both) and any(
            re.match(r"~?[/\\]|\.{1,2}[/\\]|[A-Za-z]:\\", text) or len(re.findall(r"[/\\]", text)) > 1 for text in both
        )
    if form.pattern == r"[A-Za-z0-9_-]{10,}":
        return abs(len(before) - len(after)) <= 2 and all(_looks_random(text) for text in both)
    return True


def _looks_random(text: str) -> bool:
    """Whether digits and letters are mixed as no word does it."""
    return len(re.findall(r"\d", text)) >= 2 and len(re.findall(r"[A-Za-z]\d|\d[A-Za-z]", text)) >= 2
