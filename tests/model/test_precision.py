"""Tests of the choice of number types for weights and KV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from mainstem.config import EngineConfig
from mainstem.engine import LLM
from mainstem.engine.build import build_engine
from mainstem.errors import ConfigError
from mainstem.model import ModelFiles
from mainstem.native import native_library
from tests.engine.bits import Said, said
from tests.engine.support import greedy, random_tokens
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_models import make_tiny_model, save_tiny_tokenizer

NEEDS_NATIVE = pytest.mark.skipif(native_library() is None, reason="the native extension was not built")


@NEEDS_NATIVE
def test_kv_in_16_bits_gives_twice_the_tokens(tiny_model: Path) -> None:
    def tokens(kv_dtype: str) -> int:
        config = EngineConfig(model=str(tiny_model), kv_memory="1MiB", kv_dtype=kv_dtype)
        return build_engine(config).budget.pool_tokens

    assert tokens("float16") == 2 * tokens("float32")


@NEEDS_NATIVE
def test_weights_in_16_bits_take_less_memory(tiny_model: Path) -> None:
    def weights(number: str) -> int:
        config = EngineConfig(model=str(tiny_model), kv_memory="1MiB", weights=number)
        return build_engine(config).budget.weights_bytes

    assert 0 < weights("float16") < weights("float32")


def replies(model: Path, **settings: str) -> tuple[list[Said], str]:
    """Replies with the log-probabilities of their tokens, and what computed them."""
    llm = LLM(str(model), kv_memory="1MiB", kv_dtype="float32", **settings)  # type: ignore[arg-type]
    prompts = [random_tokens(n, seed=n).tolist() for n in (5, 40, 41)]
    return [said(generation) for generation in llm.generate(prompts, greedy(20, logprobs=0))], llm.compute


@NEEDS_NATIVE
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("kinds", "kept"), [({"": "Q4_1", "token_embd": "Q8_0"}, "4-bit blocks"), ({}, "8-bit blocks")]
)
def test_weights_as_in_the_file_give_the_bits_of_float32(
    kinds: dict[str, str], kept: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    tiny = make_tiny_model(tmp_path / "tiny", tie_word_embeddings=tied)
    gguf = write_tiny_gguf(tiny, tmp_path / "tiny.gguf", kinds=kinds)
    as_in_file, compute = replies(gguf)
    assert f"weights in {kept}" in compute
    exact, compute = replies(gguf, weights="float32")
    assert "weights in float32" in compute
    assert as_in_file == exact
    in_torch, _ = replies(gguf, kernels="torch")
    assert [reply.token_ids for reply in in_torch] == [reply.token_ids for reply in exact]


@NEEDS_NATIVE
@pytest.mark.parametrize("number", ["bfloat16", "float16"])
def test_a_model_in_16_bits_is_kept_in_these(number: str, tiny_model: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=number)
    model.save_pretrained(tmp_path)
    save_tiny_tokenizer(tmp_path)
    as_in_file, compute = replies(tmp_path)
    assert f"weights in {number}" in compute
    assert as_in_file == replies(tmp_path, weights="float32")[0]


@NEEDS_NATIVE
def test_the_embedded_model_takes_a_fifth_of_the_memory_and_says_the_same(embedded_model: ModelFiles) -> None:
    llm = LLM(str(embedded_model.folder), kv_memory="64MiB")
    assert "4-bit blocks and 8-bit blocks" in llm.compute
    assert llm.budget.weights_bytes < 100e6
    params = greedy(12, logprobs=0)
    kept = said(llm.generate(["The river runs to"], params)[0])
    exact = LLM(str(embedded_model.folder), kv_memory="64MiB", weights="float32")
    assert exact.budget.weights_bytes == pytest.approx(538e6, rel=0.01)
    assert said(exact.generate(["The river runs to"], params)[0]) == kept


@pytest.mark.parametrize("setting", ["weights", "kv_dtype"])
def test_without_the_extension_other_numbers_are_refused(tiny_model: Path, setting: str) -> None:
    config = EngineConfig(model=str(tiny_model), kv_memory="1MiB", kernels="torch", **{setting: "float16"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"{setting} float16 .* is for the native extension"):
        build_engine(config)


@NEEDS_NATIVE
def test_a_guarantee_of_equal_bits_is_given_or_refused(tiny_model: Path) -> None:
    config = EngineConfig(model=str(tiny_model), kv_memory="1MiB", deterministic="on")
    assert "bit for bit" in build_engine(config).compute
    with pytest.raises(ConfigError, match="deterministic on needs the native extension"):
        build_engine(replace(config, kernels="torch"))
