"""Drawing tokens: exact sets and penalties, right distributions, and the same draw alone or in a batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model import SampleRow, sample
from mainstem.model.sampling import _draw, _kept, _penalize, uniform
from mainstem.params import SamplingParams

NONE = np.empty(0, np.int32)


def row(logits_row: int = 0, *, seed: int = 0, prompt: Any = NONE, output: Any = NONE, **params: Any) -> SampleRow:
    return SampleRow(
        params=SamplingParams(**params),
        logits_row=logits_row,
        prompt_ids=np.asarray(prompt, np.int32),
        output_ids=np.asarray(output, np.int32),
        seed=seed,
    )


def token(logits: torch.Tensor, **params: Any) -> int:
    return sample(logits[None] if logits.ndim == 1 else logits, [row(**params)])[0].token_id


def draws(logits: list[float], count: int, **params: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    rows = [row(seed=seed, **params) for seed in range(count)]
    return np.array([sampled.token_id for sampled in sample(torch.tensor([logits]), rows)])


def random_logits(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


# -- greedy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_most_likely_token_of_its_own_row(dtype: torch.dtype) -> None:
    logits = random_logits(4, 1000).to(dtype)
    sampled = sample(logits, [row(i, temperature=0.0) for i in (2, 0, 3, 2)])
    assert [s.token_id for s in sampled] == [int(logits[i].float().numpy().argmax()) for i in (2, 0, 3, 2)]


@pytest.mark.parametrize("logprobs", [None, 1])
def test_of_equally_likely_tokens_greedy_takes_the_lowest_id(logprobs: int | None) -> None:
    logits = torch.zeros(2000)
    logits[[7, 900, 1999]] = 5.0
    assert token(logits, temperature=0.0, logprobs=logprobs) == 7


def test_the_logits_are_left_as_they_were() -> None:
    logits = random_logits(2, 50)
    before = logits.clone()
    sample(logits, [row(0, repetition_penalty=2.0, output=[1, 2], logprobs=3), row(1, temperature=0.0)])
    assert torch.equal(logits, before)


# -- distribution ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    logits = [0.0, 1.0, 2.0, -1.0, float("-inf"), 0.5]
    count = 4000
    probabilities = np.exp(np.array(logits) / temperature)
    probabilities /= probabilities.sum()
    seen = np.bincount(draws(logits, count, temperature=temperature), minlength=6)
    assert seen[4] == 0
    expected = probabilities[probabilities > 0] * count
    chi_square = float(((seen[probabilities > 0] - expected) ** 2 / expected).sum())
    assert chi_square < 18.5  # 99.9 % of right samplers stay below it, with four degrees of freedom


def test_positions_of_one_reply_are_drawn_independently() -> None:
    logits = torch.zeros(1, 4)
    tokens = [sample(logits, [row(seed=3, output=[0] * i)])[0].token_id for i in range(2000)]
    pairs = np.bincount(np.array(tokens[:-1]) * 4 + np.array(tokens[1:]), minlength=16)
    chi_square = float(((pairs - 1999 / 16) ** 2 / (1999 / 16)).sum())
    assert chi_square < 37.7  # 99.9 %, fifteen degrees of freedom


def test_a_large_vocabulary_is_drawn_from_evenly() -> None:
    tokens = draws([0.0] * 1000, 2000, temperature=1.0)
    quarters = np.bincount(tokens // 250, minlength=4)
    assert len(set(tokens.tolist())) > 800
    assert np.abs(quarters - 500).max() < 85


@given(seed=st.integers(-(2**63), 2**64), position=st.integers(0, 10**6))
def test_the_random_number_is_below_one_and_repeats(seed: int, position: int) -> None:
    assert 0.0 <= uniform(seed, position) < 1.0
    assert uniform(seed, position) == uniform(seed, position)


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=700),
    u=st.sampled_from([0.0, 0.25, 0.5, 1 - 2**-53]),
)
def test_the_draw_is_the_inverse_of_the_cumulative_distribution(logits: list[float], u: float) -> None:
    values = np.array(logits, np.float32)
    drawn = _draw(values, SamplingParams(), u)
    cumulative = np.cumsum(np.exp((values - values.max()).astype(np.float64)))
    cumulative /= cumulative[-1]
    before = cumulative[drawn - 1] if drawn else 0.0
    assert before - 1e-6 <= u <= cumulative[drawn] + 1e-6
    assert cumulative[drawn] > before


def test_temperatures_near_zero_are_greedy() -> None:
    logits = random_logits(1, 500)[0]
    assert token(logits, temperature=1e-300) == int(logits.argmax())


# -- top-k, top-p, min-p ---------------------------------------------------------------------------------------


def reference_kept(weights: np.ndarray[Any, np.dtype[np.float32]], params: SamplingParams) -> list[int]:
    """The three filters, one after the other, as plainly as they can be said."""
    ranked = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    if params.top_p < 1.0:
        total, so_far, kept = math.fsum(float(weights[i]) for i in ranked), 0.0, []
        for i in ranked:
            kept.append(i)
            so_far += float(weights[i])
            if so_far >= params.top_p * total:
                break
        ranked = kept
    return sorted(i for i in ranked if weights[i] >= np.float32(params.min_p) * weights.max())


@given(
    # Sixteenths of the largest add up exactly, so that the reference and the code cannot differ by rounding.
    sixteenths=st.lists(st.integers(0, 16), max_size=60).map(lambda some: [*some[::2], 16, *some[1::2]]),
    top_k=st.integers(0, 70),
    top_p=st.sampled_from([0.125, 0.25, 0.5, 0.75, 0.9375, 1.0]),
    min_p=st.sampled_from([0.0, 0.0625, 0.25, 0.5, 1.0]),
)
def test_the_filters_keep_exactly_the_tokens_of_a_plain_reference(
    sixteenths: list[int], top_k: int, top_p: float, min_p: float
) -> None:
    weights = np.array(sixteenths, np.float32) / np.float32(16)
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    kept = _kept(weights, params)
    assert (list(range(len(weights))) if kept is None else kept.tolist()) == reference_kept(weights, params)


@pytest.mark.parametrize("params", [{"top_k": 50}, {"top_p": 0.9}, {"top_p": 0.999}, {"min_p": 0.01}])
def test_the_filters_are_exact_on_a_real_vocabulary(params: dict[str, Any]) -> None:
    logits = random_logits(1, 49_152).numpy()[0]
    weights = np.exp(logits - logits.max())
    asked = SamplingParams(**params)
    kept = _kept(weights, asked)
    assert kept is not None
    assert kept.tolist() == reference_kept(weights, asked)


def test_only_tokens_that_the_filters_leave_are_drawn() -> None:
    logits = [3.0, 2.0, 1.0, 0.0, 3.0]
    assert set(draws(logits, 300, top_k=2).tolist()) == {0, 4}
    assert set(draws(logits, 300, top_k=3).tolist()) == {0, 1, 4}
    assert set(draws(logits, 300, top_p=0.6).tolist()) == {0, 4}
    assert set(draws(logits, 300, min_p=0.9).tolist()) == {0, 4}


def test_filtered_tokens_keep_their_relative_probabilities() -> None:
    tokens = draws([math.log(3), math.log(1), math.log(6)], 3000, top_k=2)
    assert abs(float((tokens == 2).mean()) - 6 / 9) < 0.03


def test_the_filters_act_after_temperature() -> None:
    logits = [2.0, 1.0, 0.0]
    assert set(draws(logits, 300, top_p=0.7, temperature=0.5).tolist()) == {0}
    assert set(draws(logits, 300, top_p=0.7, temperature=5.0).tolist()) == {0, 1}


# -- penalties -------------------------------------------------------------------------------------------------


def logits_after(logits: list[float], **params: Any) -> list[float]:
    """What a greedy request with penalties compares, seen through the private step that computes it."""
    return [float(x) for x in _penalize(np.array(logits, np.float32), row(**params))]


def test_repetition_penalty_weakens_tokens_of_prompt_and_reply_once() -> None:
    penalized = logits_after([4.0, -4.0, 4.0, 4.0], repetition_penalty=2.0, prompt=[0, 0, 1], output=[0, 2])
    assert penalized == [2.0, -8.0, 2.0, 4.0]


def test_presence_penalty_is_subtracted_once_for_tokens_of_the_reply() -> None:
    assert logits_after([1.0, 1.0, 1.0], presence_penalty=0.5, prompt=[0], output=[1, 1]) == [1.0, 0.5, 1.0]


def test_frequency_penalty_is_subtracted_for_every_occurrence_in_the_reply() -> None:
    assert logits_after([1.0, 1.0, 1.0], frequency_penalty=0.5, prompt=[0], output=[1, 1, 2]) == [1.0, 0.0, 0.5]


def test_penalties_change_the_greedy_choice() -> None:
    logits = torch.tensor([2.0, 1.9, 0.0])
    assert token(logits, temperature=0.0, frequency_penalty=0.2, output=[0]) == 1
    assert token(logits, temperature=0.0, repetition_penalty=1.2, prompt=[0]) == 1


# -- repeatability ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.02}, {"frequency_penalty": 0.5}])
def test_a_draw_is_the_same_alone_and_in_a_batch(params: dict[str, Any]) -> None:
    logits = random_logits(9, 5000)
    rows = [row(i, seed=i, output=[1] * i, **params) for i in range(9)]
    together = [s.token_id for s in sample(logits, [*rows, row(3, temperature=0.0)])][:9]
    alone = [sample(logits[i : i + 1], [row(seed=i, output=[1] * i, **params)])[0].token_id for i in range(9)]
    assert together == alone


def test_a_draw_survives_noise_in_the_last_bits_of_the_logits() -> None:
    logits = random_logits(1, 5000)
    noisy = logits * (1 + 1e-6 * torch.randn(1, 5000, generator=torch.Generator().manual_seed(1)))
    rows = [row(seed=seed) for seed in range(300)]
    same = [a.token_id == b.token_id for a, b in zip(sample(logits, rows), sample(noisy, rows), strict=True)]
    assert sum(same) >= 298


def test_seeds_and_positions_give_different_draws() -> None:
    logits = torch.zeros(1, 10_000)
    by_seed = {sample(logits, [row(seed=seed)])[0].token_id for seed in range(50)}
    by_position = {sample(logits, [row(output=[0] * i)])[0].token_id for i in range(50)}
    assert len(by_seed) > 45
    assert len(by_position) > 45


def test_negative_and_large_seeds_are_taken() -> None:
    assert len(sample(torch.zeros(1, 10), [row(seed=seed) for seed in (-1, -(2**63), 2**63, 2**64 + 5)])) == 4


# -- logprobs --------------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_distribution_before_temperature_and_penalties() -> None:
    logits = random_logits(1, 800)
    expected = torch.log_softmax(logits[0].double(), dim=-1)
    (sampled,) = sample(logits, [row(temperature=0.3, repetition_penalty=3.0, prompt=range(800), logprobs=4)])
    assert sampled.logprobs is not None
    assert sampled.logprobs.chosen.token_id == sampled.token_id
    assert sampled.logprobs.chosen.logprob == pytest.approx(float(expected[sampled.token_id]), abs=1e-5)
    best = torch.topk(expected, 4)
    assert [entry.token_id for entry in sampled.logprobs.top] == best.indices.tolist()
    assert [entry.logprob for entry in sampled.logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_equally_likely_tokens_are_reported_by_id() -> None:
    (sampled,) = sample(torch.zeros(1, 300), [row(temperature=0.0, logprobs=3)])
    assert sampled.logprobs is not None
    assert [entry.token_id for entry in sampled.logprobs.top] == [0, 1, 2]


def test_with_zero_top_logprobs_only_the_chosen_token_is_reported() -> None:
    (sampled,) = sample(torch.zeros(1, 4), [row(temperature=0.0, logprobs=0)])
    assert sampled.logprobs is not None
    assert sampled.logprobs.top == ()
    assert sampled.logprobs.chosen.logprob == pytest.approx(math.log(1 / 4))


def test_logprobs_are_absent_unless_asked_for() -> None:
    assert sample(torch.zeros(1, 4), [row()])[0].logprobs is None


# -- broken logits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_p": 0.5}, {"temperature": 0.0, "logprobs": 2}])
def test_logits_that_are_not_finite_fail_their_own_row_only(broken: float, params: dict[str, Any]) -> None:
    logits = random_logits(3, 600)
    logits[1, 300] = broken
    sampled = sample(logits, [row(i, **params) for i in range(3)])
    assert [s.error is not None for s in sampled] == [False, True, False]
    assert sampled[1].token_id == -1


def test_a_row_without_any_possible_token_fails() -> None:
    assert sample(torch.full((1, 8), float("-inf")), [row()])[0].error is not None


def test_single_impossible_tokens_are_no_error() -> None:
    logits = torch.tensor([float("-inf"), 0.0])
    assert token(logits) == 1
    assert token(logits, temperature=0.0) == 1


# -- masks -----------------------------------------------------------------------------------------------------


def mask_of(allowed: list[int], vocab: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """One bit a token, as grammars give them."""
    words = np.zeros((vocab + 31) // 32, np.uint32)
    for token_id in allowed:
        words[token_id // 32] |= np.uint32(1 << (token_id % 32))
    return words.view(np.int32)


def masked(base: SampleRow, allowed: list[int], vocab: int) -> SampleRow:
    return replace(base, mask=mask_of(allowed, vocab))


@given(
    allowed=st.sets(st.integers(0, 99), min_size=1), params=st.sampled_from([{}, {"temperature": 0.0}, {"top_p": 0.5}])
)
def test_only_allowed_tokens_are_drawn(allowed: set[int], params: dict[str, Any]) -> None:
    rows = [masked(row(seed=seed, **params), sorted(allowed), 100) for seed in range(5)]
    assert {s.token_id for s in sample(random_logits(1, 100), rows)} <= allowed


def test_allowed_tokens_keep_their_relative_probabilities() -> None:
    rows = [masked(row(seed=seed), [0, 2], 3) for seed in range(3000)]
    tokens = [s.token_id for s in sample(torch.tensor([[math.log(3), 5.0, 0.0]]), rows)]
    assert abs(tokens.count(0) / 3000 - 0.75) < 0.03


def test_a_mask_acts_on_its_own_row_only() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    rows = [row(temperature=0.0), masked(row(temperature=0.0), [2], 3), row(temperature=0.0)]
    assert [s.token_id for s in sample(logits, rows)] == [0, 2, 0]


def test_a_mask_acts_after_penalties_and_before_the_filters() -> None:
    logits = torch.tensor([9.0, 2.0, 1.9, 0.0])
    penalized = row(temperature=0.0, frequency_penalty=0.5, output=[1])
    assert sample(logits[None], [masked(penalized, [1, 2, 3], 4)])[0].token_id == 2
    filtered = [masked(row(seed=seed, top_k=1), [2, 3], 4) for seed in range(20)]
    assert {s.token_id for s in sample(logits[None], filtered)} == {2}


def test_logprobs_are_of_the_distribution_before_the_mask() -> None:
    logits = random_logits(1, 50)
    (sampled,) = sample(logits, [masked(row(temperature=0.0, logprobs=2), [7], 50)])
    expected = torch.log_softmax(logits[0].double(), dim=-1)
    assert sampled.logprobs is not None
    assert sampled.logprobs.chosen.token_id == 7
    assert sampled.logprobs.chosen.logprob == pytest.approx(float(expected[7]), abs=1e-5)
    assert [entry.token_id for entry in sampled.logprobs.top] == torch.topk(expected, 2).indices.tolist()


def test_a_mask_that_allows_nothing_fails_its_own_row_only() -> None:
    rows = [row(temperature=0.0), masked(row(), [], 40)]
    assert [s.error is not None for s in sample(random_logits(1, 40), rows)] == [False, True]
