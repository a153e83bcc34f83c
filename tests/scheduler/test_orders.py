"""Tests of the orders in which waiting requests are let in, and that none of them is unfair to anybody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.errors import ConfigError
from mainstem.scheduler import Request
from mainstem.scheduler.fairness import Fairness
from tests.scheduler.driver import Driver

A, B, C = [1] * 20, [2] * 20, [3] * 20


def served(driver: Driver) -> list[str]:
    driver.run()
    return list(driver.done)


def alone(schedule: str, *, lenience: float = np.inf, capacity: int = 1000, budget: int = 100) -> Driver:
    """One request at a time."""
    return Driver(capacity, budget=budget, max_num_seqs=1, schedule=schedule, lenience=lenience)


# Who is next


def test_longest_prefix_first() -> None:
    driver = alone("lpm")
    driver.add("warm", [*A, *B])
    driver.run()
    driver.add("none", [*C, 10])
    driver.add("half", [*A, 10])
    driver.add("all", [*A, *B, 10])
    assert served(driver) == ["warm", "all", "half", "none"]


def test_of_those_with_equally_much_the_first_is_next() -> None:
    driver = alone("lpm")
    for name, prompt in {"a": A, "b": B, "a2": [*A, 9], "b2": [*B, 9], "a3": [*A, 8]}.items():
        driver.add(name, prompt)
    assert served(driver) == ["a", "a2", "a3", "b", "b2"]


def test_what_few_wait_for_comes_before_what_many_do() -> None:
    driver = alone("lpm")
    driver.add("a", A)
    driver.add("b", B)
    driver.run()
    for name, prompt in {"a1": [*A, 1], "a2": [*A, 2], "b1": [*B, 1]}.items():
        driver.add(name, prompt)
    assert served(driver)[2:] == ["b1", "a1", "a2"]


def test_what_is_computed_in_this_very_step_counts() -> None:
    driver = Driver(1000, budget=23, max_num_seqs=8, schedule="lpm", lenience=np.inf)
    driver.add("a", A)
    driver.add("b", B)
    driver.add("a2", [*A, 9])
    assert [s.request.id for s in driver.step().scheduled] == ["a", "a2", "b"]


def test_a_request_whose_prefix_is_evicted_is_no_longer_before_others() -> None:
    driver = alone("lpm")
    driver.add("warm", A)
    driver.add("warm too", B)
    driver.run()
    driver.add("a", [*A, 9])
    driver.add("b", [*B, 9])
    driver.cache.evict(20)
    assert served(driver)[2:] == ["b", "a"]


@pytest.mark.parametrize(("schedule", "kept"), [("lpm", 20), ("dfs", 20), ("fcfs", 0)])
def test_what_somebody_waits_for_is_evicted_after_what_nobody_does(schedule: str, kept: int) -> None:
    driver = Driver(100, budget=100, max_num_seqs=1, schedule=schedule)
    driver.add("a", A)
    driver.add("b", [*B, 5])
    driver.run()
    driver.add("c", C, 5)
    driver.step()
    again = driver.add("again", [*A, 9])
    driver.cache.evict(20)
    driver.run()
    assert again.num_cached == kept


def test_depth_first_goes_on_below_the_one_before() -> None:
    driver = alone("dfs")
    prompts = {
        "a": [*A, 1],
        "b": [*B, 1],
        "ac": [*A, *C, 1],
        "ab": [*A, *B, 1],
        "b2": [*B, 2],
        "ac2": [*A, *C, 2],
        "ab2": [*A, *B, 2],
    }
    for name, prompt in prompts.items():
        driver.add(name, prompt)
    assert served(driver) == ["a", "ac", "ac2", "ab", "ab2", "b", "b2"]


def test_namespaces_are_apart() -> None:
    driver = alone("lpm")
    driver.add("warm", A, namespace=("x",))
    driver.run()
    driver.add("other", [*A, 9], namespace=("y",))
    driver.add("same", [*A, 9], namespace=("x",))
    assert served(driver) == ["warm", "same", "other"]


def test_thousands_that_wait_for_one_prefill_do_not_hold_up_another_request() -> None:
    driver = Driver(4000, budget=1000, max_num_seqs=4)
    driver.add("a", range(600), score_from=0)  # of which a step computes 256
    for i in range(1000):
        driver.add(f"r{i}", [*range(600), i])
    driver.add("other", [9] * 5)
    assert {s.request.id for s in driver.step().scheduled} == {"a", "other"}


@pytest.mark.parametrize("kind", ["block-hash", "none"])
def test_only_the_tree_can_be_followed(kind: str) -> None:
    with pytest.raises(ConfigError, match="use fcfs or dfs"):
        Driver(100, kind=kind, schedule="lpm")


def test_a_failed_step_is_forgotten() -> None:
    driver = Driver(1000, budget=100, max_num_seqs=2, schedule="lpm")
    driver.add("a", A)
    driver.add("b", B)
    driver.add("a2", [*A, 9])
    driver.scheduler.schedule()
    driver.scheduler.rollback()
    driver.scheduler.check_integrity()
    driver.run()
    assert set(driver.done) == {"a", "b", "a2"}


# Fairness


def test_later_ones_go_first_only_for_as_much_work_as_earlier_ones_did() -> None:
    driver = alone("lpm", lenience=1.0)
    driver.add("a", A, score_from=20)  # 20 tokens
    driver.add("b", B, score_from=20)
    for i in range(6):
        driver.add(f"a{i}", [*A, *range(50 + 10 * i, 58 + 10 * i)], score_from=28)  # 8 more each
    # "b" has seen 20 tokens of an earlier request go first, and bears 2 times 8 of later ones.
    assert served(driver) == ["a", "a0", "a1", "b", "a2", "a3", "a4", "a5"]


def test_without_lenience_the_order_is_that_of_arrival() -> None:
    driver = alone("lpm", lenience=0.0)
    for name, prompt in {"a": A, "b": B, "a2": [*A, 9], "b2": [*B, 9]}.items():
        driver.add(name, prompt)
    assert served(driver) == ["a", "b", "a2", "b2"]


groups = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=24)


def prompts_of(requests: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """Prompts that share beginnings and differ in their ends."""
    return [[group] * shared + [100 + i] * own for i, (group, shared, own) in enumerate(requests)]


def work_before(prompts: list[list[int]], schedule: str) -> dict[str, int]:
    """How many tokens had been computed when each request was let in; all came at once."""
    driver = alone(schedule, lenience=1.0)
    for i, prompt in enumerate(prompts):
        driver.add(f"r{i}", prompt, score_from=len(prompt))
    before: dict[str, int] = {}
    while driver.scheduler.has_work():
        done = len(driver.computed)
        for request, _, _ in driver.step().scheduled:
            before.setdefault(request.id, done)
    return before


@pytest.mark.parametrize("schedule", ["lpm", "dfs"])
@given(groups)
@settings(max_examples=100, deadline=None)
def test_nobody_waits_for_more_than_twice_the_work_that_fcfs_would_do_first(
    schedule: str, requests: list[tuple[int, int, int]]
) -> None:
    prompts = prompts_of(requests)
    fcfs, other = work_before(prompts, "fcfs"), work_before(prompts, schedule)
    assert all(other[name] <= 2 * fcfs[name] for name in fcfs)


@pytest.mark.parametrize("schedule", ["lpm", "dfs"])
@given(groups, st.integers(40, 120), st.integers(1, 4), st.integers(0, 3), st.sampled_from([0.5, 1.0, 3.0]))
@settings(max_examples=80, deadline=None)
def test_at_every_moment_later_work_is_at_most_as_much_as_earlier_work(
    schedule: str, requests: list[tuple[int, int, int]], capacity: int, seats: int, pause: int, lenience: float
) -> None:
    """In small pools and with arrivals over time, from what the queue was told."""
    driver = Driver(capacity, budget=200, max_num_seqs=seats, schedule=schedule, lenience=lenience)
    earlier: dict[int, float] = defaultdict(float)
    later: dict[int, float] = defaultdict(float)
    waiting = driver.scheduler.waiting
    charge = waiting.charge

    def note(request: Request, work: float, before: int | None = None) -> None:
        assert work == 0 or before is None, "a score costs what was expected"
        for other in waiting:
            (later if other.order < request.order else earlier)[other.order] += work
            assert later[other.order] <= lenience * earlier[other.order]
        charge(request, work, before)

    with mock.patch.object(waiting, "charge", note):
        for i, prompt in enumerate(prompts_of(requests)):
            driver.add(f"r{i}", prompt, score_from=len(prompt))
            for _ in range(pause):
                if driver.scheduler.has_work():
                    driver.step()
        driver.run()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(-3, 9)), max_size=40))
def test_credit_is_what_a_plain_account_says(events: list[tuple[bool, int, int]]) -> None:
    fairness = Fairness(2.0)
    credit: dict[int, float] = {}
    for comes_or_goes, order, work in events:
        if comes_or_goes and order not in credit:
            fairness.add(order)
            credit[order] = 0.0
        elif comes_or_goes:
            fairness.remove(order)
            del credit[order]
        else:
            fairness.note(order, work)
            credit = {o: c - work if o < order else c + 2 * work for o, c in credit.items()}
        assert all(fairness.credit(o) == c for o, c in credit.items())
        least = min((c for o, c in credit.items() if o < order), default=np.inf)
        assert fairness.allows(order, least)
        assert np.isinf(least) or not fairness.allows(order, least + 1)


def test_prompts_that_end_within_a_page_are_kept_in_order_too() -> None:
    driver = Driver(8, budget=2, max_num_seqs=1, page_size=2, schedule="lpm")
    driver.add("a", [1, 0], max_tokens=2)
    driver.step()
    driver.add("short", [1], score_from=0)
    driver.add("b", [1, 0])
    driver.scheduler.check_integrity()
    driver.cache.reset()
    driver.scheduler.check_integrity()
    driver.run()
    assert set(driver.done) == {"a", "short", "b"}
