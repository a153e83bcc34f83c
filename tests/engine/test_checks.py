"""What is said of settings and memory that will disappoint."""

from __future__ import annotations

from typing import Any

import pytest

from mainstem.config import EngineConfig
from mainstem.engine.budget import MemoryBudget
from mainstem.engine.checks import Check, Level, check_engine, check_step

MIB = 2**20


def checks(pool: int = 4096 * MIB, max_model_len: int = 8192, compute: str = "native", **settings: Any) -> list[Check]:
    budget = MemoryBudget(512 * MIB, 128 * MIB, pool, pool // 46_080, 46_080, "--kv-memory")
    return check_engine(EngineConfig(**settings), budget, max_model_len, compute)


def worst(found: list[Check]) -> dict[str, str]:
    return {check.about: check.level.value for check in found if check.level is not Level.OK}


def test_an_ordinary_engine_is_in_order() -> None:
    assert worst(checks()) == {}


@pytest.mark.parametrize(("pool", "levels"), [(150 * MIB, {"memory": "note"}), (100 * MIB, {"memory": "warning"})])
def test_a_small_share_of_memory_is_told(pool: int, levels: dict[str, str]) -> None:
    assert worst(checks(pool=pool, max_model_len=1000)) == levels


def test_it_says_how_many_conversations_of_what_length_fit() -> None:
    (room,) = [check.text for check in checks(max_model_len=8192) if check.about == "room"]
    assert "45 of 2,048 tokens, 11 of 8,192 tokens" in room


def test_a_pool_that_one_conversation_fills_is_told() -> None:
    assert worst(checks(max_model_len=60_000)) == {"room": "warning"}


@pytest.mark.parametrize(
    ("pool_tokens", "advised"),
    [(64_000, 15_360), (12_000, 2816), (2000, 448), (1100, 256), (600, 150), (4, 2)],
)
def test_the_length_it_advises_fits_four_times_and_is_a_round_number(pool_tokens: int, advised: int) -> None:
    found = checks(pool=pool_tokens * 46_080, max_model_len=65_536)
    (text,) = [check.text for check in found if check.about == "room" and check.level is Level.WARNING]
    assert text.endswith(f"or set --max-model-len {advised}")


@pytest.mark.parametrize(
    ("settings", "levels"),
    [
        ({"max_num_batched_tokens": 64, "max_num_seqs": 64}, {"chunk": "warning"}),
        ({"prefix_cache": "none"}, {"cache": "warning"}),
        ({"prefix_cache": "block-hash"}, {"cache": "note"}),
        ({"cache_reserve": 0.0}, {"reserve": "note"}),
    ],
)
def test_settings_that_disappoint_are_told(settings: dict[str, Any], levels: dict[str, str]) -> None:
    assert worst(checks(**settings)) == levels


def test_missing_kernels_are_told() -> None:
    assert worst(checks(compute="PyTorch")) == {"compute": "note"}


def test_a_slow_step_names_the_chunk_that_would_do() -> None:
    assert check_step(0.5, 512).level is Level.OK
    slow = check_step(4.0, 2048)
    assert slow.level is Level.WARNING
    assert "--max-num-batched-tokens 512" in slow.text
