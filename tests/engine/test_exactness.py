"""Tests that the engine computes what transformers' own dense forward computes, however the work is cut up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mainstem.engine import LLM
from mainstem.model import ModelFiles
from tests.engine.support import DenseModel, assert_all_released, greedy, kv_memory_for, random_tokens, tiny_llm
from tests.support.tiny_models import ARCHITECTURES, make_tiny_model

ROOT = random_tokens(150).tolist()
TAILS = [random_tokens(n, seed=n).tolist() for n in (1, 6, 40, 90)]


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("cascade", [True, False])
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_logits_equal_the_dense_forward(tmp_path: Path, architecture: str, cascade: bool, kernels: str) -> None:
    folder = make_tiny_model(tmp_path / architecture, architecture)
    check_logits(folder, tiny_llm(folder, max_num_batched_tokens=48, cascade=cascade, kernels=kernels))


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"tie_word_embeddings": False, "num_key_value_heads": 4}),
        ("llama", {"hidden_size": 72, "head_dim": 24, "num_attention_heads": 3, "num_key_value_heads": 1}),
        ("llama", {"intermediate_size": 100, "rms_norm_eps": 1e-3}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}}),
        ("llama", {"hidden_act": "gelu"}),
        ("qwen3", {"head_dim": 40, "rms_norm_eps": 1e-3}),
        ("mistral", {"head_dim": 12}),
    ],
)
def test_logits_equal_the_dense_forward_of_variants(
    tmp_path: Path, architecture: str, overrides: dict[str, Any]
) -> None:
    folder = make_tiny_model(tmp_path / architecture, architecture, **overrides)
    check_logits(folder, tiny_llm(folder, max_num_batched_tokens=48))


def check_logits(folder: Path, llm: LLM) -> None:
    dense = DenseModel(folder)
    prompts = [[*ROOT, *tail] for tail in TAILS]
    for generation, prompt in zip(llm.generate(prompts, greedy(6, logprobs=5)), prompts, strict=True):
        expected = torch.log_softmax(dense.logits([*prompt, *generation.token_ids])[len(prompt) - 1 : -1], dim=-1)
        for position, logprobs in enumerate(generation.replies[0].logprobs):
            for token_id, logprob in [logprobs.chosen, *logprobs.top]:
                assert logprob == pytest.approx(expected[position, token_id].item(), abs=1e-4)
        assert generation.token_ids == expected.argmax(-1).tolist()
    assert llm.stats().cached_tokens >= 3 * len(ROOT)
    assert_all_released(llm)


@pytest.mark.parametrize("budget", [1, 7, 64, 512])
def test_the_size_of_chunks_changes_nothing(tiny_model: Path, budget: int) -> None:
    llm = tiny_llm(tiny_model, max_num_batched_tokens=budget)
    prompt = random_tokens(200, seed=3).tolist()
    assert llm.generate([prompt], greedy(8))[0].token_ids == DenseModel(tiny_model).continue_greedily(prompt, 8)


def test_a_warm_prompt_gives_the_tokens_of_a_cold_one(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model)
    prompts = [random_tokens(60 + n, seed=n).tolist() for n in range(20)]
    cold = llm.generate(prompts, greedy(10))
    warm = llm.generate(prompts, greedy(10))
    assert [g.token_ids for g in warm] == [g.token_ids for g in cold]
    assert all(g.cached_tokens == len(g.prompt_token_ids) - 1 for g in warm)
    assert all(g.cached_tokens == 0 for g in cold)


def test_a_conversation_gives_the_tokens_of_its_prompts_computed_afresh(tiny_model: Path) -> None:
    llm, fresh = tiny_llm(tiny_model), tiny_llm(tiny_model, prefix_cache="none")
    history = random_tokens(80).tolist()
    for turn in range(6):
        cached = llm.generate([history], greedy(7))[0]
        computed = fresh.generate([history], greedy(7))[0]
        assert cached.token_ids == computed.token_ids
        assert computed.cached_tokens == 0
        if turn:
            assert cached.prefilled_tokens == 10 + turn + 1  # the last reply's final token, and the new ones
        history = [*history, *cached.token_ids, *random_tokens(10 + turn + 1, seed=turn).tolist()]


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.1), ("float16", 0.02)])
def test_other_number_types_come_close(tiny_model: Path, dtype: str, tolerance: float) -> None:
    llm = tiny_llm(tiny_model, dtype=dtype, kv_dtype="auto", max_num_batched_tokens=48)
    prompts = [[*ROOT, *tail] for tail in TAILS]
    for generation in llm.generate(prompts, greedy(4, logprobs=0)):
        tokens = [*generation.prompt_token_ids.tolist(), *generation.token_ids]
        expected = torch.log_softmax(DenseModel(tiny_model).logits(tokens)[-5:-1], dim=-1)
        for position, logprobs in enumerate(generation.replies[0].logprobs):
            token_id, logprob = logprobs.chosen
            assert logprob == pytest.approx(expected[position, token_id].item(), abs=tolerance)
    assert llm.stats().cached_tokens >= 3 * len(ROOT)


def test_preemption_changes_no_reply(tiny_model: Path) -> None:
    prompts = [random_tokens(20, seed=n).tolist() for n in range(6)]
    ample = tiny_llm(tiny_model).generate(prompts, greedy(40))
    llm = tiny_llm(tiny_model, kv_memory=kv_memory_for(130))
    assert [g.token_ids for g in llm.generate(prompts, greedy(40))] == [g.token_ids for g in ample]
    assert llm.stats().preemptions > 0
    assert_all_released(llm)


ARMS: dict[str, dict[str, Any]] = {
    "radix": {},
    "block-hash": {"prefix_cache": "block-hash"},
    "small blocks": {"prefix_cache": "block-hash", "block_size": 5},
    "none": {"prefix_cache": "none"},
}


def three_conversations(llm: LLM) -> list[list[int]]:
    """Every reply of three conversations over one root that take their turns together."""
    histories = [[*ROOT, *random_tokens(30, seed=n).tolist()] for n in range(3)]
    said: list[list[int]] = []
    for turn in range(4):
        replies = llm.generate(histories, greedy(9))
        said += [reply.token_ids for reply in replies]
        for n, reply in enumerate(replies):
            histories[n] += [*reply.token_ids, *random_tokens(25, seed=10 * turn + n).tolist()]
    return said


@pytest.mark.parametrize("budget", [40, 512])
def test_every_prefix_cache_says_the_same(tiny_model: Path, budget: int) -> None:
    cached: dict[str, int] = {}
    said: dict[str, list[list[int]]] = {}
    for name, settings in ARMS.items():
        llm = tiny_llm(tiny_model, max_num_batched_tokens=budget, **settings)
        said[name] = three_conversations(llm)
        cached[name] = llm.stats().cached_tokens
        assert_all_released(llm)
    assert said["radix"] == said["block-hash"] == said["small blocks"] == said["none"]
    assert cached["radix"] > cached["small blocks"] > cached["block-hash"] > 9 * len(ROOT)
    assert cached["none"] == 0


def test_block_hashes_say_the_same_cold_and_warm(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model, prefix_cache="block-hash")
    prompts = [random_tokens(60 + n, seed=n).tolist() for n in range(20)]
    cold = llm.generate(prompts, greedy(10))
    warm = llm.generate(prompts, greedy(10))
    assert [g.token_ids for g in warm] == [g.token_ids for g in cold]
    assert [g.cached_tokens for g in warm] == [(len(prompt) - 1) // 16 * 16 for prompt in prompts]
    assert all(g.cached_tokens == 0 for g in cold)


def test_block_hashes_say_the_same_in_a_pool_that_is_too_small(tiny_model: Path) -> None:
    prompts = [[*random_tokens(20).tolist(), *random_tokens(20, seed=n).tolist()] for n in range(6)]
    ample = tiny_llm(tiny_model).generate(prompts, greedy(40))
    llm = tiny_llm(tiny_model, prefix_cache="block-hash", kv_memory=kv_memory_for(200))
    for _ in range(2):
        assert [g.token_ids for g in llm.generate(prompts, greedy(40))] == [g.token_ids for g in ample]
    stats = llm.stats()
    assert stats.cache.capacity == 192
    assert stats.preemptions > 0
    assert stats.cache.evicted > 0
    assert stats.cached_tokens > 0
    assert_all_released(llm)


PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "Q: What is 17 + 25?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    '{"name": "Ada", "born": 1815, "field": "',
    "Translate to German: The weather is nice today.\n",
    "ERROR 2024-03-01 12:00:01 connection refused; retrying in",
    "The three laws of thermodynamics are:\n1.",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "Ingredients: 200 g flour, 2 eggs, 1 pinch of salt.\nMethod:",
    "To be, or not to be, that is",
    "<html>\n<head>\n<title>",
    "In 1969, the first humans",
    "A list of prime numbers: 2, 3, 5, 7,",
    "The opposite of hot is cold. The opposite of up is",
    "#include <stdio.h>\nint main(void) {",
    "Photosynthesis is the process by which",
    "Breaking news: scientists have discovered",
    "Once the tests pass, run `git",
]


@pytest.fixture(scope="module")
def embedded_llm(embedded_model: ModelFiles) -> LLM:
    return LLM(str(embedded_model.folder), kv_memory="512MiB")


def test_the_embedded_model_says_the_same_cold_and_warm(embedded_llm: LLM) -> None:
    context = embedded_llm.tokenizer.encode(
        "You are a careful assistant. Read what follows and go on from there.\n\n" * 6
    )
    prompts = [[*context.tolist(), *embedded_llm.tokenizer.encode(text).tolist()] for text in PROMPTS]
    embedded_llm.reset_cache()
    cold = [embedded_llm.generate([prompt], greedy(12), namespace=(i,))[0] for i, prompt in enumerate(prompts)]
    warm = [embedded_llm.generate([prompt], greedy(12), namespace=(i,))[0] for i, prompt in enumerate(prompts)]
    assert [g.cached_tokens for g in cold] == [0] * 20
    assert [g.cached_tokens for g in warm] == [len(prompt) - 1 for prompt in prompts]
    assert [g.token_ids for g in warm] == [g.token_ids for g in cold]
    assert len({tuple(g.token_ids) for g in cold}) > 10
    # Half cached: the shared context only.
    shared = embedded_llm.generate(prompts, greedy(12), namespace=("together",))
    assert [g.token_ids for g in shared] == [g.token_ids for g in cold]
    assert sum(g.cached_tokens for g in shared) >= 19 * len(context)
    assert_all_released(embedded_llm)


def test_the_embedded_model_makes_sense(embedded_llm: LLM) -> None:
    reply = embedded_llm.generate("The capital of France is", greedy(6))[0]
    assert "Paris" in reply.text
