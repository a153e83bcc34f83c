"""What `mainstem lint` says: a card for people, an object for programs. Plain text: nothing else must be installed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from mainstem.diagnosis import Place
from mainstem.lint import Finding, Level, LintResult, Occurrence, Scope

WIDTH = 80
_LABEL = 10
_SHOWN_PARTS = 3
_REGIONS = {
    Place.MODEL: "the model",
    Place.TOOLS: "the tools",
    Place.SYSTEM: "the system's text",
    Place.MESSAGES: "the history",
    Place.REPLY: "the reply as it was sent back",
}


def card(result: LintResult, counted_with: str, skipped: Sequence[str], fail_under: float | None) -> str:
    """The report for people, at most 80 characters wide where paths allow it."""
    return "\n".join(_lines(result, counted_with, skipped, fail_under))


def as_json(result: LintResult, counted_with: str, skipped: Sequence[str], fail_under: float | None) -> dict[str, Any]:
    """The report for programs: everything that the card says, and every single place."""
    return {
        "requests": result.requests,
        "conversations": result.conversations,
        "compared": result.compared,
        "counted_with": counted_with,
        "prompt_tokens": result.prompt_tokens,
        "sent_before_tokens": result.kept,
        "reusable_tokens": result.reused,
        "share": round(result.share, 6),
        "fail_under": fail_under,
        "passed": fail_under is None or result.share >= fail_under,
        "alarms": len(result.alarms),
        "findings": [_finding(finding) for finding in result.findings],
        "skipped": list(skipped),
    }


# -- for people --------------------------------------------------------------------------------------------------------


def _lines(result: LintResult, counted_with: str, skipped: Sequence[str], fail_under: float | None) -> Iterator[str]:
    yield (
        f"{_number(result.requests, 'request')} in {_number(result.conversations, 'conversation')}, "
        f"{result.prompt_tokens:,} tokens ({counted_with})"
    )
    if skipped:
        yield f"left out: {_number(len(skipped), 'file or line', 'files or lines')} without a request ({skipped[0]})"
    yield ""
    if not result.compared:
        yield "Every request stands alone: there is nothing to compare."
    else:
        lost = (result.kept - result.reused) / result.compared
        yield f"reusable  {result.share:.1%} of {result.kept:,} tokens that had been sent before"
        yield f"lost      {result.kept - result.reused:,} tokens, {lost:,.0f} a turn"
    if fail_under is not None:
        yield f"verdict   {'passed' if result.share >= fail_under else 'FAILED'}: --fail-under {fail_under:g}"
    alarms = result.alarms
    for number, finding in enumerate(alarms, 1):
        yield ""
        yield from _alarm(number, finding)
    notes = [finding for finding in result.findings if finding.level is Level.NOTE]
    if notes:
        yield ""
        yield "no alarm:"
        for finding in notes:
            yield from _note(finding)
    if result.compared and not result.findings:
        yield ""
        yield "Nothing changes that should not."


def _alarm(number: int, finding: Finding) -> Iterator[str]:
    first = finding.first
    cost = f"{finding.lost_per_turn:,.0f} tokens a turn"
    yield f"{number}. {finding.cause.label} in {_REGIONS.get(finding.place, finding.place)}: {cost}"
    yield _labelled("where", str(first.after))
    yield _labelled("", f"{first.difference.part}, character {first.difference.offset}")
    more = finding.parts[1:]
    if more:
        names = ", ".join(more[: _SHOWN_PARTS - 1])
        yield _labelled("", f"also {names}" + (f" and {len(more) - 2} more" if len(more) > 2 else ""))
    yield _labelled("how often", _how_often(finding))
    if first.difference.detail:
        yield from _wrapped("what", first.difference.detail)
    if first.difference.before:
        yield _labelled("before", f"{first.difference.before}")
    if first.difference.after:
        yield _labelled("after", f"{first.difference.after}")
    yield from _wrapped("fix", finding.fix)


def _note(finding: Finding) -> Iterator[str]:
    where = f"{finding.first.after} {finding.first.difference.part}"
    cost = f", {finding.lost_per_turn:,.0f} tokens a turn" if finding.lost_per_turn >= 1 else ""
    yield f"- {finding.cause.label}{cost}: {finding.reason}"
    yield f"  {where}"


def _how_often(finding: Finding) -> str:
    if finding.scope is Scope.CONVERSATIONS:
        return f"{_number(finding.times, 'conversation')} began otherwise than one before"
    return f"in {finding.times:,} of {_number(finding.compared, 'request')} that went on with a conversation"


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _labelled(label: str, text: str) -> str:
    return f"   {label:{_LABEL}}{text}"


def _wrapped(label: str, text: str) -> Iterator[str]:
    first, *rest = textwrap.wrap(text, WIDTH - _LABEL - 3, break_on_hyphens=False)
    yield _labelled(label, first)
    yield from (_labelled("", line) for line in rest)


# -- for programs ------------------------------------------------------------------------------------------------------


def _finding(finding: Finding) -> dict[str, Any]:
    difference = finding.first.difference
    return {
        "level": finding.level,
        "reason": finding.reason or None,
        "scope": finding.scope,
        "cause": finding.cause,
        "place": finding.place,
        "parts": finding.parts,
        "compared": finding.compared,
        "lost_tokens": finding.lost,
        "lost_tokens_per_turn": round(finding.lost_per_turn, 1),
        "fix": finding.fix,
        "openai_reason": difference.openai_reason,
        "anthropic_type": difference.anthropic_type,
        "occurrences": [_occurrence(occurrence) for occurrence in finding.occurrences],
    }


def _occurrence(occurrence: Occurrence) -> dict[str, Any]:
    difference = occurrence.difference
    return {
        "file": occurrence.after.file,
        "line" if occurrence.after.is_line else "request": occurrence.after.number,
        "compared_with": str(occurrence.before),
        "part": difference.part,
        "offset": difference.offset,
        "before": difference.before,
        "after": difference.after,
        "detail": difference.detail or None,
        "lost_tokens": occurrence.lost,
    }
