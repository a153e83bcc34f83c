"""Looks at settings and memory for what will disappoint later, and says what to do about it.

It knows settings and sizes; it measures nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from mainstem.config import EngineConfig
from mainstem.engine.budget import MemoryBudget

SMALL_SHARE, TINY_SHARE = 0.20, 0.15
LENGTHS = (2_048, 8_192, 32_768, 131_072)
SLOW_STEP_S = 1.0
"""A step that takes longer makes running streams stutter."""


class Level(StrEnum):
    """How a check came out."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"


class Check(NamedTuple):
    """One finding.

    Attributes:
        level: how it came out.
        about: what was looked at, in a word or two.
        text: what was found, and what to do if that is not good.
    """

    level: Level
    about: str
    text: str


def check_engine(config: EngineConfig, budget: MemoryBudget, max_model_len: int, compute: str) -> list[Check]:
    """All findings on an engine that was made of these settings.

    Args:
        config: its settings.
        budget: where its memory goes.
        max_model_len: longest prompt plus reply.
        compute: what computes its steps, as the engine says it.
    """
    return [
        _cache(config),
        _share(budget),
        *_conversations(budget, max_model_len),
        *_reserve(config, budget),
        _chunk(config, max_model_len),
        _kernels(config, compute),
    ]


def check_step(seconds: float, tokens: int) -> Check:
    """What a measured step of so many tokens means for streams that run beside it."""
    text = f"a step of {tokens:,} prompt tokens takes {1000 * seconds:,.0f} ms ({tokens / seconds:,.0f} tokens/s)"
    if seconds <= SLOW_STEP_S:
        return Check(Level.OK, "step", f"{text}; a running stream waits as long for its next token")
    wanted = max(int(tokens * SLOW_STEP_S / seconds) // 64 * 64, 16)
    return Check(
        Level.WARNING,
        "step",
        f"{text}, and running streams stand still meanwhile whenever a long prompt comes; "
        f"--max-num-batched-tokens {wanted} keeps that below {SLOW_STEP_S:g} s",
    )


def _cache(config: EngineConfig) -> Check:
    match config.prefix_cache:
        case "radix":
            ttl = f"dropped when idle for {config.cache_ttl}" if config.cache_ttl_s else "kept as long as there is room"
            return Check(Level.OK, "cache", f"a radix tree; what is computed is {ttl}")
        case "block-hash":
            text = "block hashes, for comparison only: no lifetimes, no sessions; --prefix-cache radix has them"
            return Check(Level.NOTE, "cache", text)
    return Check(
        Level.WARNING, "cache", "none: every prompt is computed from its beginning; --prefix-cache radix keeps it"
    )


def _share(budget: MemoryBudget) -> Check:
    text = f"the KV pool is {budget.pool_share:.0%} of the memory in use (limit: {budget.limited_by})"
    if budget.pool_share >= SMALL_SHARE:
        return Check(Level.OK, "memory", text)
    level = Level.WARNING if budget.pool_share < TINY_SHARE else Level.NOTE
    advice = "conversations will push each other out and hits will be rare. Raise --kv-memory or --memory-utilization"
    return Check(level, "memory", f"{text}: {advice}")


def _conversations(budget: MemoryBudget, max_model_len: int) -> Iterator[Check]:
    longest = min(max_model_len, budget.pool_tokens)  # no request is longer than the pool
    lengths = [length for length in LENGTHS if length < longest] + [longest]
    fits = ", ".join(f"{budget.pool_tokens // length:,} of {length:,} tokens" for length in lengths)
    yield Check(
        Level.OK,
        "room",
        f"{budget.pool_tokens:,} tokens, {budget.kv_bytes_per_token:,} bytes each; conversations that fit: {fits}, "
        "more where they share a beginning",
    )
    if budget.pool_tokens < 2 * longest:
        yield Check(
            Level.WARNING,
            "room",
            f"the pool does not hold two conversations of {longest:,} tokens: one of that length pushes all "
            f"others out. Raise --kv-memory, or set --max-model-len {_round(budget.pool_tokens // 2)}",
        )


def _round(tokens: int) -> int:
    """At most so many tokens, as people write them."""
    return next((tokens // unit * unit for unit in (1024, 256, 64) if tokens >= 8 * unit), max(tokens, 2))


def _reserve(config: EngineConfig, budget: MemoryBudget) -> Iterator[Check]:
    kept = int(config.cache_reserve * budget.pool_tokens)
    if config.prefix_cache == "none":
        return  # there is nothing to keep
    if not kept:
        yield Check(
            Level.NOTE, "reserve", "a burst of new requests may flush the cache; --cache-reserve 0.2 prevents it"
        )
        return
    yield Check(
        Level.OK, "reserve", f"{kept:,} tokens of what is cached are left alone when new requests join running ones"
    )


def _chunk(config: EngineConfig, max_model_len: int) -> Check:
    chunk, streams = config.max_num_batched_tokens, config.max_num_seqs
    if chunk < 2 * streams:
        return Check(
            Level.WARNING,
            "chunk",
            f"{chunk:,} tokens a step leave no room for prompts beside {streams:,} running replies; set "
            f"--max-num-batched-tokens {4 * streams} or fewer --max-num-seqs",
        )
    steps = -(-max_model_len // chunk)
    return Check(
        Level.OK,
        "chunk",
        f"{chunk:,} tokens a step: the longest prompt takes {steps:,} step{'' if steps == 1 else 's'}, "
        "and running replies go on in each",
    )


def _kernels(config: EngineConfig, compute: str) -> Check:
    if config.kernels == "auto" and config.device in ("auto", "cpu") and "native" not in compute:
        text = f"{compute}; the native extension is faster and makes a hit equal a miss: python -m mainstem.native"
        return Check(Level.NOTE, "compute", text)
    return Check(Level.OK, "compute", compute)
