"""Tests of the scheduler over block hashes, by the rules of vLLM: what is shared and when, how memory is handed out."""

from __future__ import annotations

import pytest

from mainstem.scheduler import RequestState
from tests.scheduler.driver import Driver, expected_reply

BLOCK = 4


def driver(capacity: int = 400, *, budget: int = 100, max_num_seqs: int = 8, page_size: int = BLOCK) -> Driver:
    return Driver(capacity, budget=budget, max_num_seqs=max_num_seqs, kind="block-hash", page_size=page_size)


def counts(d: Driver) -> dict[str, int]:
    return {s.request.id: s.stop - s.start for s in d.step().scheduled}


# What is found


@pytest.mark.parametrize(("tokens", "cached"), [(11, 8), (12, 8), (13, 12)])
def test_an_exact_repeat_computes_its_last_block_again(tokens: int, cached: int) -> None:
    d = driver()
    d.add("a", range(tokens))
    d.run()
    again = d.add("b", range(tokens))
    d.run()
    assert (again.num_cached, again.num_prefilled) == (cached, tokens - cached)


def test_a_longer_prompt_finds_the_full_blocks_only() -> None:
    d = driver()
    d.add("a", range(10))
    d.run()
    longer = d.add("b", range(50))
    d.run()
    assert longer.num_cached == 8


def test_blocks_of_a_reply_are_found() -> None:
    d = driver()
    first = d.add("a", range(9), max_tokens=10)
    d.run()
    history = first.tokens.array.tolist()
    second = d.add("b", [*history, 100, 101])
    d.run()
    assert second.num_cached == 16  # 18 of 19 tokens were computed, which is four full blocks


def test_blocks_of_a_reply_are_found_while_it_goes_on() -> None:
    d = driver()
    first = d.add("a", range(9), max_tokens=50)
    for _ in range(12):
        d.step()
    second = d.add("b", [*first.tokens.array.tolist(), 100, 101])
    d.step()
    assert second.num_cached == 20


def test_other_namespaces_share_nothing() -> None:
    d = driver()
    d.add("a", range(20), namespace=("x",))
    d.run()
    other = d.add("b", range(20), namespace=("y",))
    d.run()
    assert other.num_cached == 0


# Sharing within a step


def test_requests_of_the_same_step_share_full_blocks() -> None:
    d = driver()
    d.add("a", range(30))
    b = d.add("b", [*range(26), 99])
    assert counts(d) == {"a": 30, "b": 3}
    assert b.num_cached == 24
    assert d.done["b"] == expected_reply([*range(26), 99], 1)


def test_nobody_waits_for_tokens_that_another_will_compute() -> None:
    d = driver(budget=20)
    d.add("a", range(30))
    d.step()
    b = d.add("b", range(30), max_tokens=2)
    assert counts(d) == {"a": 10, "b": 2}
    assert b.num_cached == 28


def test_a_block_that_two_requests_compute_is_stored_twice() -> None:
    d = driver()
    for name in "ab":
        d.add(name, range(28), max_tokens=9)
    assert counts(d) == {"a": 28, "b": 4}
    assert d.cache.stats().num_nodes == 8
    a, b = (d.live[name].table.slots[:28].tolist() for name in "ab")
    assert a[:24] == b[:24]
    assert set(a[24:]).isdisjoint(b[24:])
    d.run()
    assert d.done["a"] == d.done["b"] == expected_reply(range(28), 9)


def test_a_burst_of_identical_prompts_computes_the_last_block_each() -> None:
    d = driver(4000, budget=1000, max_num_seqs=64)
    requests = [d.add(f"r{i}", range(200), max_tokens=3, salt=i) for i in range(16)]
    d.run()
    assert [request.num_prefilled for request in requests] == [200] + [4] * 15
    assert [d.done[f"r{i}"] for i in range(16)] == [expected_reply(range(200), 3, i) for i in range(16)]


# Steps that fail


def test_after_a_failed_step_nothing_of_it_is_found() -> None:
    d = driver()
    d.add("old", range(8))
    d.run()
    a = d.add("a", range(40), max_tokens=3)
    b = d.add("b", [*range(30), 99, 98], max_tokens=3)
    d.scheduler.schedule()
    assert (a.num_owned, b.num_owned, b.num_borrowed) == (40, 32, 28)
    d.scheduler.rollback()
    d.scheduler.check_integrity()
    assert d.cache.peek(range(40)).length == 8
    d.run()
    assert d.done == {
        "old": expected_reply(range(8), 1),
        "a": expected_reply(range(40), 3),
        "b": expected_reply([*range(30), 99, 98], 3),
    }


def test_a_later_chunk_that_failed_is_withdrawn_alone() -> None:
    d = driver(budget=10)
    d.add("a", range(30))
    d.step()
    d.scheduler.schedule()
    d.scheduler.rollback()
    assert d.cache.peek(range(30)).length == 8
    d.run()
    assert d.done["a"] == expected_reply(range(30), 1)


# Memory


def test_memory_is_handed_out_in_whole_blocks() -> None:
    d = driver()
    a = d.add("a", range(10), max_tokens=3)
    d.step()
    slots = a.table.slots.reshape(-1, BLOCK)
    assert len(slots) == 3
    assert (slots[:, 0] % BLOCK == 0).all()
    assert d.cache.stats().free == 400 - 12


def test_an_admission_that_fails_touches_nothing() -> None:
    d = driver(40)
    d.add("a", range(8))
    d.run()
    d.add("b", range(100, 116), max_tokens=9)
    d.step()
    d.step()
    waiter = d.add("c", [*range(8), *range(200, 208)])
    before = d.cache.stats(), list(d.cache._idle)  # type: ignore[attr-defined]
    assert before[0].free + before[0].evictable == 12  # and c needs 8 beside the 8 that it finds
    assert counts(d) == {"b": 1}
    assert waiter.state is RequestState.WAITING
    assert (d.cache.stats(), list(d.cache._idle)) == before  # type: ignore[attr-defined]
    d.run()
    assert waiter.num_cached == 8


def test_a_finished_request_gives_up_its_last_block_first() -> None:
    d = driver(24)
    d.add("a", range(12))
    d.run()
    d.add("b", range(100, 116))
    d.run()
    assert d.cache.peek(range(12)).length == 8


def test_statistics_are_in_tokens_once_an_admission() -> None:
    d = driver(24, budget=4)
    d.add("a", range(8), max_tokens=6)
    d.add("b", range(8), max_tokens=2)
    d.run()
    stats = d.cache.stats()
    assert stats.queries == 2
    assert stats.query_tokens == 14  # the last token of a prompt is never looked up
    assert stats.hit_tokens == d.scheduler.counts.cached_tokens == 4
    assert d.scheduler.counts.prompt_tokens == 16
