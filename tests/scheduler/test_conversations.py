"""Tests of conversations in pools that do not hold all of them: fewer run, and none loses what it needs next."""

from __future__ import annotations

import pytest

from mainstem.scheduler import Request, RequestState, conversations
from tests.scheduler.driver import Driver

TURNS, SAID, REPLY = 4, 20, 5


def driver(capacity: int, *, anti_thrash: bool = True, schedule: str = "lpm", return_rate: float = 1.0) -> Driver:
    made = Driver(capacity, budget=25, max_num_seqs=8, schedule=schedule, anti_thrash=anti_thrash)
    made.scheduler.conversations.return_rate = return_rate
    return made


def run(d: Driver, number: int) -> list[Request]:
    """Conversations of four turns, all at once; each goes on as soon as its reply has ended."""
    requests = {f"{c}-0": d.add(f"{c}-0", [100 * c + i for i in range(SAID)], REPLY) for c in range(number)}
    answered: set[str] = set()
    while d.scheduler.has_work():
        d.step()
        for name in set(d.done) - answered:
            answered.add(name)
            c, turn = map(int, name.split("-"))
            if turn + 1 < TURNS:
                more = [100 * c + 20 * (turn + 1) + i for i in range(SAID)]
                prompt = [*requests[name].tokens.array.tolist(), *more]
                requests[f"{c}-{turn + 1}"] = d.add(f"{c}-{turn + 1}", prompt, REPLY)
    assert len(d.done) == TURNS * number
    return list(requests.values())


def computed(requests: list[Request]) -> int:
    return sum(request.num_prefilled for request in requests)


@pytest.mark.parametrize("schedule", ["fcfs", "lpm", "dfs"])
def test_what_is_computed_again_does_not_grow_with_the_number_of_conversations(schedule: str) -> None:
    pool = 2 * TURNS * (SAID + REPLY) + 40  # two whole conversations, and a little
    least = TURNS * (SAID + 1) - 1  # for each
    kept = computed(run(driver(pool, schedule=schedule), 12)) / 12
    lost = computed(run(driver(pool, schedule=schedule, anti_thrash=False), 12)) / 12
    assert kept < 1.4 * least
    assert lost > 1.1 * kept


def test_the_next_turn_comes_before_conversations_that_wait() -> None:
    d = driver(60)
    first = d.add("a", range(20), 3)
    d.add("b", range(100, 140), 3)
    while "a" not in d.done:
        d.step()
    assert len(d.scheduler.conversations) == 1
    again = d.add("a again", [*first.tokens.array.tolist(), 50], 3)
    assert again.order == first.order
    d.step()
    assert again.state is RequestState.RUNNING
    assert again.num_cached == 22
    d.run()


def test_the_next_turn_is_let_in_however_many_that_came_before_it_wait_for_room() -> None:
    d = driver(100)
    d.add("long", range(300, 320), 30)
    first = d.add("a", range(20), 3)
    d.step()
    first.order = 1000  # as one that was let in before many who had come earlier
    for number in range(20):
        d.add(f"big {number}", [500 + 50 * number + i for i in range(40)], 3)
    while "a" not in d.done:
        d.step()
    again = d.add("a again", [*first.tokens.array.tolist(), 50], 3)
    d.step()
    assert "long" in d.live
    assert len(d.scheduler.waiting) == 20
    assert again.state is RequestState.RUNNING
    assert again.num_cached == 22
    d.run()


def test_nothing_is_kept_when_nobody_waits() -> None:
    d = driver(200)
    d.add("a", range(20), 3)
    d.run()
    assert len(d.scheduler.conversations) == 0
    assert d.cache.stats().protected == 0


def test_nothing_is_kept_where_conversations_do_not_go_on() -> None:
    d = driver(60, return_rate=0.0)
    d.add("a", range(20), 3)
    d.add("b", range(100, 140), 3)
    while "a" not in d.done:
        d.step()
    assert len(d.scheduler.conversations) == 0
    d.run()


def test_who_waits_gets_the_room_of_a_conversation_that_does_not_go_on() -> None:
    d = driver(100)
    d.add("a", range(20), 3)
    d.add("long", range(200, 220), 60)
    d.add("b", range(100, 140), 3)
    while "b" not in d.done:
        d.step()
    assert "long" in d.live  # it was not the end of all others that made room
    d.run()


def test_a_next_turn_that_is_taken_back_leaves_nothing_locked() -> None:
    d = driver(60)
    first = d.add("a", range(20), 3)
    d.add("b", range(100, 140), 3)
    while "a" not in d.done:
        d.step()
    d.add("a again", [*first.tokens.array.tolist(), 50], 3)
    d.abort("a again")
    d.scheduler.check_integrity()
    assert len(d.scheduler.conversations) == 0
    d.run()


def test_a_tenant_with_many_conversations_does_not_make_another_ones_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MOST_KNOWN", 6)
    d = Driver(2000, budget=100, max_num_seqs=8, anti_thrash=True, by_tenant=True)
    d.scheduler.conversations.return_rate = 1.0
    few, many = ("tenant", "few"), ("tenant", "many")
    d.add("first", range(20), 3, namespace=few)
    for number in range(10):
        d.add(f"m{number}", [100 + 20 * number + i for i in range(20)], 3, namespace=many)
    d.add("at work", range(900, 920), 200, namespace=many)
    for number in range(8):
        d.add(f"waits {number}", [1000 + 20 * number + i for i in range(20)], 200, namespace=many)
    first = d.live["first"]
    while "m9" not in d.done:
        d.step()
    assert d.scheduler.waiting
    assert len(d.scheduler.conversations) == 6
    again = d.add("first again", [*first.tokens.array.tolist(), 50], 3, namespace=few)
    assert again.order == first.order
