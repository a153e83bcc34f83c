"""Tests that tenants who share a scheduler are served alike, and that what one asks for cannot hold up another."""

from __future__ import annotations

from collections import defaultdict
from math import ceil
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.scheduler import Request, RequestState
from tests.scheduler.driver import Driver, expected_reply

FLOOD, SMALL = ("tenant", "flood"), ("tenant", "small")


def prompt(number: int, length: int) -> list[int]:
    """One that begins like no other."""
    return [100 + number] * length


def first_scheduled(driver: Driver, name: str, most: int = 500) -> int:
    """How many steps it takes until a request is let in, and has got its first token."""
    request = driver.live[name]
    for step in range(1, most):
        driver.step()
        if request.num_generated or request.state is RequestState.FINISHED:
            return step
    raise AssertionError(f"{name} waited for more than {most} steps")


def flooded(requests: int, *, length: int = 50, replies: int = 20, **settings: object) -> Driver:
    """One tenant has sent so many requests, of which some run."""
    driver = Driver(10_000, budget=64, **settings)  # type: ignore[arg-type]
    for i in range(requests):
        driver.add(f"f{i}", prompt(i, length), replies, namespace=FLOOD)
    for _ in range(5):
        driver.step()
    return driver


# Whose turn it is


@pytest.mark.parametrize("schedule", ["fcfs", "lpm", "dfs"])
def test_a_flood_of_one_tenant_is_not_before_another_ones_request(schedule: str) -> None:
    waits = {}
    for by_tenant in (False, True):
        driver = flooded(200, schedule=schedule, by_tenant=by_tenant, max_num_seqs=4)
        driver.add("small", prompt(1000, 50), 5, namespace=SMALL)
        waits[by_tenant] = first_scheduled(driver, "small", 3000)
    assert waits[True] <= 4
    assert waits[False] > 500


def test_two_who_send_much_are_served_alike_whatever_their_requests_are_like() -> None:
    driver = Driver(10_000, budget=64, max_num_seqs=1, by_tenant=True)
    for i in range(100):
        driver.add(f"long{i}", prompt(i, 200), namespace=FLOOD, score_from=200)
    for i in range(400):
        driver.add(f"short{i}", prompt(100 + i, 20), namespace=SMALL, score_from=20)
    for _ in range(100):
        driver.step()
    assert abs(len(driver.computed) - 2 * sum(s[0] == SMALL for s in driver.computed)) <= 220


def test_nobody_saves_up_turns_by_not_asking() -> None:
    driver = Driver(10_000, budget=64, max_num_seqs=1, by_tenant=True)
    for i in range(50):
        driver.add(f"f{i}", prompt(i, 50), namespace=FLOOD, score_from=50)
    for _ in range(20):
        driver.step()
    done = len(driver.done)
    for i in range(50):
        driver.add(f"s{i}", prompt(100 + i, 50), namespace=SMALL, score_from=50)
    for _ in range(16):
        driver.step()
    names = list(driver.done)[done:]
    assert 5 <= sum(name.startswith("f") for name in names) <= len(names) - 5


def test_within_a_tenant_its_order_holds() -> None:
    driver = Driver(1000, budget=100, max_num_seqs=1, schedule="lpm", by_tenant=True)
    driver.add("other", [9] * 20, namespace=SMALL)
    driver.add("other2", [8] * 20, namespace=SMALL)
    for name, tokens in {"a": [1] * 20, "b": [2] * 20, "a2": [*[1] * 20, 9]}.items():
        driver.add(name, tokens, namespace=FLOOD)
    driver.run()
    assert [name for name in driver.done if not name.startswith("other")] == ["a", "a2", "b"]


def test_salts_do_not_make_more_tenants_of_one() -> None:
    driver = Driver(1000, budget=100, max_num_seqs=1, by_tenant=True)
    for i in range(4):
        driver.add(f"f{i}", prompt(i, 20), namespace=(*FLOOD, "salt", str(i)))
    driver.add("small", prompt(9, 20), namespace=SMALL)
    driver.run()
    assert list(driver.done).index("small") <= 1


