"""What is told of a record, and to whom."""

from __future__ import annotations

from typing import Any

import pytest

from mainstem.explain import Miss, MissCause, Record
from mainstem.explain.report import MAX_STRETCHES, explanation
from mainstem.tree import EvictionReason
from mainstem.tree.ghosts import Fate


def record_of(*misses: Miss) -> Record:
    return Record("r", 0, (), 100.0, 50.0, misses[-1].stop, 0, misses=misses, public_misses=misses)


def evicted(start: int, stop: int, idle_s: float) -> Miss:
    return Miss(start, stop, MissCause.EVICTED, Fate(EvictionReason.LRU, 40.0, idle_s, "theirs"))


def cause_of(record: Record, **said: Any) -> dict[str, Any]:
    (cause,) = explanation(record, **said)["causes"]
    told: dict[str, Any] = cause
    return told


def test_whose_room_it_was_is_told_to_the_same_tenant_only() -> None:
    record = record_of(evicted(0, 10, 1.0))
    assert cause_of(record)["room_for"] == "another tenant's request"
    assert cause_of(record, same_tenant=lambda name: name == "theirs")["room_for"] == "theirs"


def test_of_several_the_longest_idle_time_is_told() -> None:
    assert cause_of(record_of(evicted(0, 10, 1.0), evicted(10, 20, 9.0), evicted(20, 30, 4.0)))["idle_seconds"] == 9.0


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        (EvictionReason.LRU, "--kv-memory"),
        (EvictionReason.QUOTA, "--tenant-quota"),
        (EvictionReason.ENDED, "cache_hints.end"),
        (EvictionReason.SUPERSEDED, "cache_hints.session_id"),
        (EvictionReason.REWRITTEN, "end prompts as the next ones go on"),
    ],
)
def test_the_fix_is_for_the_reason_that_most_tokens_were_evicted_for(reason: EvictionReason, fix: str) -> None:
    other = EvictionReason.QUOTA if reason is EvictionReason.LRU else EvictionReason.LRU
    fates = [Fate(each, 40.0, 1.0, None) for each in (other, reason)]
    misses = [
        Miss(start, stop, MissCause.EVICTED, fate)
        for (start, stop), fate in zip([(0, 10), (10, 30)], fates, strict=True)
    ]
    told = cause_of(record_of(*misses))
    assert told["reason"] == reason.value
    assert fix in told["fix"]


def test_who_was_computing_the_tokens_is_told() -> None:
    record = record_of(Miss(0, 10, MissCause.IN_FLIGHT, other="running"))
    assert cause_of(record)["computed_by"] == "running"


def test_stretches_are_bounded() -> None:
    misses = [Miss(i, i + 1, (MissCause.FIRST_SEEN, MissCause.DIVERGED)[i % 2]) for i in range(2 * MAX_STRETCHES)]
    told = explanation(record_of(*misses))
    assert len(told["uncached"]) == MAX_STRETCHES
    assert sum(cause["tokens"] for cause in told["causes"]) == 2 * MAX_STRETCHES
