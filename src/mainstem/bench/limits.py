"""How soon a first token could come at best: the arithmetic and the reading that a call cannot do without.

    FLOPs of n new tokens over p cached ones    F(p, n) = 2 N n + 4 L d_q (p n + n^2 / 2)
    time to first token, at least               max(F / C, (W + k (p + n)) / B)

N are the parameters that a token is multiplied with, L the layers, d_q the width of a layer's queries, W the bytes of
the weights, k those of a token's keys and values; C and B are what this machine reaches in a matrix product and in a
copy, measured here. It knows sizes, and no requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from mainstem.model import ModelShape

_MEASURE_S = 0.4
_COPY_BYTES = 256 * 2**20


class ModelCost(NamedTuple):
    """What a model costs to run; see above."""

    num_active: int
    num_layers: int
    query_width: int
    weight_bytes: int
    kv_bytes_per_token: int

    @classmethod
    def of(cls, shape: ModelShape) -> ModelCost:
        """The cost of a loaded model."""
        return cls(
            num_active=shape.num_active_parameters,
            num_layers=shape.num_layers,
            query_width=shape.query_width,
            weight_bytes=shape.weight_bytes,
            kv_bytes_per_token=shape.kv_bytes_per_token,
        )

    def flops(self, cached: float, new: float) -> float:
        """Multiplications and additions to prefill `new` tokens after `cached` ones."""
        linear = 2.0 * self.num_active * new
        attention = 4.0 * self.num_layers * self.query_width * (cached * new + new**2 / 2)
        return linear + attention

    def bytes_read(self, tokens: float) -> float:
        """Bytes that a step over a context of `tokens` reads at least: every weight, and their keys and values."""
        return self.weight_bytes + self.kv_bytes_per_token * tokens


class Limits(NamedTuple):
    """What a machine reaches.

    Attributes:
        flops_per_s: in a matrix product of the model's own shape.
        bytes_per_s: in a copy, read and written bytes together.
    """

    flops_per_s: float
    bytes_per_s: float

    def or_better(self, other: Limits) -> Limits:
        """What was reached in either of two measurements; a moment when others use the machine spoils one."""
        return Limits(max(self.flops_per_s, other.flops_per_s), max(self.bytes_per_s, other.bytes_per_s))

    def ttft_floor(self, cost: ModelCost, cached: float, new: float) -> float:
        """Seconds to the first token, at least, of a call with `new` tokens to compute after `cached` ones."""
        return max(cost.flops(cached, new) / self.flops_per_s, cost.bytes_read(cached + new) / self.bytes_per_s)


def measure_limits(shape: ModelShape, rows: int, device: torch.device) -> Limits:
    """Time a matrix product of `rows` tokens with a feed-forward weight, and a copy. Takes a second or two.

    The best of many runs counts, of PyTorch's product and of the native extension's: a limit is what can be reached.
    """
    import torch

    from mainstem.model.linear import NativeProduct
    from mainstem.native import native_library

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    x = torch.randn(rows, shape.hidden_size, dtype=shape.dtype, device=device)
    weight = torch.randn(shape.intermediate_size, shape.hidden_size, dtype=shape.dtype, device=device)
    product = torch.empty(rows, shape.intermediate_size, dtype=shape.dtype, device=device)
    source = torch.ones(_COPY_BYTES // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    with torch.inference_mode():
        gemm_s = _best_seconds(lambda: torch.mm(x, weight.T, out=product), synchronize)
        if (library := native_library()) is not None and device.type == "cpu" and shape.dtype == torch.float32:
            linear = torch.nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
            native = NativeProduct([linear], library)
            gemm_s = min(gemm_s, _best_seconds(lambda: native.compute(x, product), synchronize))
        copy_s = _best_seconds(lambda: target.copy_(source), synchronize)
    return Limits(2.0 * rows * weight.numel() / gemm_s, 2.0 * _COPY_BYTES / copy_s)


def _best_seconds(work: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """The shortest time of `work`, over a fraction of a second and at least three times."""
    best, runs, until = float("inf"), 0, time.perf_counter() + _MEASURE_S
    while runs < 3 or time.perf_counter() < until:
        started = time.perf_counter()
        work()
        synchronize()
        best = min(best, time.perf_counter() - started)
        runs += 1
    return best
