"""Puts an engine together from its settings: model, memory, cache, scheduler."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mainstem.config import EngineConfig
from mainstem.engine.budget import MemoryBudget, plan_memory
from mainstem.engine.core import EngineCore
from mainstem.engine.speculation import Speculation
from mainstem.errors import ConfigError
from mainstem.explain import Recorder
from mainstem.model import ModelRunner, Progress, load_model, no_progress, resolve_model
from mainstem.model.packing import pack
from mainstem.model.precision import NUMBERS, choose_precision
from mainstem.scheduler import Scheduler, Upkeep
from mainstem.tokens import Tokenizer
from mainstem.tree import CACHES, PrefixCache, RadixCache


class BuiltEngine(NamedTuple):
    """An engine that is ready to step, the name of its model, where its memory goes and what computes."""

    core: EngineCore
    model_name: str
    budget: MemoryBudget
    compute: str


def build_engine(config: EngineConfig, progress: Progress = no_progress) -> BuiltEngine:
    """Load the model and give it a KV pool. Takes seconds, minutes if the model must be fetched first.

    Raises:
        ModelLoadError: when the model cannot be had.
        ConfigError: when a setting does not fit the model or the machine.
    """
    device = _device(config.device)
    files = resolve_model(config.model, progress)
    progress("loading the model", 0, None)
    tokenizer = Tokenizer.load(files.folder, canonical_tools=config.canonical_tools)
    loaded = load_model(
        files.folder,
        dtype=_dtype(config.dtype, device),
        device=device,
        random_weights=files.random_weights,
        keep_blocks=True,
    )
    precision = choose_precision(config.weights, config.kv_dtype, loaded.shape, device, config.kernels)
    loaded = pack(loaded, precision, config.kernels)
    budget = plan_memory(config, loaded.shape, device)
    runner = ModelRunner(loaded, budget.pool_tokens, device, kernels=config.kernels)
    if config.deterministic == "on" and not runner.deterministic:
        raise ConfigError(
            "deterministic on needs the native extension (python -m mainstem.native builds it), kernels other than "
            "torch, and a model of the Llama family in float32 on a CPU; leave it at auto to run without the guarantee"
        )
    cache = _make_cache(config, budget.pool_tokens)
    scheduler = Scheduler(
        cache,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=_max_model_len(config, loaded.shape.max_position),
        schedule=config.order,
        anti_thrash=config.anti_thrash,
        cache_reserve=config.cache_reserve,
        by_tenant=True,
        tenant_quota=config.tenant_quota,
    )
    recorder = Recorder(cache, config.explain_records) if config.explain_records else None
    speculation = Speculation.of(config, scheduler)
    upkeep = Upkeep(cache, ttl_s=config.cache_ttl_s, high=config.high_watermark, low=config.low_watermark)
    core = EngineCore(
        runner,
        tokenizer,
        cache,
        scheduler,
        cascade=config.cascade,
        recorder=recorder,
        speculation=speculation,
        upkeep=upkeep,
    )
    return BuiltEngine(core, files.name, budget, runner.compute)


def _make_cache(config: EngineConfig, capacity: int) -> PrefixCache:
    if config.prefix_cache != "radix":
        return CACHES[config.prefix_cache](capacity, config.page_size)
    return RadixCache(
        capacity,
        config.page_size,
        retention_budget=config.retention_budget,
        by_tenant=True,
        tenant_quota=config.tenant_quota,
        share_after=config.share_after,
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device '{name}' cannot be used: {reason}", setting="device") from None
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The number type to load weights in; None means the model's own."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    return NUMBERS[name]


def _max_model_len(config: EngineConfig, max_position: int) -> int:
    if config.max_model_len is None:
        return max_position
    if config.max_model_len > max_position:
        raise ConfigError(
            f"max_model_len {config.max_model_len} is more than the model's context of {max_position}",
            setting="max_model_len",
        )
    return config.max_model_len
