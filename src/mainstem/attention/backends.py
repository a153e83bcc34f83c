"""The ways to run a step's attention, and the choice between them.

It knows devices and pools, not plans.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from torch import Tensor

from mainstem.attention.kernels import kernel_for
from mainstem.attention.native_attention import NativeStepAttention, runs_natively
from mainstem.attention.plan import StepPlan
from mainstem.attention.pool import KVPool
from mainstem.attention.torch_attention import TorchStepAttention
from mainstem.errors import ConfigError
from mainstem.native import native_library


class StepAttention(Protocol):
    """Attention of one step: made once from its plan, called once a layer."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Write the layer's keys and values, then attend.

        q is (1, heads, tokens, head_dim); k and v are (1, kv_heads, tokens, head_dim).
        Returns (1, tokens, heads, head_dim).
        """


class Backend:
    """A way to run attention over one pool.

    Attributes:
        name: "native" or "torch".
    """

    def __init__(self, name: str, make: Callable[[StepPlan, Tensor, KVPool], StepAttention], pool: KVPool) -> None:
        self.name = name
        self._make = make
        self._pool = pool

    def start(self, plan: StepPlan, slot_mapping: Tensor) -> StepAttention:
        """The attention of one step; `slot_mapping` is int64[tokens], where each row's own key and value go."""
        return self._make(plan, slot_mapping, self._pool)


def backend_for(pool: KVPool, kernels: str = "auto") -> Backend:
    """Choose how to attend over a pool.

    Args:
        pool: the KV memory.
        kernels: "native" for the extension, "torch" for PyTorch's operators, "auto" for the extension where it can run.

    Raises:
        ConfigError: when the extension is asked for and cannot run.
    """
    library = native_library()
    if kernels == "native" and library is None:
        raise ConfigError(
            "kernels 'native' needs the extension, which was not built; install a C compiler (gcc or clang), "
            "then run: python -m mainstem.native",
            setting="kernels",
        )
    if kernels == "native" and not runs_natively(pool):
        raise ConfigError(
            "kernels 'native' is for CPUs, and head sizes that are multiples of 8 up to 256", setting="kernels"
        )
    if kernels != "torch" and library is not None and runs_natively(pool):
        return Backend("native", partial(NativeStepAttention, library=library), pool)
    return Backend("torch", partial(TorchStepAttention, kernel=kernel_for(pool.keys[0].device)), pool)
