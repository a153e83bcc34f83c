"""Tests of the choice of number types for weights and KV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mainstem.config import EngineConfig
from mainstem.engine.build import build_engine
from mainstem.errors import ConfigError
from mainstem.native import native_library

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
