"""Classes of changes between two texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.diagnosis import Cause, changes
from mainstem.diagnosis.texts import common_prefix, common_suffix, excerpt

PAIRS = [
    ("2026-11-30T12:00:01Z", "2026-11-30T12:00:02Z", Cause.TIMESTAMP),
    ("2026-11-30 23:59:59", "2026-12-01 00:00:04", Cause.TIMESTAMP),
    ("Mon Nov 30 20:27:07 UTC 2026", "Mon Nov 30 20:29:43 UTC 2026", Cause.TIMESTAMP),
    ("November 30, 2026 at 9:59 AM", "November 30, 2026 at 10:00 AM", Cause.TIMESTAMP),
    ("Mon, 30 Nov 2026 12:00:01 GMT", "Tue, 01 Dec 2026 08:10:00 GMT", Cause.TIMESTAMP),
    ("10:59:59", "11:00:00", Cause.TIMESTAMP),
    ("1764504001", "1764504063", Cause.TIMESTAMP),
    ("2026-11-30", "2026-12-01", Cause.DATE),
    ("30 November 2026", "1 December 2026", Cause.DATE),
    ("Nov 30, 2026", "Dec 1, 2026", Cause.DATE),
    ("11/30/2026", "12/01/2026", Cause.DATE),
    ("Monday", "Tuesday", Cause.DATE),
    ("9f8b1c1e-6a54-4f0e-9f55-0a1d8b7a6c21", "0d3f5a7b-1c2d-4e5f-8a9b-7c6d5e4f3a2b", Cause.UUID),
    ("call_a8Xk29PqLm31", "call_Zz71hQ0pWe98", Cause.UUID),
    ("3f2a9c1b7d", "88e0c4d2aa", Cause.UUID),
    ("step 3 of 10", "step 4 of 10", Cause.COUNTER),
    ("9 calls left", "10 calls left", Cause.COUNTER),
    ("12,480 tokens used", "13,002 tokens used", Cause.COUNTER),
    ("0.53 dollars", "1.07 dollars", Cause.COUNTER),
    ("/home/ann/work/run-17/repo", "/home/ann/work/run-18/repo", Cause.PATH),
    ("/tmp/tmpab12xy9/repo", "/tmp/tmpq7w8e9r/repo", Cause.PATH),
    ("C:\\work\\one\\repo", "C:\\work\\two\\repo", Cause.PATH),
    ("a  b\tc", "a b c", Cause.WHITESPACE),
    ('{"a": 1, "b": [true, 1.5]}', '{"b": [true, 1.5], "a": 1}', Cause.KEY_ORDER),
    ('{"a": 1, "b": 2}', '{"a":1,"b":2}', Cause.WHITESPACE),
    ("bash, grep, sed", "grep, bash, sed", Cause.LISTING),
    ("blue is best", "red is best", None),
    ('{"a": 1}', '{"a": true}', None),
]
PLACES = ["{}", "{}\nThat is all.", "Rules.\nNow: {}; go on\nas before.", "Rules.\nNow: {}"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("before", "after", "cause"), PAIRS)
def test_the_class_of_a_change_wherever_it_stands(before: str, after: str, cause: Cause | None, place: str) -> None:
    found = changes(place.format(before), place.format(after))
    assert found[0].cause is cause
    if cause in (Cause.TIMESTAMP, Cause.DATE, Cause.UUID, Cause.PATH):
        assert len(found) == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("src/\nsetup.py\n", "src/\nsetup.py\nnotes.txt\n"),
        ("setup.py\nnotes.txt\n", "notes.txt\nsetup.py\n"),
        ("├── a.py\n└── b.py\n", "├── a.py\n├── ab.py\n└── b.py\n"),
        (" M a.py\n", " M a.py\n?? b.py\n"),
        ("- alpha\n- beta\n", "- beta\n- alpha\n"),
    ],
)
def test_entries_that_come_go_or_move_are_a_listing(before: str, after: str) -> None:
    found = changes(f"Files:\n{before}\nEnd of the list.", f"Files:\n{after}\nEnd of the list.")
    assert {change.cause for change in found} == {Cause.LISTING}


def test_lines_that_are_broken_elsewhere_are_whitespace_beside_another_change() -> None:
    assert changes("one two\nsame\nX", "one\ntwo\nsame\nY")[0].cause is Cause.WHITESPACE


def test_every_place_is_told() -> None:
    found = changes("at 10:00\nsame\nstep 3 and done\n", "at 10:01\nsame\nstep 4 and gone\n")
    assert [change.cause for change in found] == [Cause.TIMESTAMP, Cause.COUNTER, None]
    assert [(change.before, change.after) for change in found] == [("10:00", "10:01"), ("3", "4"), ("d", "g")]


@given(st.text(alphabet="ab1 :/\n-"), st.text(alphabet="ab1 :/\n-"))
def test_changes_lie_where_they_say(before: str, after: str) -> None:
    found = changes(before, after)
    assert bool(found) is (before != after)
    for change in found:
        assert before[change.start[0] :].startswith(change.before)
        assert after[change.start[1] :].startswith(change.after)
        assert change.before != change.after


@given(st.text(alphabet="ab"), st.text(alphabet="ab"))
def test_common_ends(before: str, after: str) -> None:
    at = common_prefix(before, after)
    assert before[:at] == after[:at]
    assert before[at : at + 1] != after[at : at + 1] or at == min(len(before), len(after))
    kept = common_suffix(before, after, min(len(before), len(after)) - at)
    assert before[len(before) - kept :] == after[len(after) - kept :]


def test_texts_of_a_megabyte_take_no_time() -> None:
    line = "x" * 80 + "\n"
    before = line * 12_000
    assert len(changes(before, before[:500_000] + "!" + before[500_000:])) == 1
    assert changes("a" * 1_000_000, "b" * 1_000_000)[0].cause is None


def test_an_excerpt_is_one_line() -> None:
    assert excerpt("a\nb", 0) == "a⏎b"
    assert excerpt("x" * 100, 50) == "…" + "x" * 60 + "…"