works = st.lists(st.tuples(st.booleans(), st.integers(1, 30)), min_size=2, max_size=40)


@given(works, st.sampled_from(["fcfs", "lpm", "dfs"]))
@settings(max_examples=100, deadline=None)
def test_while_two_wait_neither_gets_more_than_the_other_by_more_than_two_requests(
    requests: list[tuple[bool, int]], schedule: str
) -> None:
    driver = Driver(2000, budget=200, max_num_seqs=1, schedule=schedule, by_tenant=True)
    served: dict[tuple[str, ...], float] = defaultdict(float)
    waiting = driver.scheduler.waiting
    charge = waiting.charge
    largest = 2 * max(length for _, length in requests)

    def note(request: Request, work: float, before: int | None = None) -> None:
        served[request.namespace] += work  # type: ignore[index]
        charge(request, work, before)
        if waiting.num_waiting_tenants == 2:
            assert abs(served[FLOOD] - served[SMALL]) <= largest

    for i, (mine, length) in enumerate(requests):
        driver.add(f"r{i}", prompt(i, length), namespace=FLOOD if mine else SMALL, score_from=length)
    with mock.patch.object(waiting, "charge", note):
        driver.run()


@pytest.mark.parametrize("schedule", ["lpm", "dfs"])
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 12), st.integers(1, 12)), max_size=24))
@settings(max_examples=60, deadline=None)
def test_in_each_tenant_later_work_is_at_most_as_much_as_earlier_work(
    schedule: str, requests: list[tuple[bool, int, int, int]]
) -> None:
    driver = Driver(2000, budget=200, max_num_seqs=2, schedule=schedule, by_tenant=True)
    earlier: dict[int, float] = defaultdict(float)
    later: dict[int, float] = defaultdict(float)
    waiting = driver.scheduler.waiting
    charge = waiting.charge

    def note(request: Request, work: float, before: int | None = None) -> None:
        for other in waiting:
            if other.namespace == request.namespace:
                (later if other.order < request.order else earlier)[other.order] += work
                assert later[other.order] <= earlier[other.order]
        charge(request, work, before)

    with mock.patch.object(waiting, "charge", note):
        for i, (mine, group, shared, own) in enumerate(requests):
            tokens = [group] * shared + [100 + i] * own
            driver.add(f"r{i}", tokens, namespace=FLOOD if mine else SMALL, score_from=len(tokens))
        driver.run()


@pytest.mark.parametrize("schedule", ["fcfs", "lpm", "dfs"])
def test_a_short_prompt_has_its_reply_begun_at_once_beside_a_flood_of_long_ones(schedule: str) -> None:
    waits = {}
    for by_tenant in (False, True):
        driver = Driver(10_000, budget=32, max_num_seqs=16, schedule=schedule, by_tenant=by_tenant)
        for i in range(3):
            driver.add(f"f{i}", prompt(i, 500), 20, namespace=FLOOD)
        driver.step()
        driver.add("small", prompt(1000, 6), 5, namespace=SMALL)
        waits[by_tenant] = first_scheduled(driver, "small")
    assert waits[True] == 1
    assert waits[False] > 45


# Seats and slots


def test_while_others_wait_nobody_keeps_more_than_its_part_of_the_seats() -> None:
    driver = flooded(30, length=5, replies=200, max_num_seqs=6, by_tenant=True)
    assert len(driver.scheduler.running) == 6
    oldest = driver.scheduler.running[0]
    for i in range(5):
        driver.add(f"s{i}", prompt(1000 + i, 5), 50, namespace=SMALL)
    for _ in range(6):
        driver.step()
    running = driver.scheduler.running
    assert sum(request.namespace == SMALL for request in running) == 3
    assert oldest in running
    assert driver.scheduler.counts.preemptions == 3
    driver.run(5000)
    assert len(driver.done) == 35


