"""A request's cache misses as a card for people. It knows the JSON form of an explanation, and how to lay it out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any

from mainstem.explain import MissCause

WIDTH = 100
_INDENT = " " * 9


def card(told: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a card.

    Args:
        told: what `GET /cache/explain/{id}` says.
    """
    yield f"{told['id']}: {told['cached_tokens']:,} of {told['prompt_tokens']:,} prompt tokens were cached"
    uncached = told["uncached_tokens"]
    if uncached:
        seconds = f" in {_seconds(told['prefill_seconds'])}" if told["prefill_seconds"] else ""
        yield f"{uncached:,} {'was' if uncached == 1 else 'were'} computed{seconds}:"
    for cause in told["causes"]:
        yield ""
        yield from _cause(cause, told)
    yield ""


def summary(told: Mapping[str, Any]) -> str:
    """A card in one line."""
    causes = ", ".join(f"{cause['tokens']:,} {_label(cause)}" for cause in told["causes"])
    return f"{told['cached_tokens']:>7,} of {told['prompt_tokens']:>7,} cached; {causes or 'nothing computed'}"


def _cause(cause: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[str]:
    share = f"  {_seconds(cause['seconds'])}" if cause["seconds"] else ""
    yield f"{cause['tokens']:>7,}  {_label(cause)}{share}"
    for line in _details(cause, told):
        yield from _wrapped(line)
    if cause["fix"]:
        yield from _wrapped(f"fix: {cause['fix']}")


def _wrapped(text: str) -> list[str]:
    """A text in lines, broken at spaces alone, so that an id or a flag in it can be copied."""
    return wrap(text, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT + "  ", break_on_hyphens=False)


def _details(cause: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[str]:
    match MissCause(cause["cause"]):
        case MissCause.DIVERGED:
            yield from _difference(told)
        case MissCause.EVICTED | MissCause.EXPIRED | MissCause.RESET:
            yield from _fate(cause)
        case MissCause.IN_FLIGHT:
            yield f"by {cause['computed_by']}"
        case MissCause.OTHER_NAMESPACE:
            yield "another tenant, or another cache_salt, has them"
        case MissCause.ROUNDING:
            yield from _rounding(cause, told)
        case MissCause.FIRST_SEEN | MissCause.NEVER_CACHED:
            pass


def _difference(told: Mapping[str, Any]) -> Iterator[str]:
    difference, compared = told["first_difference"], told["compared_with"]
    if compared is not None:
        yield f"{compared['id']} has them too, but {compared['common_tokens']:,} tokens after the beginning they part"
    if difference is None:
        return
    if difference["part"]:
        where = f"token {difference['token_in_part']} of {difference['part']}"
    else:
        where = f"token {difference['token']}"
    change = difference["change"]
    yield f"first difference: {where}" + (f", {change['label']}" if change else "")
    if change and change["detail"]:
        yield change["detail"]
    shown = change if change and (change["earlier"] or change["now"]) else difference
    yield f"earlier: {_one_line(shown['earlier'])}"
    yield f"now:     {_one_line(shown['now'])}"


def _fate(cause: Mapping[str, Any]) -> Iterator[str]:
    at = datetime.fromtimestamp(cause["at"], UTC).astimezone().strftime("%H:%M:%S")
    room = f", to make room for {cause['room_for']}" if cause.get("room_for") else ""
    why = "" if cause["reason"] in ("lru", "expired", "reset") else f" ({cause['reason']})"
    yield f"at {at}, after nobody had used them for {_seconds(cause['idle_seconds'])}{room}{why}"


def _rounding(cause: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[str]:
    if cause["first_token"] < told["prompt_tokens"] - 1:
        yield "they are known, but only whole pages (or blocks) of the cache are reused"
    yield "the last token is computed all the same: from it the model says how the reply begins"


def _label(cause: Mapping[str, Any]) -> str:
    change = f" ({cause['change'].replace('_', ' ')})" if cause.get("change") else ""
    return MissCause(cause["cause"]).label + change


def _one_line(text: str) -> str:
    return re.sub(r"\s", lambda match: "⏎" if match[0] == "\n" else " ", text)


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min"
