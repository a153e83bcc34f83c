"""When the engine says that its pool is too small, and what it says."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from mainstem.engine import LLM
from mainstem.engine.thrash import ThrashWatch
from mainstem.params import SamplingParams
from mainstem.tree import EvictionReason
from tests.clock import Clock


def test_much_of_what_was_computed_before_is_worth_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = ThrashWatch(10_000, clock)
    with caplog.at_level(logging.WARNING):
        for step in range(1, 30):
            clock.now = 10.0 * step
            watch.sample(500 * step, 1000 * step)
    assert (watch.tokens_per_s, watch.share) == (50.0, 0.5)
    (message,) = caplog.messages
    assert "50 tokens a second" in message
    assert "--kv-memory" in message


def test_a_little_is_worth_none(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = ThrashWatch(10_000, clock)
    for step in range(1, 30):
        clock.now = 10.0 * step
        watch.sample(100 * step, 1000 * step)
    assert watch.is_active
    assert not caplog.messages


def test_a_minute_without_any_is_calm_again() -> None:
    clock = Clock()
    watch = ThrashWatch(10_000, clock)
    for now, total in ((10.0, 500), (20.0, 500), (90.0, 500), (160.0, 500)):
        clock.now = now
        watch.sample(total, total)
    assert not watch.is_active


def test_conversations_that_push_each_other_out_are_counted(tiny_model: Path) -> None:
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    with LLM(str(tiny_model), kv_memory="1MiB", kv_dtype="float32", device="cpu") as llm:  # 2,048 slots
        prompts = [[*range(first, first + 90)] * 10 for first in (10, 20, 30)]
        for _ in range(2):
            for prompt in prompts:
                llm.generate(prompt, params)
        stats = llm.stats()
        assert stats.recomputed_tokens > 1000
        assert stats.recomputed_tokens <= stats.prefilled_tokens - 2700
        llm.reset_cache()
        llm.generate(prompts[0], params)
        assert llm.stats().recomputed_tokens == stats.recomputed_tokens


def test_what_expired_while_idle_was_not_evicted(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    with LLM(str(tiny_model), kv_memory="1MiB", kv_dtype="float32", device="cpu", cache_ttl="0.1s") as llm:
        prompt = [*range(10, 100)] * 10
        llm.generate(prompt, params)
        deadline = time.monotonic() + 30
        while llm.stats().evicted_by_reason[EvictionReason.EXPIRED] < 900 and time.monotonic() < deadline:
            time.sleep(0.05)
        llm.generate(prompt, params)
        stats = llm.stats()
    assert stats.prefilled_tokens == 1800
    assert stats.recomputed_tokens == 0
    assert not caplog.messages


def test_what_is_scored_again_was_not_evicted(tiny_model: Path) -> None:
    with LLM(str(tiny_model), kv_memory="4MiB", device="cpu") as llm, llm.context([*range(10, 110)]) as context:
        for _ in range(2):
            context.score([*range(10, 110)])
        assert llm.stats().recomputed_tokens == 0


def test_without_a_cache_nothing_was_evicted(tiny_model: Path) -> None:
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    with LLM(str(tiny_model), kv_memory="4MiB", device="cpu", prefix_cache="none") as llm:
        for _ in range(2):
            llm.generate([*range(10, 210)], params)
        assert llm.stats().recomputed_tokens == 0
