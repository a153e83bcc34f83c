"""Tests of the scheduler: the token budget, admission, sharing, preemption."""

from __future__ import annotations

import pytest

from mainstem.errors import PromptTooLong
from mainstem.scheduler import RequestState, SchedulerOutput
from tests.scheduler.driver import Driver, expected_reply


def counts(output: SchedulerOutput) -> dict[str, int]:
    return {s.request.id: s.stop - s.start for s in output.scheduled}


# The budget


def test_a_long_prompt_is_computed_in_chunks() -> None:
    driver = Driver(100, budget=8)
    driver.add("a", range(20))
    assert [counts(driver.step()) for _ in range(3)] == [{"a": 8}, {"a": 8}, {"a": 4}]


def test_decoding_requests_come_before_a_long_prompt() -> None:
    driver = Driver(200, budget=8)
    for name in "abc":
        driver.add(name, [ord(name)], max_tokens=50)
    driver.step()
    driver.add("long", range(40), max_tokens=2)
    assert counts(driver.step()) == {"a": 1, "b": 1, "c": 1, "long": 5}
    assert counts(driver.step()) == {"a": 1, "b": 1, "c": 1, "long": 5}


def test_what_is_left_of_the_budget_goes_to_the_next_prompt() -> None:
    driver = Driver(100, budget=8)
    driver.add("a", [1, 2, 3])
    driver.add("b", [4, 5, 6, 7, 8, 9])
    assert counts(driver.step()) == {"a": 3, "b": 5}


def test_no_more_requests_run_than_allowed() -> None:
    driver = Driver(100, budget=100, max_num_seqs=2)
    for name in "abcd":
        driver.add(name, [ord(name)] * 3, max_tokens=3)
    assert set(counts(driver.step())) == {"a", "b"}
    driver.run()
    assert len(driver.done) == 4


def test_requests_are_admitted_in_order_of_arrival() -> None:
    driver = Driver(100, budget=4, max_num_seqs=1)
    for name in "abc":
        driver.add(name, [ord(name)] * 3, max_tokens=2)
    driver.run()
    assert list(driver.done) == ["a", "b", "c"]


# Reuse


def test_a_second_turn_computes_only_what_is_new() -> None:
    driver = Driver(200)
    first = driver.add("a", range(20), max_tokens=5)
    driver.run()
    history = first.tokens.array.tolist()
    second = driver.add("b", [*history, 100, 101], max_tokens=3)
    driver.run()
    assert second.num_cached == len(history) - 1  # the reply's last token was never computed
    assert second.num_prefilled == 3


def test_an_exact_repeat_computes_one_token() -> None:
    driver = Driver(200)
    driver.add("a", range(20))
    driver.run()
    again = driver.add("b", range(20))
    driver.run()
    assert (again.num_cached, again.num_prefilled) == (19, 1)
    assert driver.cache.stats().protected == 0


def test_a_prefix_of_a_cached_prompt_computes_one_token() -> None:
    driver = Driver(200)
    driver.add("a", range(20))
    driver.run()
    shorter = driver.add("b", range(10))
    driver.run()
    assert (shorter.num_cached, shorter.num_prefilled) == (9, 1)


def test_other_namespaces_share_nothing() -> None:
    driver = Driver(200)
    driver.add("a", range(20), namespace=("x",))
    driver.run()
    other = driver.add("b", range(20), namespace=("y",))
    driver.run()
    assert other.num_cached == 0


def test_without_reuse_every_prompt_is_computed() -> None:
    driver = Driver(200, kind="none")
    driver.add("a", range(20), max_tokens=3)
    driver.run()
    again = driver.add("b", range(20), max_tokens=3)
    driver.run()
    assert (again.num_cached, again.num_prefilled) == (0, 20)
    assert driver.cache.stats().free == 200


# Sharing what is being computed


def test_a_burst_of_identical_prompts_computes_each_token_once() -> None:
    driver = Driver(4000, budget=64, max_num_seqs=64)
    requests = [driver.add(f"r{i}", range(200), max_tokens=4, salt=i) for i in range(32)]
    driver.run()
    assert sum(request.num_prefilled for request in requests) == 200
    prompt_tokens = [key for _, key, _ in driver.computed if len(key) <= 200]
    assert len(prompt_tokens) == len(set(prompt_tokens)) == 200


