"""How much memory the engine may take, and what of it becomes the KV pool."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from mainstem.config import EngineConfig, parse_size
from mainstem.errors import ConfigError
from mainstem.model import ModelShape
from mainstem.scheduler import MAX_SCORED_TOKENS
from mainstem.speculation import MAX_DRAFTS

# A laptop has other things to do: without --kv-memory a CPU's pool stays at this.
CPU_POOL_BYTES = 4 * 2**30
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class MemoryBudget(NamedTuple):
    """Where the memory goes, in bytes.

    Attributes:
        weights_bytes: the model's weights, as loaded.
        activations_bytes: an estimate of the largest step's intermediate results.
        pool_bytes: the KV pool, all layers.
        pool_tokens: token slots in the pool.
        kv_bytes_per_token: keys and values of one token in all layers.
        limited_by: what set the pool's size, fit to show.
    """

    weights_bytes: int
    activations_bytes: int
    pool_bytes: int
    pool_tokens: int
    kv_bytes_per_token: int
    limited_by: str

    @property
    def pool_share(self) -> float:
        """The pool's part of the memory in use."""
        return self.pool_bytes / (self.weights_bytes + self.activations_bytes + self.pool_bytes)


def plan_memory(config: EngineConfig, shape: ModelShape, device: torch.device) -> MemoryBudget:
    """Fit the KV pool into the memory that is left beside the loaded weights.

    Raises:
        ConfigError: when the pool would hold less than two tokens or one page, or more than the device has free.
    """
    activations = _activation_bytes(config, shape)
    left = int(_free_bytes(device) * config.memory_utilization) - activations
    if config.kv_memory is not None:
        wanted = parse_size(config.kv_memory)
        if wanted > left:
            raise ConfigError(
                f"kv_memory {config.kv_memory} is more than the {left / 2**30:.1f} GiB that are left beside the model; "
                "choose a smaller pool",
                setting="kv_memory",
            )
        pool, limited_by = wanted, "--kv-memory"
    elif device.type == "cpu" and left > CPU_POOL_BYTES:
        pool, limited_by = CPU_POOL_BYTES, "the default of 4 GiB on a CPU; --kv-memory sets another"
    else:
        pool, limited_by = left, f"--memory-utilization {config.memory_utilization:g} of the free memory"
    tokens = pool // shape.kv_bytes_per_token
    tokens -= tokens % config.page_size
    if tokens < 2:
        blocks = f" in blocks of {config.page_size}" if config.page_size > 1 else ""
        raise ConfigError(
            f"the KV pool would hold {max(tokens, 0)} tokens{blocks} at {shape.kv_bytes_per_token} bytes each; "
            "give it more memory with --kv-memory, or close other programs",
            setting="kv_memory" if config.kv_memory is not None else None,
        )
    return MemoryBudget(
        weights_bytes=shape.weight_bytes,
        activations_bytes=activations,
        pool_bytes=tokens * shape.kv_bytes_per_token,
        pool_tokens=tokens,
        kv_bytes_per_token=shape.kv_bytes_per_token,
        limited_by=limited_by,
    )


def _activation_bytes(config: EngineConfig, shape: ModelShape) -> int:
    """A layer's intermediate results for a full step, and the logits of running requests, drafts and scored tokens."""
    widths = 6 * shape.hidden_size + 3 * shape.intermediate_size + 4 * shape.num_heads * shape.head_dim
    sampled = min(config.max_num_seqs, config.max_num_batched_tokens)
    scored = min(MAX_SCORED_TOKENS, config.max_num_batched_tokens)
    drafted = min(MAX_DRAFTS, config.max_draft * sampled) if config.draft_sources else 0
    logits = 2 * (sampled + scored + drafted) * shape.vocab_size * 4
    return config.max_num_batched_tokens * widths * shape.dtype.itemsize + logits


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = int(psutil.virtual_memory().available)
    used = int(psutil.Process().memory_info().rss)
    limits = [limit - used for path in _CGROUP_LIMITS if (limit := _read_limit(path)) is not None]
    return max(min([available, *limits]), 0)


def _read_limit(path: Path) -> int | None:
    """A container's memory limit in bytes, None where there is none."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
