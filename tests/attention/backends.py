"""Every way to run a step's attention on this machine, for tests that all of them must pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from torch import Tensor

from mainstem.attention import KVPool, StepAttention, StepPlan
from mainstem.attention.kernels import flash_cpu, matmul
from mainstem.attention.native_attention import NativeStepAttention
from mainstem.attention.torch_attention import TorchStepAttention
from mainstem.native import native_library

Maker = Callable[[StepPlan, Tensor, KVPool], StepAttention]

LIBRARY = native_library()
needs_native = pytest.mark.skipif(LIBRARY is None, reason="the native extension was not built: no C compiler")


def native_makers() -> list[object]:
    """The native extension with each instruction set that this processor has, as test parameters."""
    if LIBRARY is None:
        return [pytest.param(None, id="native", marks=needs_native)]
    return [
        pytest.param(partial(NativeStepAttention, library=LIBRARY, instruction_set=index), id=f"native-{name}")
        for index, name in enumerate(LIBRARY.instruction_sets)
    ]


MAKERS = [
    pytest.param(partial(TorchStepAttention, kernel=flash_cpu, max_pieces=1), id="torch-flash"),
    pytest.param(partial(TorchStepAttention, kernel=flash_cpu, max_pieces=5), id="torch-flash-in-pieces"),
    pytest.param(partial(TorchStepAttention, kernel=matmul, max_pieces=1), id="torch-matmul"),
    *native_makers(),
]
