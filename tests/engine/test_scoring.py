"""Tests of scoring: log-probabilities of given tokens are those of a dense forward, whatever is cached or cut up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mainstem.engine import LLM
from mainstem.errors import EngineFailed, InvalidRequest
from tests.engine.support import DenseModel, assert_all_released, greedy, kv_memory_for, random_tokens, tiny_llm

CONTEXT = random_tokens(150).tolist()
CONTINUATION = random_tokens(40, seed=1).tolist()


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return tiny_llm(tiny_model)


@pytest.fixture(scope="module")
def dense(tiny_model: Path) -> Callable[[list[int], list[int]], Any]:
    model = DenseModel(tiny_model)

    def logprobs(context: list[int], continuation: list[int]) -> Any:
        rows = torch.log_softmax(model.logits([*context, *continuation])[len(context) - 1 : -1], dim=-1)
        wanted = [row[token].item() for row, token in zip(rows, continuation, strict=True)]
        return pytest.approx(wanted, abs=1e-4)

    return logprobs


@pytest.mark.parametrize("budget", [1, 7, 64, 512])
@pytest.mark.parametrize("length", [1, 2, 40])
def test_scores_are_those_of_a_dense_forward_however_they_are_cut_up(
    tiny_model: Path, dense: Any, budget: int, length: int
) -> None:
    llm = tiny_llm(tiny_model, max_num_batched_tokens=budget)
    with llm.context(CONTEXT, prefill=False) as context:
        score = context.score(CONTINUATION[:length])
    assert score.token_ids == tuple(CONTINUATION[:length])
    assert list(score.logprobs) == dense(CONTEXT, CONTINUATION[:length])
    assert_all_released(llm)


def test_after_a_computed_context_only_its_last_token_is_computed_again(llm: LLM, dense: Any) -> None:
    with llm.context(CONTEXT) as context:
        context.generate(greedy(1))
        before = llm.stats()
        tokens = context.tokens.tolist()
        score = context.score(CONTINUATION)
        after = llm.stats()
    assert list(score.logprobs) == dense(tokens, CONTINUATION)
    assert after.prefilled_tokens - before.prefilled_tokens == 1 + len(CONTINUATION) - 1
    assert after.steps - before.steps == 1


def test_a_continuation_that_is_cached_is_scored_all_the_same(llm: LLM, dense: Any) -> None:
    llm.generate([[*CONTEXT, *CONTINUATION, 9]], greedy(1))
    with llm.context(CONTEXT) as context:
        assert list(context.score(CONTINUATION).logprobs) == dense(CONTEXT, CONTINUATION)
    assert_all_released(llm)


def test_a_long_continuation_takes_several_steps(llm: LLM, dense: Any) -> None:
    long = random_tokens(700, seed=3).tolist()
    with llm.context(CONTEXT) as context:
        before = llm.stats().steps
        assert list(context.score(long).logprobs) == dense(CONTEXT, long)
        assert llm.stats().steps - before == 3  # 256 rows of logits at most
    assert_all_released(llm)


def test_a_branch_is_not_changed_by_a_score_and_holds_its_own_tokens_only(llm: LLM) -> None:
    llm.reset_cache()
    with llm.context(CONTEXT) as context, context.fork().append([5, 6, 7]) as branch:
        branch.score(CONTINUATION)
        assert (len(branch), branch.held_tokens) == (153, 153)
        assert llm.stats().cache.protected == 153
        llm.check_integrity()


def test_many_branches_are_scored_in_one_step(llm: LLM, dense: Any) -> None:
    tails = [random_tokens(4, seed=n).tolist() for n in range(5)]
    answers = [[11, 12], [13], [14, 15, 16], [11, 12], [17]]
    with llm.context(CONTEXT) as context:
        branches = [context.fork().append(tail) for tail in tails]
        before = llm.stats().steps
        scores = llm.score_branches(branches, answers)
        assert llm.stats().steps - before == 1
        for tail, answer, score in zip(tails, answers, scores, strict=True):
            assert list(score.logprobs) == dense([*CONTEXT, *tail], answer)
        for branch in branches:
            branch.drop()
    assert_all_released(llm)


def test_one_branch_may_be_scored_several_ways_at_once(llm: LLM, dense: Any) -> None:
    answers = [[11, 12], [11, 13], [14]]
    with llm.context(CONTEXT) as context:
        scores = llm.score_branches([context] * 3, answers)
    assert [list(score.logprobs) for score in scores] == [dense(CONTEXT, answer) for answer in answers]


def test_a_scoring_that_is_preempted_goes_on_where_it_was(tiny_model: Path, dense: Any) -> None:
    llm = tiny_llm(tiny_model, kv_memory=kv_memory_for(400), max_num_batched_tokens=4)
    long = random_tokens(150, seed=4).tolist()
    received: list[Any] = []

    def start() -> None:
        llm.core.submit(random_tokens(20, seed=8), greedy(150), lambda _: None)
        llm.core.submit_scoring(np.array(CONTEXT, np.int32), np.array(long, np.int32), received.append)

    llm._engine.ask(start).result()
    while (stats := llm.stats()).running or stats.waiting:
        pass
    assert stats.preemptions > 0
    assert [position.chosen.logprob for news in received for position in news.logprobs] == dense(CONTEXT, long)
    assert len(received) > 150 / 4
    assert_all_released(llm)


def test_a_scored_reply_has_the_log_probabilities_it_was_sampled_with(llm: LLM) -> None:
    with llm.context("The river runs", prefill=False) as context, context.fork() as branch:
        reply = branch.generate(greedy(8, logprobs=0))
        score = context.score(reply.token_ids)
    assert list(score.logprobs) == pytest.approx([p.chosen.logprob for p in reply.logprobs], abs=1e-4)
    assert score.total == pytest.approx(8 * score.mean)


def test_texts_are_scored(llm: LLM) -> None:
    with llm.context("The river runs") as context:
        assert context.score(" to the sea").token_ids == tuple(llm.tokenizer.encode(" to the sea").tolist())


async def test_tasks_score(llm: LLM, dense: Any) -> None:
    with llm.context(CONTEXT) as context:
        assert list((await context.ascore(CONTINUATION)).logprobs) == dense(CONTEXT, CONTINUATION)


def test_nothing_has_no_score(llm: LLM) -> None:
    with llm.context(CONTEXT) as context, pytest.raises(InvalidRequest, match="no tokens"):
        context.score("")


def test_scores_that_are_not_finite_fail_and_leave_nothing_cached(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = tiny_llm(tiny_model)
    healthy = llm.core.runner.execute

    def one_bad_row(batch: Any) -> torch.Tensor:
        logits = healthy(batch).clone()
        logits[3] = torch.nan
        return logits

    with llm.context(CONTEXT, prefill=False) as context:
        with monkeypatch.context() as patch:
            patch.setattr(llm.core.runner, "execute", one_bad_row)
            with pytest.raises(EngineFailed, match="not finite"):
                context.score(CONTINUATION)
        assert llm.stats().cache.evictable == 0
    assert_all_released(llm)


def test_scoring_works_without_a_prefix_cache(tiny_model: Path, dense: Any) -> None:
    llm = tiny_llm(tiny_model, prefix_cache="none", max_num_batched_tokens=32)
    with llm.context(CONTEXT) as context:
        assert list(context.score(CONTINUATION).logprobs) == dense(CONTEXT, CONTINUATION)


def test_replies_and_scores_share_what_they_compute_together(llm: LLM, dense: Any) -> None:
    llm.reset_cache()
    before = llm.stats().prefilled_tokens
    prompt = np.array(CONTEXT, np.int32)
    scored: list[Any] = []
    replied: list[Any] = []

    def start() -> None:
        llm.core.submit_scoring(prompt, np.array(CONTINUATION, np.int32), scored.append)
        llm.core.submit(prompt, greedy(1), replied.append)

    llm._engine.ask(start).result()
    while (stats := llm.stats()).running or stats.waiting:
        pass
    assert [position.chosen.logprob for news in scored for position in news.logprobs] == dense(CONTEXT, CONTINUATION)
    assert replied[-1].usage.prefilled_tokens <= 1
    assert stats.prefilled_tokens - before <= len(CONTEXT) + len(CONTINUATION)
    assert_all_released(llm)
