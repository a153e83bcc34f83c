"""Tests of looking up in a context what followed its last tokens before."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainstem.speculation import look_up
from mainstem.speculation.ngram import MAX_MATCH, MIN_MATCH


def said(context: list[int], length: int = 3, paths: int = 2) -> list[tuple[list[int], int]]:
    found = look_up(np.array(context, np.int32), length, paths)
    return [(lookup.tokens.tolist(), lookup.match) for lookup in found]


def test_what_followed_the_same_tokens_is_guessed() -> None:
    assert said([5, 1, 2, 3, 7, 8, 9, 4, 1, 2, 3]) == [([7, 8, 9], 3)]


def test_the_longest_match_comes_first_then_the_latest() -> None:
    context = [9, 1, 2, 3, 30, 0, 1, 2, 3, 40, 0, 8, 2, 3, 50, 0, 1, 2, 3]
    assert [(tokens[0], match) for tokens, match in said(context, paths=3)] == [(40, 4), (30, 3), (50, 2)]


def test_a_loop_goes_round() -> None:
    assert said([4, 1, 2, 1, 2], length=5, paths=1) == [([1, 2, 1, 2, 1], 2)]


def test_matches_too_short_or_none_give_nothing() -> None:
    assert said([1, 2, 3, 2]) == []
    assert said([7]) == []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 6), st.integers(1, 3))
def test_guesses_are_what_a_plain_search_finds(context: list[int], length: int, paths: int) -> None:
    last = len(context) - 1
    guesses = said(context, length, paths)
    matches = {end: common_ending(context[: end + 1], context) for end in range(last)}
    longest = max(matches.values(), default=0)
    assert bool(guesses) == (longest >= MIN_MATCH)
    for tokens, match in guesses:
        ends = [end for end, known in matches.items() if known >= match and context[end + 1] == tokens[0]]
        assert any(tokens == goes_on(context, end, length) for end in ends)
    if guesses:
        assert guesses[0][1] == longest
    assert len({tokens[0] for tokens, _ in guesses}) == len(guesses) <= paths


def common_ending(a: list[int], b: list[int]) -> int:
    same = 0
    while same < min(len(a), len(b), MAX_MATCH) and a[-1 - same] == b[-1 - same]:
        same += 1
    return same


def goes_on(context: list[int], end: int, length: int) -> list[int]:
    loop = context[end + 1 :]
    return [loop[index % len(loop)] for index in range(length)]