def test_who_is_alone_has_all_seats_and_all_slots() -> None:
    driver = Driver(300, budget=300, max_num_seqs=6, by_tenant=True, tenant_quota=0.2)
    for i in range(8):
        driver.add(f"f{i}", prompt(i, 40), 2, namespace=FLOOD)
    driver.step()
    assert len(driver.scheduler.running) == 6
    driver.run()
    assert driver.scheduler.counts.preemptions == 0


def test_slots_are_given_up_to_one_who_has_less_than_its_share() -> None:
    driver = Driver(400, budget=200, max_num_seqs=16, by_tenant=True)
    for i in range(8):
        driver.add(f"f{i}", prompt(i, 45), 40, namespace=FLOOD)
    for _ in range(4):
        driver.step()
    driver.add("small", prompt(1000, 120), 3, namespace=SMALL)
    assert first_scheduled(driver, "small") <= 4
    driver.run(5000)
    assert len(driver.done) == 9


def test_a_request_that_is_longer_than_a_share_runs_to_its_end() -> None:
    driver = Driver(400, budget=50, max_num_seqs=8, by_tenant=True, tenant_quota=0.25)
    driver.add("long", prompt(0, 300), 20, namespace=FLOOD)
    sent = 0
    while "long" not in driver.done:
        if sum(request.namespace == SMALL for request in driver.live.values()) < 4:
            driver.add(f"s{sent}", prompt(1 + sent, 30), 5, namespace=SMALL)
            sent += 1
        driver.step()
        assert driver.steps < 200
    assert driver.live[f"s{sent - 1}"]
    driver.run()


def test_when_memory_runs_out_the_one_who_holds_most_gives_way() -> None:
    driver = Driver(200, budget=64, max_num_seqs=8, by_tenant=True)
    for i in range(4):
        driver.add(f"f{i}", prompt(i, 30), 80, namespace=FLOOD)
    driver.add("small", prompt(1000, 10), 60, namespace=SMALL)
    small = driver.live["small"]
    while "small" not in driver.done:
        driver.step()
    assert small.num_preemptions == 0
    assert driver.scheduler.counts.preemptions > 0
    driver.run()


floods = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=12)


@given(
    floods,
    st.integers(0, 20),
    st.tuples(st.integers(1, 40), st.integers(1, 5)),
    st.integers(4, 40),
    st.integers(2, 6),
    st.integers(0, 60),
    st.sampled_from(["fcfs", "lpm"]),
)
@settings(max_examples=100, deadline=None)
def test_what_one_waits_for_does_not_depend_on_how_much_another_sends(
    flood: list[tuple[int, int]],
    before: int,
    small: tuple[int, int],
    budget: int,
    seats: int,
    spare: int,
    schedule: str,
) -> None:
    """While one tenant floods, another's request gets its first token after work that is known when it comes.

    That is: twice its own, as if a step's tokens were divided between the two, and a few steps.
    """
    longest = max(length + reply for length, reply in [*flood, small])
    capacity = 2 * (longest + seats) + spare
    driver = Driver(capacity, budget=budget + seats, max_num_seqs=seats, schedule=schedule, by_tenant=True)
    sent = 0

    def keep_flooding() -> None:
        nonlocal sent
        while sum(request.namespace == FLOOD for request in driver.live.values()) < 2 * seats:
            length, reply = flood[sent % len(flood)]
            driver.add(f"f{sent}", prompt(sent, length), reply, namespace=FLOOD)
            sent += 1

    for _ in range(before):
        keep_flooding()
        driver.step()
    keep_flooding()
    request = driver.add("small", prompt(10_000, small[0]), small[1], namespace=SMALL)
    for steps in range(1, 1000):  # noqa: B007 - read below
        driver.step()
        if request.num_generated:
            break
        keep_flooding()
    assert steps <= ceil(small[0] / (budget // 2)) + 3
    assert expected_reply(prompt(10_000, small[0]), 1) == request.tokens.array[small[0] : small[0] + 1].tolist()
