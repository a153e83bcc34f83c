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


def rooms(pool_tokens: int, max_model_len: int) -> list[str]:
    """The warnings about a pool of so many tokens."""
    found = checks(pool=pool_tokens * 46_080, max_model_len=max_model_len)
    return [check.text for check in found if check.about == "room" and check.level is Level.WARNING]


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
    [(64_000, 31_744), (12_000, 5888), (2184, 1088), (1456, 704), (600, 300), (4, 2)],
)
def test_the_length_it_advises_is_the_longest_round_number_without_a_warning(pool_tokens: int, advised: int) -> None:
    (text,) = rooms(pool_tokens, 65_536)
    assert text.endswith(f"or set --max-model-len {advised}")
    assert rooms(pool_tokens, advised) == []


def test_no_conversation_is_said_to_be_longer_than_the_pool() -> None:
    (text,) = rooms(1456, 1457)
    assert "two conversations of 1,456 tokens" in text


def test_without_a_cache_nothing_is_left_alone() -> None:
    assert "reserve" not in {check.about for check in checks(prefix_cache="none")}


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
