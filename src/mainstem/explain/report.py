"""A record as a JSON object, for clients, the command line and the log: what was cached, what was not, and why.

It knows who may be told what: nobody learns from a reply what is cached in another namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mainstem.diagnosis import Cause
from mainstem.explain.causes import EVICTED_FIXES, MissCause
from mainstem.explain.diagnosis import FirstDifference
from mainstem.explain.records import Comparison, Miss, Record, tokens_by_cause
from mainstem.tree import EvictionReason
from mainstem.tree.ghosts import Fate

# Most stretches that are listed one by one.
MAX_STRETCHES = 100


def public_totals(records: Iterable[Record]) -> dict[str, int]:
    """Uncached tokens by cause, as a reply may tell them."""
    totals: dict[str, int] = {}
    for record in records:
        for cause, tokens in tokens_by_cause(record.public_misses).items():
            totals[cause.value] = totals.get(cause.value, 0) + tokens
    return totals


def cause_in_a_word(records: Sequence[Record]) -> str:
    """The cause of most uncached tokens, with the class of the change if that is what it was, as in `diverged:uuid`."""
    totals = public_totals(records)
    cause = max(totals, key=lambda each: totals[each], default=None)
    if cause is None:
        return "none"
    if cause == MissCause.DIVERGED:
        changed = max(records, key=lambda record: tokens_by_cause(record.public_misses).get(MissCause.DIVERGED, 0))
        if changed.difference is not None and changed.difference.change is not None:
            return f"{cause}:{changed.difference.change.cause.value}"
    return cause


def explanation(
    record: Record,
    *,
    difference: FirstDifference | None = None,
    parts: Sequence[tuple[str, int, int]] = (),
    in_confidence: bool = False,
    same_tenant: Callable[[str], bool] = lambda _: False,
) -> dict[str, Any]:
    """All that is known of a request.

    Args:
        record: of the request.
        difference: from its closest earlier request.
        parts: of the prompt, with the tokens that each begins and ends before.
        in_confidence: for someone who may know what other namespaces have cached.
        same_tenant: whether the request with this id is the reader's too; others are not named.
    """
    misses = record.misses if in_confidence else record.public_misses
    causes = [_cause(record, misses, cause, difference, same_tenant) for cause in tokens_by_cause(misses)]
    return {
        "object": "cache.explanation",
        "id": record.id,
        "created": int(record.created),
        "prompt_tokens": record.num_prompt,
        "cached_tokens": record.num_cached,
        "uncached_tokens": record.num_uncached,
        "prefill_seconds": round(record.prefill_s, 4),
        "causes": sorted(causes, key=lambda cause: -cause["tokens"]),
        "compared_with": _compared(record.closest),
        "first_difference": _difference(difference, parts),
        "parts": [{"part": part, "tokens": [start, stop]} for part, start, stop in parts],
        "uncached": [{"tokens": [miss.start, miss.stop], "cause": miss.cause.value} for miss in misses[:MAX_STRETCHES]],
    }


def _cause(
    record: Record,
    misses: Sequence[Miss],
    cause: MissCause,
    difference: FirstDifference | None,
    same_tenant: Callable[[str], bool],
) -> dict[str, Any]:
    mine = [miss for miss in misses if miss.cause is cause]
    tokens = sum(miss.stop - miss.start for miss in mine)
    told: dict[str, Any] = {
        "cause": cause.value,
        "tokens": tokens,
        "seconds": round(record.prefill_s * tokens / record.num_uncached, 4),
        "first_token": mine[0].start,
        "fix": cause.fix,
    }
    fate = _main_fate(mine)
    if fate is not None:
        if cause is MissCause.EVICTED:
            told["fix"] = EVICTED_FIXES.get(fate.reason, cause.fix)
        longest = max((miss.fate.idle_s for miss in mine if miss.fate is not None), default=0.0)
        told |= {
            "reason": fate.reason.value,
            "at": int(record.created - fate.ago_s(record.noted)),
            "idle_seconds": round(longest, 3),
        }
        if fate.room_for is not None:
            told["room_for"] = fate.room_for if same_tenant(fate.room_for) else "another tenant's request"
    if cause is MissCause.IN_FLIGHT:
        told["computed_by"] = mine[0].other
    if cause is MissCause.DIVERGED and difference is not None and difference.change is not None:
        told |= {"change": difference.change.cause.value, "fix": difference.change.fix}
    return told


def _main_fate(misses: Sequence[Miss]) -> Fate | None:
    """The first fate of those with the reason that most tokens were lost for; None if none was ever cached."""
    lost: dict[EvictionReason, int] = {}
    for miss in misses:
        if miss.fate is not None:
            lost[miss.fate.reason] = lost.get(miss.fate.reason, 0) + miss.stop - miss.start
    most = max(lost, key=lambda reason: lost[reason], default=None)
    return next((miss.fate for miss in misses if miss.fate is not None and miss.fate.reason is most), None)


def _compared(comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    return {
        "id": comparison.id,
        "common_tokens": comparison.common,
        "tokens": comparison.length,
        "lost_tokens": comparison.lost,
    }


def _difference(difference: FirstDifference | None, parts: Sequence[tuple[str, int, int]]) -> dict[str, Any] | None:
    if difference is None:
        return None
    at = difference.token
    part, start = next(((name, start) for name, start, stop in parts if start <= at < stop), ("", 0))
    change = difference.change
    told: dict[str, Any] = {
        "token": at,
        "part": part,
        "token_in_part": at - start,
        "earlier": difference.earlier,
        "now": difference.now,
        "change": None,
    }
    if change is not None and change.cause not in (Cause.APPENDED, Cause.BRANCHED):
        told["change"] = {
            "class": change.cause.value,
            "label": change.cause.label,
            "place": change.place.value,
            "part": change.part,
            "character": change.offset,
            "earlier": change.before,
            "now": change.after,
            "detail": change.detail,
            "fix": change.fix,
        }
    return told
