"""Which requests are of one conversation, and what comes of saying when one is over."""

from __future__ import annotations

import pytest

from mainstem.bench.trace import EndBit, measure
from mainstem.bench.trace.curves import cache_hits
from mainstem.bench.trace.sessions import find_turns, hits_with_end_bit
from mainstem.tree import RadixCache
from tests.bench.trace.support import trace_of


def test_a_request_goes_on_with_the_conversation_that_brought_its_last_known_block() -> None:
    trace = trace_of([[1, 2], [5], [1, 2, 3], [1, 2, 3, 4], [5, 6]] + [[100 + i] for i in range(300)])
    turns = find_turns(trace)[:5]
    assert [turn.session for turn in turns] == [0, 1, 0, 0, 1]
    assert [turn.is_last for turn in turns] == [False, False, False, True, True]


def test_what_very_many_prompts_begin_with_is_nobodys() -> None:
    trace = trace_of([[1, 10 + i] for i in range(200)])
    assert len({turn.session for turn in find_turns(trace)}) == 200


def conversations() -> list[list[int]]:
    """Prompts of which every second conversation is asked once, and the others return much later."""
    once = [[1000 + i, 1] for i in range(200)]
    first = [[i, 2] for i in range(200)]
    again = [[i, 2, 3] for i in range(200)]
    asked = [prompt for i in range(200) for prompt in (once[i], first[i], *again[max(i - 20, 0) : max(i - 19, 0)])]
    return asked + again[180:]


def test_what_is_known_to_be_over_makes_room_for_what_is_not() -> None:
    trace = trace_of(conversations())
    told = sum(hits_with_end_bit(trace, find_turns(trace), EndBit(1.0), 60))
    assert told > 1.5 * sum(cache_hits(trace, RadixCache(60)))


def test_hints_that_are_always_wrong_cost_next_to_nothing() -> None:
    trace = trace_of(conversations())
    untold = sum(cache_hits(trace, RadixCache(60)))
    assert sum(hits_with_end_bit(trace, find_turns(trace), EndBit(0.0), 60)) >= 0.9 * untold


@pytest.mark.parametrize(
    ("errors", "is_last", "says"), [("both", True, False), ("both", False, True), ("false", True, True)]
)
def test_only_errors_of_the_given_kind_are_made(errors: str, is_last: bool, says: bool) -> None:
    assert EndBit(0.5, errors).says(is_last, 0.9) is says


def test_each_end_bit_is_a_policy_of_its_own() -> None:
    result = measure(trace_of([[1, 2], [1, 2]]), [2], lambda *_: None, [EndBit(0.9), EndBit(0.9, "missed")])
    assert [curve.policy for curve in result.curves][2:4] == ["end bit 90%", "end bit 90% missed"]
