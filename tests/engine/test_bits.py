"""Tests that a token's numbers are the same bits however it is run: cached or not, alone or not, in any chunks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from mainstem.engine import LLM, Generation
from mainstem.native import native_library
from tests.engine.support import greedy, kv_memory_for, random_tokens
from tests.support.tiny_models import make_tiny_model

pytestmark = pytest.mark.skipif(native_library() is None, reason="the native extension was not built: no C compiler")

# Random schedules on tiny models; set higher to look longer.
SCHEDULES = 300
ROOTS = [random_tokens(n, seed=1000 + n).tolist() for n in (3, 70, 130)]


class Said(NamedTuple):
    """A reply, and the log-probabilities it was chosen by."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def said(generation: Generation) -> Said:
    reply = generation.replies[0]
    return Said(tuple(generation.token_ids), tuple(entry.chosen.logprob for entry in reply.logprobs))


def prompts_of(generator: np.random.Generator) -> list[list[int]]:
    """A few prompts that share beginnings, and now and then all of it."""
    prompts = []
    for _ in range(generator.integers(1, 6)):
        root = ROOTS[generator.integers(len(ROOTS))]
        tail = random_tokens(int(generator.choice([1, 2, 17, 60])), seed=int(generator.integers(6))).tolist()
        prompts.append([*root[: generator.integers(1, len(root) + 1)], *tail])
    return prompts


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[LLM]:
    """Engines over one model that cut the work up in different ways; the first keeps nothing and runs alone."""
    folder = str(make_tiny_model(tmp_path_factory.mktemp("bits"), request.param))
    return [
        LLM(folder, kv_memory="4MiB", prefix_cache="none", max_num_batched_tokens=2048),
        LLM(folder, kv_memory="4MiB", max_num_batched_tokens=37),
        LLM(folder, kv_memory="4MiB", max_num_batched_tokens=512, cascade=False),
        LLM(folder, kv_memory=kv_memory_for(215), max_num_batched_tokens=64, cache_reserve=0.0),  # preempts
        LLM(folder, kv_memory="4MiB", prefix_cache="block-hash"),
    ]


def test_the_same_bits_however_a_token_is_run(engines: list[LLM]) -> None:
    alone, *others = engines
    generator = np.random.default_rng(7)
    known: dict[tuple[int, ...], Said] = {}
    for number in range(SCHEDULES):
        llm = others[number % len(others)]
        if number % 23 == 0:
            llm.reset_cache()
        prompts, params = prompts_of(generator), greedy(int(generator.integers(1, 12)), logprobs=0)
        for prompt, generation in zip(prompts, llm.generate(prompts, params), strict=True):
            key = tuple(prompt)
            if key not in known:
                known[key] = said(alone.generate([prompt], greedy(12, logprobs=0))[0])
            expected, got = known[key], said(generation)
            assert got.token_ids == expected.token_ids[: len(got.token_ids)]
            assert got.logprobs == expected.logprobs[: len(got.logprobs)]
    for llm in others:
        assert llm.stats().cached_tokens > 2000
    assert others[2].stats().preemptions > 0


def test_a_context_of_many_blocks_gives_the_same_bits(tiny_model: Path) -> None:
    prompt = random_tokens(1500, seed=5).tolist()
    params = greedy(20, logprobs=0)
    expected = said(LLM(str(tiny_model), kv_memory="4MiB", prefix_cache="none").generate([prompt], params)[0])
    llm = LLM(str(tiny_model), kv_memory="4MiB", max_num_batched_tokens=111)
    for _ in range(3):
        together = llm.generate([prompt, [*prompt[:1200], 7, 8], prompt[:900], [*prompt[:1111], 9]], params)
        assert said(together[0]) == expected
    assert llm.stats().cached_tokens > 0