def test_a_burst_of_identical_prompts_that_are_cached_computes_one_token() -> None:
    driver = Driver(4000, budget=64, max_num_seqs=64)
    driver.add("first", range(200))
    driver.run()
    requests = [driver.add(f"r{i}", range(200), max_tokens=4, salt=i) for i in range(32)]
    driver.run()
    assert sum(request.num_prefilled for request in requests) == 1
    assert [driver.done[f"r{i}"] for i in range(32)] == [expected_reply(range(200), 4, i) for i in range(32)]


def test_a_burst_of_overlapping_prompts_computes_each_distinct_token_once() -> None:
    driver = Driver(4000, budget=16, max_num_seqs=16)
    prompts = [[*range(100), *([200 + i % 3] * (i % 5)), *range(300 + i, 300 + 2 * i)] for i in range(12)]
    for i, prompt in enumerate(prompts):
        driver.add(f"r{i}", prompt)
    driver.run()
    distinct = {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)}
    assert len(driver.computed) == len(distinct)


def test_a_prefix_of_a_prompt_that_is_being_computed_samples_from_its_logits() -> None:
    driver = Driver(400, budget=100)
    driver.add("long", range(50))
    short = driver.add("short", range(20))
    output = driver.step()
    assert counts(output) == {"long": 50}
    assert (short.num_cached, short.num_prefilled) == (20, 0)
    assert driver.done["short"] == expected_reply(range(20), 1)


def test_an_unrelated_prompt_does_not_wait_for_one_that_does() -> None:
    driver = Driver(400, budget=12)
    driver.add("a", range(30))
    driver.add("same", range(30))
    driver.add("other", [100, 101])
    driver.step()  # a: 12 of 30
    driver.step()  # a: 24 of 30
    assert counts(driver.step()) == {"a": 6, "other": 2}
    assert set(driver.done) == {"a", "same", "other"}


def test_a_waiter_goes_on_by_itself_when_the_request_it_waits_for_is_aborted() -> None:
    driver = Driver(400, budget=8)
    driver.add("a", range(30))
    waiter = driver.add("b", range(30))
    driver.step()
    driver.abort("a")
    driver.run()
    assert (waiter.num_cached, waiter.num_prefilled) == (8, 22)


# Memory


def test_a_prompt_that_can_never_fit_is_refused_at_once() -> None:
    driver = Driver(10)
    with pytest.raises(PromptTooLong, match=r"at most 11 tokens .* has 11 tokens"):
        driver.add("a", range(11))
    assert not driver.scheduler.has_work()


def test_a_prompt_as_long_as_the_pool_can_be_served() -> None:
    driver = Driver(10)
    request = driver.add("a", range(10), max_tokens=5)
    driver.run()
    assert request.num_generated == 1


def test_a_prompt_beyond_the_context_is_refused() -> None:
    driver = Driver(100, max_model_len=20)
    with pytest.raises(PromptTooLong, match=r"at most 20"):
        driver.add("a", range(20))


def test_a_reply_ends_where_the_context_does() -> None:
    driver = Driver(100, max_model_len=20)
    request = driver.add("a", range(15), max_tokens=50)
    driver.run()
    assert request.num_generated == 5


def test_a_request_that_fits_only_after_others_waits() -> None:
    driver = Driver(30, budget=30)
    driver.add("a", range(20), max_tokens=5)
    big = driver.add("b", range(100, 125), max_tokens=2)
    driver.step()
    assert big.state is RequestState.WAITING
    driver.run()
    assert driver.done["b"] == expected_reply(range(100, 125), 2)


def test_failed_admissions_change_nothing() -> None:
    driver = Driver(30, budget=30)
    driver.add("a", range(20), max_tokens=5)
    driver.step()
    driver.add("b", [*range(10), *range(100, 118)], max_tokens=2)
    before = driver.cache.stats()
    driver.scheduler.schedule()
    after = driver.cache.stats()
    assert (after.queries, after.num_nodes, after.evictable) == (before.queries, before.num_nodes, before.evictable)


def test_preempted_requests_get_the_reply_they_would_have_had() -> None:
    driver = Driver(40, budget=16, max_num_seqs=4)
    prompts = {name: [ord(name)] * 8 for name in "abcd"}
    for name, prompt in prompts.items():
        driver.add(name, prompt, max_tokens=20)
    driver.run()
    assert driver.scheduler.counts.preemptions > 0
    assert driver.done == {name: expected_reply(prompt, 20) for name, prompt in prompts.items()}


