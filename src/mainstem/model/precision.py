"""Which numbers weights and KV are kept in, beside those that are computed with.

The native extension computes in float32 and reads weights and KV in fewer bits as well, which is what a decoded token
waits for. It knows number types and settings, not what they cost in accuracy: docs/precision.md does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from mainstem.attention.native_attention import takes_heads
from mainstem.errors import ConfigError
from mainstem.model.shape import ModelShape
from mainstem.native import native_library

NUMBERS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WEIGHTS = {**NUMBERS, "int8": torch.int8}


class Precision(NamedTuple):
    """Number types in memory."""

    weights: torch.dtype
    kv: torch.dtype

    @property
    def described(self) -> str:
        """Both, fit to show."""
        return f"weights in {_name(self.weights)}, KV in {_name(self.kv)}"


def choose_precision(weights: str, kv: str, shape: ModelShape, device: torch.device, kernels: str) -> Precision:
    """Number types for a loaded model.

    For weights, `auto` is what is computed with. For KV it is float16 where the native extension runs: it holds twice
    as many tokens, and changes greedy replies no more often than another engine's float32 does (docs/precision.md).

    Args:
        weights: of the linear layers: a name in `WEIGHTS`, or "auto".
        kv: of the KV pool: a name in `NUMBERS`, or "auto".
        shape: of the model as it was loaded.
        device: where it is.
        kernels: see `ModelRunner`.

    Raises:
        ConfigError: when other numbers are asked for than are computed with, and the extension cannot run.
    """
    runs = _native_runs(shape, device, kernels)
    chosen = Precision(
        shape.dtype if weights == "auto" else WEIGHTS[weights],
        (torch.float16 if runs else shape.dtype) if kv == "auto" else NUMBERS[kv],
    )
    for name, number in (("weights", chosen.weights), ("kv_dtype", chosen.kv)):
        if number != shape.dtype and not runs:
            raise ConfigError(
                f"{name} {_name(number)} beside a computation in {_name(shape.dtype)} is for the native extension, "
                "which needs a CPU, dtype float32 and a C compiler at installation (python -m mainstem.native); "
                f"leave {name} at auto"
            )
    return chosen


def with_precision(shape: ModelShape, precision: Precision) -> ModelShape:
    """The sizes of a model whose linear layers and KV are kept in these numbers."""
    narrower = shape.dtype.itemsize - precision.weights.itemsize
    # The output layer is packed too; the embedding's rows are only looked up.
    packed = shape.num_active_parameters + shape.vocab_size * shape.hidden_size
    return replace(shape, kv_dtype=precision.kv, weight_bytes=shape.weight_bytes - narrower * packed)


def _name(number: torch.dtype) -> str:
    return str(number).removeprefix("torch.")


def _native_runs(shape: ModelShape, device: torch.device, kernels: str) -> bool:
    return (
        native_library() is not None
        and kernels != "torch"
        and device.type == "cpu"
        and shape.dtype == torch.float32
        and takes_heads(shape.head_dim)
    )
