"""Tests of how many drafts are checked: enough where they pay, and never so many that a request falls far behind."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.speculation import Account, Load, Pace

PLAIN_S = 0.02


class Steps:
    """Sessions that run side by side on a machine whose steps take a known time.

    Args:
        row_cost: what a draft adds to a step, as a share of it.
        right: for each session, how likely each of its drafts is to be right.
        believed: what is thought about that.
        noise: how far a step's time is off, as a share of it.
    """

    def __init__(
        self, row_cost: float, right: list[float], believed: list[float], noise: float = 0.0, max_draft: int = 8
    ) -> None:
        self.row_cost, self.right, self.believed, self.noise = row_cost, right, believed, noise
        self.max_draft = max_draft
        self.pace = Pace()
        self.rng = np.random.default_rng(0)

    def run(self, tokens: int) -> list[float]:
        """How long each session takes, as a share of what it would without drafts."""
        load = Load(len(self.right), 1000)
        accounts = [Account() for _ in self.right]
        said, finished = [0] * len(self.right), [0.0] * len(self.right)
        now = 0.0
        while not all(finished):
            ranked = sorted(
                ((p**depth, who) for who, p in enumerate(self.believed) for depth in range(1, self.max_draft + 1)),
                reverse=True,
            )
            most = self.pace.most(load, [probability for probability, _ in ranked], accounts)
            drafts = [sum(who == each for _, each in ranked[:most]) for who in range(len(self.right))]
            accepted = [self.hits(count, right) for count, right in zip(drafts, self.right, strict=True)]
            seconds = PLAIN_S * (1 + self.row_cost * most) * (1 + self.noise * self.rng.uniform(-1, 1))
            now += seconds
            self.pace.note(load, seconds, most, list(zip(accounts, accepted, strict=True)))
            for who, count in enumerate(accepted):
                said[who] += 1 + count
                if said[who] >= tokens and not finished[who]:
                    finished[who] = now / (tokens * PLAIN_S)
        return finished

    def hits(self, count: int, right: float) -> int:
        for place in range(count):
            if self.rng.random() >= right:
                return place
        return count


def test_good_drafts_are_checked() -> None:
    (took,) = Steps(0.07, right=[1.0], believed=[0.98]).run(300)
    assert took < 0.25


def test_cheap_drafts_are_checked_even_if_most_are_wrong() -> None:
    (took,) = Steps(0.01, right=[0.3], believed=[0.3]).run(300)
    assert took < 0.85


def test_dear_drafts_are_not_checked() -> None:
    steps = Steps(0.9, right=[0.5], believed=[0.5])
    assert steps.run(300)[0] < 1.05


def test_a_hiccup_does_not_end_drafts() -> None:
    steps, load = Steps(0.05, right=[1.0], believed=[0.9]), Load(1, 1000)
    steps.run(2)
    while (most := steps.pace.most(load, [0.9] * 8, [Account()])) == 0:
        steps.pace.note(load, PLAIN_S, 0, [(Account(), 0)])
    steps.pace.note(load, 50 * PLAIN_S, most, [(Account(), 0)])
    steps.run(600)
    assert steps.run(200)[0] < 0.5


def test_nothing_is_checked_before_a_plain_step_was_measured() -> None:
    assert Pace().most(Load(1, 100), [1.0] * 8, [Account()]) == 0


@settings(max_examples=60)
@given(
    row_cost=st.floats(0.0, 0.6),
    right=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
    believed=st.floats(0.0, 1.0),
    noise=st.floats(0.0, 0.1),
)
def test_no_session_takes_much_longer_whatever_is_believed(
    row_cost: float, right: list[float], believed: float, noise: float
) -> None:
    steps = Steps(row_cost, right, [believed] * len(right), noise)
    steps.run(60)
    assert max(steps.run(400)) < 1.05 + noise / 10


def test_many_short_sessions_lose_no_more_than_a_long_one() -> None:
    steps = Steps(0.2, right=[0.0], believed=[0.9])
    steps.run(20)
    assert sum(steps.run(20)[0] for _ in range(40)) / 40 < 1.05
