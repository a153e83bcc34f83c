"""Tests of candidates, of the trees that are chosen from them, and of how often they come true."""

from __future__ import annotations

import numpy as np
import pytest

from mainstem.speculation import Candidates, DraftTree, Guess, Rates, draft_of


def candidates(*paths: tuple[list[int], str], rates: Rates | None = None) -> Candidates:
    made = Candidates(rates or Rates())
    for tokens, kind in paths:
        made.add(np.array(tokens, np.int32), kind)
    return made


def all_of(guess: Guess) -> list[Guess]:
    return [each for child in guess.children for each in (child, *all_of(child))]


def test_paths_share_what_they_have_in_common() -> None:
    made = candidates(([1, 2, 3], "tree"), ([1, 5], "ngram"), ([9], "ngram"))
    draft = draft_of(all_of(made.root), made.root)
    assert draft == DraftTree([1, 2, 3, 5, 9], [-1, 0, 1, 0, -1])
    assert draft.path(3) == [0, 3]
    assert [draft.child(-1, 9), draft.child(0, 5), draft.child(0, 3), draft.child(3, 1)] == [4, 3, None, None]


def test_a_part_is_chosen_with_the_first_path_in_front() -> None:
    made = candidates(([1, 2, 3], "tree"), ([9, 8], "ngram"))
    chosen = [guess for guess in all_of(made.root) if guess.token in (1, 2, 9)]
    assert draft_of(chosen, made.root) == DraftTree([1, 2, 9], [-1, 0, -1])


def test_a_path_is_as_likely_as_all_of_its_tokens() -> None:
    rates = Rates()
    made = candidates(([1, 2], "tree"), ([9], "ngram"), rates=rates)
    one, two, nine = all_of(made.root)
    assert (one.probability, two.probability) == (0.5, 0.25)
    assert nine.probability == 0.25  # half of where the first is wrong


def test_rates_follow_what_was_said() -> None:
    rates = Rates()
    made = candidates(([1, 2, 3], "tree"), ([9], "ngram"), rates=rates)
    made.count([1, 7])
    assert rates.of("tree") == pytest.approx(0.5 + 0.02 * 0.5 - 0.02 * 0.51)
    assert rates.of("ngram") == 0.5  # it did not come to that
    made.count([9])
    assert rates.of("ngram") > 0.5


def test_a_request_begins_with_the_rates_of_those_before_it() -> None:
    shared = Rates()
    for _ in range(200):
        Rates(shared).count("ngram", False)
    later = Rates(shared)
    assert later.of("ngram") < 0.02
    for _ in range(20):
        later.count("ngram", True)
    assert later.of("ngram") > 0.9
    assert shared.of("ngram") < 0.5
