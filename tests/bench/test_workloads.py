"""Tests of the workloads' shapes: they are what their descriptions say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mainstem.bench.workload import Workload
from mainstem.bench.workloads.agent import TurnRange, agent
from mainstem.bench.workloads.branch import branch
from mainstem.bench.workloads.chat import chat
from mainstem.errors import ConfigError
from mainstem.tree import common_length

VOCAB_SIZE = 1000
FIELDS = ("session", "turn", "after", "extends", "reply_tokens", "wait")
MAKERS: list[Callable[..., Workload]] = [agent, branch, chat]


@pytest.mark.parametrize("make", MAKERS)
def test_the_seed_fixes_everything(make: Callable[..., Workload]) -> None:
    first, again, other = (make(seed=seed, vocab_size=VOCAB_SIZE) for seed in (1, 1, 2))
    assert len(first.calls) == len(again.calls)
    for a, b in zip(first.calls, again.calls, strict=True):
        assert np.array_equal(a.appended, b.appended)
        assert (a.session, a.turn, a.after, a.reply_tokens, a.wait) == (
            b.session,
            b.turn,
            b.after,
            b.reply_tokens,
            b.wait,
        )
    assert not np.array_equal(first.calls[0].appended, other.calls[0].appended)


@pytest.mark.parametrize("make", MAKERS)
def test_tokens_are_of_the_vocabulary(make: Callable[..., Workload]) -> None:
    every = np.concatenate([call.appended for call in make(vocab_size=300).calls])
    assert every.min() >= 30
    assert every.max() == 299


@pytest.mark.parametrize("make", MAKERS)
def test_scale_changes_lengths_and_nothing_else(make: Callable[..., Workload]) -> None:
    small, large = make(scale=0.1, vocab_size=VOCAB_SIZE), make(scale=0.5, vocab_size=VOCAB_SIZE)
    assert [call.after for call in small.calls] == [call.after for call in large.calls]
    assert [call.wait for call in small.calls] == [call.wait for call in large.calls]
    assert max(large.prompt_lengths) > 3 * max(small.prompt_lengths)


def test_agents_at_full_scale_have_the_lengths_of_the_field() -> None:
    workload = agent(scale=1.0, agents=8, vocab_size=VOCAB_SIZE)
    lengths: dict[int, list[int]] = {}
    for call, length in zip(workload.calls, workload.prompt_lengths, strict=True):
        lengths.setdefault(call.turn, []).append(length)
    assert lengths[1] == [9650] * 8
    assert np.mean(lengths[10]) == pytest.approx(18_000, rel=0.03)
    assert min(map(len, lengths.values())) >= 8 or len(lengths) <= 15
    assert {max(call.turn for call in workload.calls if call.session == s) for s in range(8)} <= set(range(8, 16))


def test_agents_share_the_head_and_not_the_task() -> None:
    firsts = [call.appended for call in agent(scale=0.1, agents=3, vocab_size=VOCAB_SIZE).calls if call.turn == 1]
    assert common_length(firsts[0], firsts[1]) in range(950, 954)


def test_every_turn_but_the_first_goes_on_from_the_one_before() -> None:
    for call_index, call in enumerate(agent(vocab_size=VOCAB_SIZE).calls):
        assert (call.after, call.extends) == ((None, False) if call.turn == 1 else (call_index - 1, True))


def test_branches_are_short_distinct_thoughts_below_the_best() -> None:
    workload = branch(branches=5, depth=3, scale=0.1, vocab_size=VOCAB_SIZE)
    roots = [call.appended for call in workload.calls if call.turn == 1]
    assert all(20 <= len(root) - 1200 <= 100 for root in roots)
    assert len({root[1200:].tobytes() for root in roots}) == 5
    for turn in (2, 3):
        level = [call for call in workload.calls if call.turn == turn]
        assert len({call.after for call in level}) == 1
        assert workload.calls[level[0].after or 0].turn == turn - 1
        assert all(20 <= len(call.appended) <= 100 for call in level)


def test_some_system_prompts_are_much_more_popular_than_others() -> None:
    workload = chat(sessions=300, system_prompts=10, scale=0.1, vocab_size=VOCAB_SIZE)
    heads = [call.appended[:50].tobytes() for call in workload.calls if call.turn == 1]
    counts = sorted((heads.count(head) for head in set(heads)), reverse=True)
    assert counts[0] > 5 * counts[-1]


def test_people_pause_a_minute_or_two_and_sometimes_very_long() -> None:
    pauses = [call.wait for call in chat(sessions=500, vocab_size=VOCAB_SIZE, scale=0.1).calls if call.turn > 1]
    assert np.median(pauses) == pytest.approx(86, rel=0.2)
    assert np.percentile(pauses, 90) == pytest.approx(1260, rel=0.3)


def test_what_makes_no_workload_is_refused() -> None:
    with pytest.raises(ConfigError, match="scale must be above 0"):
        agent(scale=0.0, vocab_size=VOCAB_SIZE)
    with pytest.raises(ConfigError, match="turns must go up, got 5-3"):
        agent(turns=TurnRange(5, 3), vocab_size=VOCAB_SIZE)
    with pytest.raises(ConfigError, match="branches must be above 0"):
        branch(branches=0, vocab_size=VOCAB_SIZE)
    with pytest.raises(ConfigError, match="system prompts must be above 0"):
        chat(system_prompts=0, vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("scale", [1e308, 101, float("inf")])
def test_a_scale_that_nothing_could_hold_is_refused(make: Callable[..., Workload], scale: float) -> None:
    with pytest.raises(ConfigError, match="scale must be at most 100"):
        make(scale=scale, vocab_size=VOCAB_SIZE)


def test_more_calls_than_anyone_would_wait_for_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 1,000,000"):
        agent(scale=0.01, agents=99_999_999, vocab_size=VOCAB_SIZE)
    with pytest.raises(ConfigError, match="10,000,000 calls"):
        branch(branches=1000, depth=10_000, vocab_size=VOCAB_SIZE)
