"""What the engine's tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from mainstem.engine import LLM
from mainstem.params import SamplingParams
from mainstem.tree import TokenArray

VOCAB_SIZE = 448


def greedy(max_tokens: int, **others: Any) -> SamplingParams:
    """Greedy sampling that goes on past the end-of-turn tokens, which random models emit at random."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **others)


def random_tokens(n: int, seed: int = 0) -> TokenArray:
    """Token ids that are not special ones."""
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, n).astype(np.int32)


def tiny_llm(folder: Path, **settings: Any) -> LLM:
    """An engine over a tiny model, with a pool of 8,192 tokens in float32, to be held against `DenseModel`."""
    return LLM(str(folder), **({"kv_memory": "4MiB", "kv_dtype": "float32"} | settings))


def kv_memory_for(tokens: int) -> str:
    """The setting that gives the tiny model's pool this many tokens in float32."""
    layers, kv_heads, head_dim, float32 = 2, 2, 16, 4
    return f"{tokens * 2 * layers * kv_heads * head_dim * float32}b"


class DenseModel:
    """transformers' own forward over a whole sequence: no cache, no chunks, no batch."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> torch.Tensor:
        """(len(tokens), vocab)."""
        logits: torch.Tensor = self.model(torch.tensor([tokens]), use_cache=False).logits[0]
        return logits

    def continue_greedily(self, tokens: list[int], n: int) -> list[int]:
        """The n most likely next tokens, one after the other."""
        tokens = list(tokens)
        for _ in range(n):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[-n:]


def assert_all_released(llm: LLM) -> None:
    """Nothing runs, nothing is locked or held, and every count adds up."""
    llm.check_integrity()
    stats = llm.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.cache.protected == 0
    assert stats.cache.free + stats.cache.evictable == stats.cache.capacity
