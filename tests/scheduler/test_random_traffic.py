"""Random arrivals, aborts and resets in small pools: every reply is right, and memory always adds up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mainstem.errors import PromptTooLong
from mainstem.scheduler.waiting import ORDERS
from mainstem.tree import CACHES
from tests.scheduler.driver import Driver, expected_reply

ARRANGEMENTS = [
    (kind, schedule) for kind in sorted(CACHES) for schedule in sorted(ORDERS) if kind == "radix" or schedule != "lpm"
]
token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=14)


# With `by_tenant` the first two parts name a tenant.
NAMESPACES = st.sampled_from([(), ("tenant", "a"), ("tenant", "a", "salt", "x"), ("tenant", "b")])
# What tenants share: nothing, these tokens, or what two of them have sent.
PUBLIC: list[tuple[list[int], int]] = [([], 0), ([0, 1, 2, 0], 0), ([], 2)]


class TrafficMachine(RuleBasedStateMachine):
    """The driver verifies every slot that is read; here it is given as little order as possible."""

    @initialize(
        num_slots=st.integers(8, 60),
        budget=st.integers(1, 12),
        max_num_seqs=st.integers(1, 5),
        arrangement=st.sampled_from(ARRANGEMENTS),
        page_size=st.integers(1, 4),
        anti_thrash=st.booleans(),
        by_tenant=st.booleans(),
        tenant_quota=st.sampled_from([1.0, 0.5]),
        public=st.sampled_from(PUBLIC),
    )
    def start(
        self,
        num_slots: int,
        budget: int,
        max_num_seqs: int,
        arrangement: tuple[str, str],
        page_size: int,
        anti_thrash: bool,
        by_tenant: bool,
        tenant_quota: float,
        public: tuple[list[int], int],
    ) -> None:
        capacity = max(num_slots // page_size, 2) * page_size
        kind, schedule = arrangement
        self.driver = Driver(
            capacity,
            budget=budget,
            max_num_seqs=max_num_seqs,
            kind=kind,
            page_size=page_size,
            schedule=schedule,
            anti_thrash=anti_thrash,
            by_tenant=by_tenant,
            tenant_quota=tenant_quota,
            declared=public[0],
            share_after=public[1],
        )
        if anti_thrash:
            self.driver.scheduler.conversations.return_rate = 1.0
        self.asked: dict[str, tuple[list[int], int, int]] = {}
        self.scored: dict[str, range] = {}

    @rule(
        prompt=token_lists,
        max_tokens=st.integers(1, 12),
        namespace=NAMESPACES,
        copies=st.integers(1, 5),
        twins=st.booleans(),
    )
    def add(
        self, prompt: list[int], max_tokens: int, namespace: tuple[str, ...], copies: int, twins: bool = False
    ) -> None:
        for copy in range(copies):
            name, salt = f"r{len(self.asked)}", 0 if twins else copy
            try:
                request = self.driver.add(name, prompt, max_tokens, namespace=namespace, salt=salt)
            except PromptTooLong:
                assert len(prompt) > self.driver.cache.capacity
                return
            self.asked[name] = (prompt, request.max_tokens, salt)

    @rule(data=st.data())
    @precondition(lambda self: self.driver.live)
    def continue_a_conversation(self, data: st.DataObject) -> None:
        request = self.driver.live[data.draw(st.sampled_from(sorted(self.driver.live)))]
        self.add([*request.tokens.array.tolist(), *data.draw(token_lists)][:40], 3, request.namespace, 1)

    @rule(data=st.data())
    @precondition(lambda self: self.driver.done)
    def take_the_next_turn(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.driver.done) & set(self.asked)) or [""]))
        if name:
            self.add([*self.asked[name][0], *self.driver.done[name], *data.draw(token_lists)][:40], 3, (), 1)

    @rule(prompt=token_lists, data=st.data(), namespace=NAMESPACES, hold=st.booleans())
    def score(self, prompt: list[int], data: st.DataObject, namespace: tuple[str, ...], hold: bool) -> None:
        """Up to the length of the prompt: then it is only computed."""
        name = f"s{len(self.scored)}"
        first = data.draw(st.integers(0, len(prompt)))
        try:
            self.driver.add(name, prompt, namespace=namespace, score_from=first, hold=hold)
        except PromptTooLong:
            return
        self.scored[name] = range(first, len(prompt))

    @rule(data=st.data())
    @precondition(lambda self: self.driver.live)
    def hold(self, data: st.DataObject) -> None:
        self.driver.to_hold.add(data.draw(st.sampled_from(sorted(self.driver.live))))

    @rule(data=st.data())
    @precondition(lambda self: self.driver.holds)
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.driver.holds) - 1))
        self.driver.scheduler.release(self.driver.holds.pop(index))
        self.driver.scheduler.check_integrity()

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.driver.scheduler.has_work() and not self.driver.step().scheduled:
                self.driver.refuse_first()
        self.check_replies()

    @rule(data=st.data())
    @precondition(lambda self: self.driver.live)
    def abort(self, data: st.DataObject) -> None:
        self.driver.abort(data.draw(st.sampled_from(sorted(self.driver.live))))
        self.driver.scheduler.check_integrity()

    @rule()
    def reset(self) -> None:
        self.driver.cache.reset()
        self.driver.scheduler.check_integrity()

    @rule(data=st.data(), position=st.integers(0, 14))
    @precondition(lambda self: self.driver.live)
    def spoil_some_requests(self, data: st.DataObject, position: int) -> None:
        names = data.draw(st.sets(st.sampled_from(sorted(self.driver.live)), min_size=1, max_size=2))
        self.driver.step(dict.fromkeys(names, position))

    @rule()
    def fail_a_step(self) -> None:
        self.driver.scheduler.schedule()
        self.driver.scheduler.rollback()
        for request in list(self.driver.scheduler.running):
            self.driver.abort(request.id)
        self.driver.scheduler.check_integrity()

    def check_replies(self) -> None:
        for name, reply in self.driver.done.items():
            if name in self.scored:
                assert self.driver.scores[name] == list(self.scored[name])
            else:
                assert reply == expected_reply(*self.asked[name])

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.to_hold.clear()
        while self.driver.holds:
            self.driver.scheduler.release(self.driver.holds.pop())
        self.driver.run(max_steps=5000)
        self.check_replies()
        assert self.driver.cache.stats().protected == 0
        self.driver.cache.reset()
        assert self.driver.cache.stats().free == self.driver.cache.capacity


TestTraffic = TrafficMachine.TestCase
TestTraffic.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


@given(
    st.lists(st.lists(st.tuples(token_lists, st.integers(1, 6)), min_size=1, max_size=4), min_size=1, max_size=6),
    st.sampled_from(["fcfs", "lpm", "dfs"]),
    st.integers(0, 30),
    st.integers(1, 9),
)
@settings(max_examples=150, deadline=None)
def test_conversations_end_in_every_pool_that_holds_the_longest(
    conversations: list[list[tuple[list[int], int]]], schedule: str, spare: int, budget: int
) -> None:
    longest = max(sum(len(said) + most for said, most in turns) for turns in conversations)
    driver = Driver(longest + spare, budget=budget, max_num_seqs=4, schedule=schedule, anti_thrash=True)
    driver.scheduler.conversations.return_rate = 1.0
    history: dict[int, list[int]] = {index: [] for index in range(len(conversations))}
    turn = dict.fromkeys(history, 0)
    for index in history:
        history[index] += conversations[index][0][0]
        driver.add(f"{index}-0", history[index], conversations[index][0][1])
    while driver.scheduler.has_work():
        assert driver.step().scheduled
        assert driver.steps < 5000
        for index, turns in enumerate(conversations):
            name = f"{index}-{turn[index]}"
            if name in driver.done and turn[index] + 1 < len(turns):
                turn[index] += 1
                said, most = turns[turn[index]]
                history[index] += [*driver.done[name], *said]
                driver.add(f"{index}-{turn[index]}", history[index], most)
    assert len(driver.done) == sum(map(len, conversations))
    assert driver.cache.stats().protected == 0


@pytest.mark.parametrize(("kind", "schedule"), ARRANGEMENTS)
@given(
    st.lists(st.tuples(token_lists, st.integers(1, 8), NAMESPACES), min_size=1, max_size=8),
    st.integers(0, 40),
    st.integers(1, 9),
    st.integers(1, 4),
    st.booleans(),
)
@settings(max_examples=100)
def test_every_pool_that_holds_the_longest_request_serves_all(
    kind: str,
    schedule: str,
    requests: list[tuple[list[int], int, tuple[str, ...]]],
    spare: int,
    budget: int,
    page_size: int,
    by_tenant: bool,
) -> None:
    longest = max(len(prompt) + max_tokens - 1 for prompt, max_tokens, _ in requests)
    capacity = longest + spare
    capacity += -capacity % page_size
    driver = Driver(
        capacity,
        budget=budget,
        max_num_seqs=6,
        kind=kind,
        page_size=page_size,
        schedule=schedule,
        by_tenant=by_tenant,
    )
    for i, (prompt, max_tokens, namespace) in enumerate(requests):
        driver.add(f"r{i}", prompt, max_tokens, namespace=namespace)
    driver.run()
    assert driver.done == {f"r{i}": expected_reply(prompt, n) for i, (prompt, n, _) in enumerate(requests)}


@given(st.lists(token_lists, min_size=1, max_size=10), st.integers(10, 20))
def test_with_ample_memory_no_prompt_token_is_computed_twice(prompts: list[list[int]], budget: int) -> None:
    driver = Driver(1000, budget=budget, max_num_seqs=16)
    for i, prompt in enumerate(prompts):
        driver.add(f"r{i}", prompt)
    driver.run()
    seen = [key for _, key, _ in driver.computed]
    assert len(seen) == len(set(seen)) == len({tuple(p[:end]) for p in prompts for end in range(1, len(p) + 1)})


@pytest.mark.parametrize("quota", [0.5, 1.0])
@pytest.mark.parametrize("num_slots", range(12, 18))
@pytest.mark.parametrize("salts", [range(5), [0] * 5], ids=["branches", "twins"])
def test_who_lends_a_single_token_of_its_reply_owns_it(num_slots: int, quota: float, salts: Sequence[int]) -> None:
    """Requests for the same are preempted; one comes back, computes one token, and another only samples from it."""
    driver = Driver(num_slots, budget=4, max_num_seqs=5, by_tenant=True, tenant_quota=quota, schedule="lpm")
    prompt = [1, 2, 2, 0, 0, 1, 0]
    for i, salt in enumerate(salts):
        driver.add(f"r{i}", prompt, 10, namespace=("tenant", "a"), salt=salt)
    while driver.scheduler.has_work():
        if not driver.step().scheduled:
            driver.refuse_first()
        driver.scheduler.check_integrity()
    for i, salt in enumerate(salts):
        reply = driver.done.get(f"r{i}", [])
        assert reply == expected_reply(prompt, len(reply), salt)