def test_the_earliest_request_is_never_preempted() -> None:
    driver = Driver(40, budget=16, max_num_seqs=4)
    first = driver.add("a", [1] * 8, max_tokens=25)
    for name in "bcd":
        driver.add(name, [ord(name)] * 8, max_tokens=25)
    driver.run()
    assert first.num_preemptions == 0


def test_reserved_slots_are_taken_back_before_anybody_is_preempted() -> None:
    driver = Driver(80, budget=16)
    driver.add("a", [1] * 4, max_tokens=60)
    driver.add("b", [2] * 4, max_tokens=6)
    driver.run()
    assert driver.scheduler.counts.preemptions == 0


# Ends


@pytest.mark.parametrize("steps", [0, 1, 2, 4, 7])
def test_an_abort_at_any_moment_releases_everything_and_keeps_what_was_computed(steps: int) -> None:
    driver = Driver(100, budget=8)
    request = driver.add("a", range(20), max_tokens=50)
    for _ in range(steps):
        driver.step()
    computed = request.num_computed
    driver.abort("a")
    driver.scheduler.check_integrity()
    stats = driver.cache.stats()
    assert (stats.protected, stats.evictable) == (0, computed)


def test_finishing_twice_is_harmless() -> None:
    driver = Driver(100)
    request = driver.add("a", range(5))
    driver.run()
    driver.scheduler.finish(request)
    driver.scheduler.check_integrity()


def test_after_a_failed_step_nothing_of_it_is_cached() -> None:
    driver = Driver(200, budget=64)
    a = driver.add("a", range(40), max_tokens=3)
    b = driver.add("b", [*range(30), 99, 98], max_tokens=3)
    c = driver.add("c", range(40), max_tokens=3)
    driver.scheduler.schedule()
    assert b.num_borrowed == 30
    assert c.num_borrowed == 40
    driver.scheduler.rollback()
    for request in (a, b, c):
        driver.scheduler.finish(request)
    driver.scheduler.check_integrity()
    assert driver.cache.stats().free == 200


@pytest.mark.parametrize(("kind", "page_size"), [("radix", 1), ("radix", 2), ("block-hash", 2)])
def test_a_request_that_failed_for_the_sake_of_another_is_served_after_all(kind: str, page_size: int) -> None:
    driver = Driver(200, budget=64, kind=kind, page_size=page_size)
    prompts = {"a": [*range(40)], "b": [*range(30), 99, 98], "c": [*range(40)]}
    for name, prompt in prompts.items():
        driver.add(name, prompt, max_tokens=3)
    driver.step({"a": 5})
    assert set(driver.live) == {"b", "c"}
    assert driver.cache.stats().free == 200
    driver.run()
    assert driver.done == {name: expected_reply(prompts[name], 3) for name in "bc"}


@pytest.mark.parametrize(("kind", "page_size"), [("radix", 1), ("radix", 2), ("block-hash", 2)])
def test_who_shares_the_sound_tokens_of_a_failed_request_goes_on(kind: str, page_size: int) -> None:
    driver = Driver(200, budget=64, kind=kind, page_size=page_size)
    prompts = {"a": [*range(40)], "b": [*range(30), 99, 98], "c": [*range(30), 99, 98, 97]}
    for name, prompt in prompts.items():
        driver.add(name, prompt, max_tokens=3)
    driver.step({"a": 35})
    assert set(driver.live) == {"b", "c"}
    driver.run()
    assert driver.done == {name: expected_reply(prompts[name], 3) for name in "bc"}


@pytest.mark.parametrize(("kind", "page_size"), [("radix", 1), ("block-hash", 2)])
def test_a_request_that_fails_by_itself_is_not_tried_again(kind: str, page_size: int) -> None:
    driver = Driver(200, budget=64, kind=kind, page_size=page_size)
    driver.add("root", range(30))
    driver.run()
    driver.add("a", range(40), max_tokens=3)
    driver.add("b", [*range(30), 99, 98], max_tokens=3)
    driver.step({"b": 31})
    assert set(driver.live) == {"a"}


def test_a_reset_while_requests_run_disturbs_nobody() -> None:
    driver = Driver(200)
    driver.add("old", range(50, 80))
    driver.run()
    driver.add("a", range(20), max_tokens=10)
    driver.step()
    driver.step()
    driver.cache.reset()
    driver.scheduler.check_integrity()
    driver.run()
    assert driver.done["a"] == expected_reply(range(20), 10)
    driver.cache.reset()
    assert driver.cache.stats().free == 200
