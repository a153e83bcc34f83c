"""What is done for the cache between steps, and what new requests leave to it."""

from __future__ import annotations

import numpy as np
import pytest

from mainstem.params import SamplingParams
from mainstem.scheduler import Request, Scheduler, Upkeep
from mainstem.tree import RadixCache
from tests.clock import Clock


def test_room_is_made_down_to_the_low_watermark_once_the_high_one_is_passed() -> None:
    cache = RadixCache(100)
    upkeep = Upkeep(cache, high=0.9, low=0.7)
    cache.insert(range(90))
    assert upkeep.run() == 0
    cache.insert(range(100, 105))
    assert upkeep.run() == 25
    assert cache.allocator.num_free == 30


def test_what_runs_is_no_room() -> None:
    cache = RadixCache(100)
    cache.lock(cache.insert(range(95)).handle)
    assert Upkeep(cache, high=0.9, low=0.7).run() == 0


def test_without_watermarks_and_time_to_live_nothing_is_done() -> None:
    cache = RadixCache(10)
    cache.insert(range(10))
    upkeep = Upkeep(cache)
    assert upkeep.run() == 0
    assert upkeep.interval_s is None


def test_what_is_idle_is_dropped_ten_times_within_the_time_to_live() -> None:
    clock = Clock()
    cache = RadixCache(100, clock=clock)
    upkeep = Upkeep(cache, ttl_s=100.0, clock=clock)
    assert upkeep.interval_s == 10.0
    upkeep.run()
    cache.insert([1, 2])
    clock.now = 99.0
    cache.insert([3, 4])
    assert upkeep.run() == 0
    clock.now = 108.0
    assert upkeep.run() == 0  # it was looked 9 s ago
    clock.now = 109.0
    assert upkeep.run() == 2
    assert cache.peek([3, 4]).length == 2


def scheduler(reserve: float) -> Scheduler:
    cache = RadixCache(1000)
    cache.insert(range(1000))
    return Scheduler(cache, max_num_batched_tokens=4000, max_num_seqs=8, max_model_len=900, cache_reserve=reserve)


def request(first: int, length: int) -> Request:
    return Request(str(first), np.arange(first, first + length, dtype=np.int32), SamplingParams(), max_tokens=1)


@pytest.mark.parametrize(("reserve", "running"), [(0.0, 2), (0.2, 1)])
def test_a_new_request_leaves_the_reserve_to_the_cache_while_others_run(reserve: float, running: int) -> None:
    engine = scheduler(reserve)
    for first in (2000, 4000):
        engine.add(request(first, 450))
    engine.schedule()
    assert len(engine.running) == running


def test_a_request_that_runs_alone_may_take_the_reserve() -> None:
    engine = scheduler(0.2)
    engine.add(request(2000, 890))
    assert engine.schedule().scheduled[0].stop == 890


def test_a_request_that_waited_for_the_reserve_runs_when_the_others_are_done() -> None:
    engine = scheduler(0.2)
    for first in (2000, 4000):
        engine.add(request(first, 450))
    engine.commit(engine.schedule())
    engine.finish(engine.running[0])
    assert engine.schedule().scheduled[0].request.id == "4000"
