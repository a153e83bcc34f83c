"""Which calls of a workload are sent when, and with what."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from mainstem.bench.closed_loop import run_closed_loop, with_other_tokens
from mainstem.bench.workload import Call, Workload
from mainstem.errors import MainstemError
from mainstem.tree import common_length
from tests.bench.fake_server import Habits, fake_server
from tests.bench.test_http import client


def _call(appended: list[int], *, after: int | None = None, extends: bool = False, reply: int = 2) -> Call:
    return Call(
        session=0, turn=1, after=after, extends=extends, appended=np.array(appended, np.int32), reply_tokens=reply
    )


def _workload(*calls: Call) -> Workload:
    return Workload(name="test", settings={}, calls=calls, vocab_size=1000)


async def test_a_call_extends_the_reply_that_it_waited_for() -> None:
    habits = Habits()
    workload = _workload(_call([7, 8]), _call([9], after=0, extends=True), _call([5], after=0))
    with fake_server(habits) as url:
        async with client(url) as server:
            before = len(habits.asked)
            ended: list[int] = []
            replies = await run_closed_loop(server, workload, ended.append)
    prompts = [body["prompt"] for body in habits.asked[before:]]
    assert prompts[0] == [7, 8]
    assert sorted(prompts[1:]) == [[5], [7, 8, 500, 501, 9]]
    assert sorted(ended) == [0, 1, 2]
    assert [reply.prompt_tokens for reply in replies] == [2, 5, 1]


async def test_calls_that_wait_for_nothing_run_at_the_same_time() -> None:
    habits = Habits()
    with fake_server(habits) as url:
        async with client(url) as server:
            habits.gathers = 5
            await run_closed_loop(server, _workload(*(_call([number]) for number in range(5))), lambda _: None)
    assert habits.most_running == 5


async def test_a_failing_call_ends_the_run_and_is_named() -> None:
    habits = Habits()
    with fake_server(habits) as url:
        async with client(url) as server:
            habits.gathers, habits.token_s = 2, 0.01
            habits.fails_at = len(habits.asked) + 1
            workload = _workload(_call([7]), _call([8], reply=500), _call([9], after=1))
            with pytest.raises(MainstemError, match=r"call 1 of 3 \(session 0, turn 1, about 1 tokens\): .*memory"):
                await run_closed_loop(server, workload, lambda _: None)
            while habits.running:
                await asyncio.sleep(0.01)
            assert len(habits.asked) == habits.fails_at + 1


def test_other_tokens_share_as_much_and_nothing_with_the_first() -> None:
    workload = _workload(_call([100, 200, 300]), _call([100, 200, 999]), _call([5], after=0, extends=True))
    others = [with_other_tokens(workload, repeat) for repeat in range(20)]
    assert np.array_equal(others[0].calls[1].appended, workload.calls[1].appended)
    first_tokens = [other.calls[0].appended[0] for other in others]
    assert len(set(first_tokens)) == len(others)
    for other in others:
        first, second, last = (call.appended for call in other.calls)
        assert common_length(first, second) == 2
        assert len(set(first) | set(second) | set(last)) == 5
        assert all(5 <= token < 1000 for token in (*first, *second, *last))
        assert other.prompt_lengths == workload.prompt_lengths
