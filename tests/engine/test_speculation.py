"""Tests that drafts change the number of steps and nothing else: not one bit, not one word, not one slot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mainstem.config import EngineConfig
from mainstem.engine import LLM, Generation, ReplyResult, RequestOutput
from mainstem.engine.build import build_engine
from mainstem.engine.core import EngineCore
from mainstem.errors import ConfigError, MainstemError
from mainstem.native import native_library
from mainstem.params import SamplingParams
from tests.engine.support import assert_all_released, greedy, kv_memory_for, random_tokens, tiny_llm

PROMPTS = [random_tokens(40 + n, seed=n).tolist() for n in range(5)]
ARMS: dict[str, dict[str, Any]] = {
    "radix": {},
    "no cascade": {"cascade": False},
    "torch": {"kernels": "torch"},
    "block-hash": {"prefix_cache": "block-hash", "block_size": 5},
    "none": {"prefix_cache": "none"},
    "small steps": {"max_num_batched_tokens": 7},
    "little memory": {"kv_memory": kv_memory_for(160)},
}


def eager_llm(folder: Path, **settings: Any) -> LLM:
    """An engine that checks every draft there is, likely or not."""
    llm = tiny_llm(folder, speculate="tree,ngram", **settings)
    assert llm.core.speculation is not None
    llm.core.speculation.adaptive = False
    return llm


def eager_core(folder: Path) -> EngineCore:
    """The same without a thread."""
    core = build_engine(EngineConfig(model=str(folder), kv_memory="4MiB", speculate="tree,ngram")).core
    assert core.speculation is not None
    core.speculation.adaptive = False
    return core


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> LLM:
    return tiny_llm(tiny_model)


@pytest.fixture(scope="module")
def eager(tiny_model: Path) -> LLM:
    return eager_llm(tiny_model)


def said(generation: Generation) -> list[tuple[Any, ...]]:
    """All that is told of replies, but for times and counts."""
    return [
        (reply.token_ids, reply.text, reply.logprobs, reply.finish_reason, reply.stop_reason)
        for reply in generation.replies
    ]


def accepted(llm: LLM) -> int:
    return llm.stats().accepted_tokens


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_greedy_replies_are_those_without_drafts(tiny_model: Path, plain: LLM, arm: str) -> None:
    llm = eager_llm(tiny_model, **ARMS[arm])
    exact = native_library() is not None and arm != "torch"
    params = greedy(30, logprobs=0 if exact else None)
    expected = [said(generation) for generation in plain.generate(PROMPTS, params)]
    for _ in range(3):
        before = llm.stats()
        assert [said(generation) for generation in llm.generate(PROMPTS, params)] == expected
        assert_all_released(llm)
        after = llm.stats()
        assert after.drafted_tokens > before.drafted_tokens
        assert after.accepted_tokens > before.accepted_tokens
    if arm == "little memory":
        assert llm.stats().preemptions > 0
    elif arm in ("radix", "no cascade", "torch"):
        # A repeated task is read from the tree: most of its tokens come without a step of their own.
        assert after.accepted_tokens - before.accepted_tokens > 3 * (after.steps - before.steps)


@pytest.mark.skipif(native_library() is None, reason="the native extension was not built: no C compiler")
def test_the_same_bits_whatever_else_is_drafted(plain: LLM, eager: LLM) -> None:
    generator = np.random.default_rng(3)
    for _ in range(24):
        prompts = [
            [*PROMPTS[generator.integers(3)][: generator.integers(20, 40)], *generator.integers(3, 6, 6).tolist()]
            for _ in range(generator.integers(1, 6))
        ]
        params = greedy(int(generator.integers(1, 25)), logprobs=1)
        expected = [said(generation) for generation in plain.generate(prompts, params)]
        assert [said(generation) for generation in eager.generate(prompts, params)] == expected
    assert accepted(eager) > 200
    assert_all_released(eager)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "logprobs": 3},
        {"temperature": 0.3, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
        {"temperature": 0.5, "n": 4},
        {"temperature": 0.0, "frequency_penalty": 0.5},
        {"temperature": 0.6, "top_k": 3, "grammar": 'start: /[a-f ]{3,40}/ "."'},
    ],
)
def test_sampled_replies_are_those_of_their_seed(plain: LLM, eager: LLM, params: dict[str, Any]) -> None:
    wanted = SamplingParams(max_tokens=30, seed=5, **params)
    expected = [said(generation) for generation in plain.generate(PROMPTS, wanted)]
    before = accepted(eager)
    for _ in range(2):  # the second time, the tree knows all of it
        assert [said(generation) for generation in eager.generate(PROMPTS, wanted)] == expected
    assert accepted(eager) > before + 30
    assert_all_released(eager)


def test_sampling_keeps_the_distribution(plain: LLM, eager: LLM) -> None:
    """How often each reply of three tokens comes, with drafts, against how likely it is."""
    prompt, count = PROMPTS[0][:12], 16 * 128
    expected: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        expected = {
            (*said, token): p * q
            for said, p in expected.items()
            for token, q in probabilities(plain, [*prompt, *said]).items()
        }
    before = accepted(eager)
    seen = dict.fromkeys(expected, 0)
    for seed in range(0, count, 128):
        params = SamplingParams(n=128, max_tokens=3, top_k=3, ignore_eos=True, seed=seed)
        for reply in eager.generate([prompt], params)[0].replies:
            seen[tuple(reply.token_ids)] += 1
    assert accepted(eager) > before + 400
    # Pearson's test with 26 degrees of freedom: above 54 once in a thousand times.
    assert sum((seen[reply] - count * p) ** 2 / (count * p) for reply, p in expected.items()) < 54


def probabilities(llm: LLM, prompt: list[int]) -> dict[int, float]:
    """Of the three likeliest next tokens, when only they may be drawn."""
    top = llm.generate([prompt], greedy(1, logprobs=3))[0].replies[0].logprobs[0].top
    weights = np.exp([entry.logprob for entry in top])
    return {entry.token_id: weight / weights.sum() for entry, weight in zip(top, weights, strict=True)}


def test_ends_are_where_they_are_without_drafts(plain: LLM, eager: LLM) -> None:
    prompt = PROMPTS[1]
    whole = eager.generate([prompt], greedy(40))[0]
    for at in range(1, 40, 3):
        for ending in (
            {"max_tokens": at},
            {"max_tokens": 40, "stop_token_ids": (whole.token_ids[at],)},
            {"max_tokens": 40, "stop": (eager.tokenizer.decode(whole.token_ids[at : at + 2]),)},
        ):
            params = SamplingParams(temperature=0.0, ignore_eos=True, **ending)
            before = accepted(eager)
            generation = eager.generate([prompt], params)[0]
            assert said(generation) == said(plain.generate([prompt], params)[0])
            assert accepted(eager) > before or len(generation.token_ids) < 4
    assert_all_released(eager)


def test_the_models_own_end_of_turn_is_followed_by_nothing(plain: LLM, eager: LLM) -> None:
    params = SamplingParams(max_tokens=200, temperature=1.5, seed=11)
    expected = said(plain.generate([PROMPTS[2]], params)[0])
    assert expected[0][3] == "stop"
    for _ in range(2):
        assert said(eager.generate([PROMPTS[2]], params)[0]) == expected


def test_only_what_was_said_enters_the_cache(tiny_model: Path) -> None:
    llm = eager_llm(tiny_model)
    # A context full of wrong guesses, and replies that are drawn otherwise each time.
    prompt = [*([7, 8, 9, 10, 11, 12] * 5), 7, 8]
    known: set[tuple[int, ...]] = set()
    for seed in range(6):
        reply = llm.generate([prompt], SamplingParams(max_tokens=20, top_k=2, seed=seed, ignore_eos=True))[0]
        computed = [*prompt, *reply.token_ids[:-1]]
        known.update(tuple(computed[:length]) for length in range(1, len(computed) + 1))
        assert llm.stats().cache.evictable == len(known)
    stats = llm.stats()
    assert stats.drafted_tokens > stats.accepted_tokens + 50
    assert stats.accepted_tokens > 0
    assert_all_released(llm)


def test_usage_and_counts_tell_drafted_and_accepted_tokens(tiny_model: Path) -> None:
    llm = eager_llm(tiny_model)
    llm.generate([PROMPTS[0]], greedy(19))
    before = llm.stats()
    usage = llm.generate([PROMPTS[0]], greedy(19))[0].replies[0].usage
    assert usage is not None
    # One token of its own in each step, and up to eight that were drafted.
    assert usage.completion_tokens == 19
    assert usage.accepted_tokens == 16
    assert usage.drafted_tokens == llm.stats().drafted_tokens - before.drafted_tokens >= 16
    assert llm.stats().accepted_tokens - before.accepted_tokens == 16
    assert llm.stats().steps - before.steps == 3


def test_max_draft_bounds_what_a_step_gains(tiny_model: Path) -> None:
    llm = eager_llm(tiny_model, max_draft=2)
    llm.generate([PROMPTS[0]], greedy(30))
    before = llm.stats().steps
    llm.generate([PROMPTS[0]], greedy(30))
    assert llm.stats().steps - before == 10


@pytest.mark.parametrize("source", ["tree", "ngram"])
def test_each_source_drafts_by_itself(tiny_model: Path, source: str) -> None:
    llm = tiny_llm(tiny_model, speculate=source)
    assert llm.core.speculation is not None
    llm.core.speculation.adaptive = False
    llm.generate([PROMPTS[3]], greedy(30))
    of_first = llm.stats().drafted_tokens
    assert (of_first > 0) == (source == "ngram")
    llm.generate([PROMPTS[3]], greedy(30))
    gained = llm.stats().drafted_tokens - of_first
    assert (gained > 20) if source == "tree" else (gained == of_first)


def test_nothing_is_drafted_unless_asked(plain: LLM) -> None:
    plain.generate(PROMPTS, greedy(10))
    assert plain.core.speculation is None
    assert plain.stats().drafted_tokens == 0


def test_recorded_replies_are_drafted_like_any_other(tiny_model: Path) -> None:
    core = eager_core(tiny_model)
    recorded = random_tokens(25, seed=9)
    for round in range(2):
        reply = ReplyResult()
        steps = core.stats().steps
        core.submit(np.array(PROMPTS[0], np.int32), greedy(25), taker(reply), recorded=recorded)
        while core.has_work():
            core.step()
        assert reply.token_ids == recorded.tolist()
        assert reply.finish_reason == "length"
        if round:
            assert core.stats().steps - steps == 3
    core.check_integrity()


def taker(reply: ReplyResult) -> Any:
    def take(news: RequestOutput | MainstemError) -> None:
        assert isinstance(news, RequestOutput)
        reply.add(news)

    return take


def test_an_abort_between_steps_with_drafts_leaks_nothing(tiny_model: Path) -> None:
    core = eager_core(tiny_model)
    for steps in range(1, 12):
        ids: list[str] = []
        for prompt in PROMPTS:
            ids += core.submit(np.array(prompt, np.int32), greedy(40), lambda _: None)
        for _ in range(steps):
            core.step()
            core.check_integrity()
        core.abort(ids)
        core.check_integrity()
        assert core.stats().cache.protected == 0
    assert core.stats().accepted_tokens > 0


def test_a_branch_goes_on_after_a_reply_with_drafts(plain: LLM, eager: LLM) -> None:
    def told(llm: LLM) -> list[int]:
        with llm.context(PROMPTS[4]) as context, context.fork() as branch:
            for number in range(3):
                branch.generate(greedy(12))
                branch.append([5, 6, number])
            return list(branch.tokens)

    before = accepted(eager)
    assert told(eager) == told(plain) == told(eager)
    assert accepted(eager) > before + 20
    assert_all_released(eager)


def test_a_draft_whose_logits_are_not_finite_is_not_followed(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = eager_llm(tiny_model)
    expected = llm.generate([PROMPTS[0]], greedy(20))[0].token_ids
    execute, poisoned = llm.core.runner.execute, []

    def poison(batch: Any) -> torch.Tensor:
        logits: torch.Tensor = execute(batch).clone()
        if len(logits) > 4:  # the third draft of each step: its row comes after those of the ones before
            logits[3] = torch.nan
            poisoned.append(True)
        return logits

    monkeypatch.setattr(llm.core.runner, "execute", poison)
    before = llm.stats()
    assert llm.generate([PROMPTS[0]], greedy(20))[0].token_ids == expected
    assert len(poisoned) >= 4
    assert llm.stats().accepted_tokens - before.accepted_tokens <= 2 * len(poisoned) + 4
    assert_all_released(llm)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"speculate": "oracle"}, "speculate must be off, tree, ngram"),
        ({"speculate": ""}, "speculate must be off"),
        ({"speculate": "tree", "prefix_cache": "none"}, "speculate tree drafts from the radix tree"),
        ({"max_model_length": 64}, "there is no setting max_model_length; did you mean max_model_len?"),
        ({"speculate": "tree", "max_draft": 0}, "max_draft must be between 1 and 32"),
    ],
)
def test_a_wrong_setting_is_refused(tiny_model: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tiny_llm(tiny_model, **settings)
