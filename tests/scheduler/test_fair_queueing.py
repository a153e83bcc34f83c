"""Tests that prompts of several tenants are computed in the order in which an equal division would have them done."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.scheduler import Request, SchedulerOutput
from mainstem.scheduler.virtual_time import VirtualTime
from mainstem.tree import Namespace
from tests.scheduler.driver import Driver

A, B, C = ("tenant", "a"), ("tenant", "b"), ("tenant", "c")
ONE, OTHER = "one", "other"


def prompt(number: int, length: int) -> list[int]:
    """One that begins like no other."""
    return [100 + number] * length


def steps_until_done(driver: Driver, name: str) -> int:
    before = driver.steps
    while name not in driver.done:
        driver.step()
    return driver.steps - before


# Virtual time


def test_the_virtual_time_is_what_each_of_those_gets_who_want_tokens() -> None:
    time = VirtualTime()
    time.begin(ONE, 30)
    time.begin(OTHER, 10)
    time.advance(20, {})
    assert time.now == 10
    time.advance(12, {})  # one alone has prompts left
    assert time.now == 22


def test_who_waits_has_a_part_of_the_virtual_time() -> None:
    time = VirtualTime()
    time.begin(ONE, 100)
    time.advance(20, {OTHER: 40})
    assert time.now == 10


def test_prompts_of_one_tenant_come_after_each_other() -> None:
    time = VirtualTime()
    assert [time.begin(ONE, 30), time.begin(ONE, 5), time.begin(OTHER, 20)] == [30, 35, 20]


def test_who_comes_late_begins_at_the_virtual_time() -> None:
    time = VirtualTime()
    time.begin(ONE, 100)
    time.advance(40, {})
    assert time.finish_tag(OTHER, 10) == 50


def test_a_prompt_that_is_broken_off_costs_its_tenant_what_was_computed_of_it() -> None:
    time = VirtualTime()
    time.begin(ONE, 100)
    time.advance(10, {OTHER: 10})
    time.give_back(ONE, 90)
    assert time.finish_tag(ONE, 20) == 30


# Which prompt is first


def test_a_short_prompt_is_done_in_the_next_step_beside_a_long_one_that_is_under_way() -> None:
    driver = Driver(1000, budget=20, by_tenant=True)
    driver.add("long", prompt(0, 200), namespace=A)
    driver.step()
    driver.add("short", prompt(1, 15), namespace=B)
    assert steps_until_done(driver, "short") == 1


def test_who_came_at_once_with_a_short_prompt_need_not_wait_for_the_long_one() -> None:
    driver = Driver(1000, budget=20, by_tenant=True)
    driver.add("long", prompt(0, 200), namespace=A)
    driver.add("short", prompt(1, 5), namespace=B)
    assert steps_until_done(driver, "short") == 1


def test_a_prompt_that_is_nearly_done_is_not_passed_by_another_ones_medium_one() -> None:
    driver = Driver(1000, budget=20, by_tenant=True)
    driver.add("long", prompt(0, 200), namespace=A)
    for _ in range(9):
        driver.step()
    driver.add("medium", prompt(1, 40), namespace=B)
    driver.run()
    assert list(driver.done) == ["long", "medium"]


def test_a_flood_of_short_prompts_holds_up_a_long_one_by_as_much_as_its_own_work() -> None:
    driver = Driver(2000, budget=20, by_tenant=True, max_num_seqs=16)
    driver.add("long", prompt(0, 200), namespace=A)
    for sent in range(200):
        driver.add(f"s{sent}", prompt(1 + sent, 9), namespace=B)
    assert steps_until_done(driver, "long") <= 2 * 200 / 20 + 1


def test_a_tenant_does_not_pass_its_own_long_prompt() -> None:
    driver = Driver(1000, budget=20, by_tenant=True)
    driver.add("other", prompt(9, 500), namespace=B)
    driver.step()
    driver.add("long", prompt(0, 100), namespace=A)
    driver.step()
    driver.add("short", prompt(1, 5), namespace=A)
    driver.run()
    assert list(driver.done) == ["long", "short", "other"]


@pytest.mark.parametrize("tenants", [2, 4, 16])
def test_equal_prompts_of_several_tenants_are_computed_one_after_the_other(tenants: int) -> None:
    driver = Driver(10_000, budget=40, max_num_seqs=16, by_tenant=True)
    for i in range(tenants):
        driver.add(f"r{i}", prompt(i, 100), namespace=("tenant", i))
    done: list[int] = []
    while driver.scheduler.has_work():
        driver.step()
        done += [driver.steps] * (len(driver.done) - len(done))
    assert done == [-(-100 * (i + 1) // 40) for i in range(tenants)]


def test_a_short_prompt_is_found_behind_many_tenants_with_long_ones() -> None:
    driver = Driver(20_000, budget=20, max_num_seqs=20, by_tenant=True)
    driver.add("before", prompt(101, 50), namespace=("tenant", "short"))  # so the others are served less
    driver.run()
    for i in range(31):
        driver.add(f"long{i}", prompt(i, 400), namespace=("tenant", i))
    driver.step()
    driver.add("short", prompt(100, 5), namespace=("tenant", "short"))
    assert steps_until_done(driver, "short") <= 8


def test_what_an_aborted_prompt_had_left_is_not_held_against_its_tenant() -> None:
    driver = Driver(2000, budget=20, by_tenant=True)
    driver.add("long", prompt(0, 500), namespace=A)
    driver.step()
    driver.add("other", prompt(1, 300), namespace=B)
    driver.step()
    driver.abort("long")
    driver.add("next", prompt(2, 30), namespace=A)
    assert steps_until_done(driver, "next") <= 3


def test_replies_have_their_tokens_first() -> None:
    driver = Driver(1000, budget=8, max_num_seqs=8, by_tenant=True)
    for i, namespace in enumerate((A, B, B)):
        driver.add(f"reply{i}", [100 + i], 50, namespace=namespace)
    driver.step()
    for i, namespace in enumerate((A, B)):
        driver.add(f"prompt{i}", prompt(i, 100), namespace=namespace)
    for _ in range(10):
        output = driver.step()
        assert [entry.request.id for entry in output.scheduled[:3]] == ["reply0", "reply1", "reply2"]


# Seats and memory


@pytest.mark.parametrize("capacity", [10_000, 250])
def test_short_prompts_that_pass_a_long_one_do_not_starve_it_for_want_of_a_seat_or_memory(capacity: int) -> None:
    driver = Driver(capacity, budget=64, max_num_seqs=1 if capacity > 250 else 8, by_tenant=True)
    driver.add("first", prompt(0, 30), namespace=B)
    driver.step()
    driver.add("long", prompt(1, 200), namespace=A)
    for sent in range(100):
        driver.add(f"s{sent}", prompt(2 + sent, 20), 5, namespace=B)
    driver_steps = steps_until_done(driver, "long")
    assert sum(name.startswith("s") for name in driver.done) <= 200 / 20 + 8
    assert driver_steps <= 100


def test_who_has_its_share_of_the_seats_does_not_go_before_one_who_waits_with_less() -> None:
    driver = Driver(1000, budget=20, max_num_seqs=4, by_tenant=True)
    driver.add("long", prompt(0, 100), 5, namespace=A)
    driver.add("long too", prompt(1, 100), 5, namespace=A)
    driver.step()
    for i in range(3):
        driver.add(f"s{i}", prompt(2 + i, 2), 50, namespace=B)
    driver.step()
    assert sorted(request.id for request in driver.scheduler.running) == ["long", "s0", "s1"]
    driver.run()


def test_a_seat_is_claimed_while_long_prompts_on_all_seats_take_every_token() -> None:
    driver = Driver(2000, budget=20, max_num_seqs=4, by_tenant=True)
    for i in range(4):
        driver.add(f"long{i}", prompt(i, 10), 50, namespace=A)
    driver.step()
    driver.step()
    driver.add("longest", prompt(9, 400), namespace=A)
    driver.abort("long0")
    driver.step()
    assert driver.live["longest"].num_remaining > 1
    assert len(driver.scheduler.running) == 4
    driver.add("short", prompt(10, 5), namespace=B)
    driver.step()
    driver.step()
    assert "short" in driver.done


def test_a_seat_that_was_made_free_for_a_long_prompt_is_not_taken_by_a_short_one() -> None:
    driver = Driver(2000, budget=20, max_num_seqs=2, by_tenant=True)
    for i in range(2):
        driver.add(f"reply{i}", prompt(i, 5), 100, namespace=A)
    driver.step()
    driver.add("long", prompt(8, 200), namespace=B)
    driver.step()  # it finds no seat, and has a claim
    driver.add("short", prompt(9, 5), namespace=C)
    driver.step()
    assert "long" in {request.id for request in driver.scheduler.running}
    driver.run()


# No later than if the tokens were divided


class Fluid:
    """The same tokens, divided equally at every moment between the tenants that have prompts."""

    def __init__(self) -> None:
        self.now = 0.0  # tokens of prompts computed so far
        self.done: dict[str, float] = {}
        self._queues: dict[Namespace, list[tuple[str, float]]] = defaultdict(list)

    def add(self, request: Request) -> None:
        self._queues[request.namespace].append((request.id, request.num_prompt))

    def advance(self, num_tokens: float) -> None:
        while num_tokens > 1e-6 and (busy := [queue for queue in self._queues.values() if queue]):
            each = min(num_tokens / len(busy), *(queue[0][1] for queue in busy))
            num_tokens -= each * len(busy)
            self.now += each * len(busy)
            for queue in busy:
                name, left = queue.pop(0)
                if left - each > 1e-6:
                    queue.insert(0, (name, left - each))
                else:
                    self.done[name] = self.now


BUDGET, LONGEST = 64, 150


@pytest.mark.parametrize("tenants", [2, 3, 8, 20])
@pytest.mark.parametrize("seed", range(4))
def test_no_prompt_is_done_later_than_in_equal_parts_by_more_than_the_largest_and_two_steps(
    tenants: int, seed: int
) -> None:
    rng = random.Random(100 * tenants + seed)
    driver = Driver(50_000, budget=BUDGET, max_num_seqs=BUDGET, by_tenant=True)
    fluid = Fluid()
    lateness: dict[str, float] = {}

    def step() -> None:
        output = driver.step()
        fluid.advance(num_prompt_tokens(output))
        for request, start, stop in output.scheduled:
            if start < request.num_prompt <= stop:
                lateness[request.id] = fluid.now

    for number in range(80):
        length = rng.choice([rng.randint(1, 6), rng.randint(1, LONGEST)])
        namespace = ("tenant", rng.randrange(tenants))
        fluid.add(driver.add(f"r{number}", prompt(number, length), namespace=namespace))
        for _ in range(rng.choice([0, 0, 1, 2])):
            if driver.scheduler.has_work():
                step()
    while driver.scheduler.has_work():
        step()
    assert lateness.keys() == fluid.done.keys()
    assert max(lateness[name] - fluid.done[name] for name in lateness) <= LONGEST + 2 * BUDGET


def num_prompt_tokens(output: SchedulerOutput) -> int:
    return sum(max(0, min(stop, request.num_prompt) - start) for request, start, stop in output.scheduled)


# One tenant


@pytest.mark.parametrize("schedule", ["fcfs", "lpm", "dfs"])
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 12), st.integers(0, 3)),
        max_size=14,
    ),
    st.integers(1, 20),
    st.integers(1, 5),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_one_tenant_is_scheduled_as_if_there_were_no_tenants(
    schedule: str, traffic: list[tuple[list[int], int, int]], budget: int, seats: int, anti_thrash: bool
) -> None:
    schedules = []
    for tenants in (False, True):
        driver = Driver(
            60, budget=budget, max_num_seqs=seats, schedule=schedule, by_tenant=tenants, anti_thrash=anti_thrash
        )
        outputs: list[SchedulerOutput] = []
        for number, (tokens, reply, pause) in enumerate(traffic):
            driver.add(f"r{number}", tokens, reply, namespace=A)
            outputs += [driver.step() for _ in range(pause) if driver.scheduler.has_work()]
        while driver.scheduler.has_work():
            outputs.append(driver.step())
        schedules.append([[(request.id, start, stop) for request, start, stop in o.scheduled] for o in outputs])
    assert schedules[0] == schedules[1]
