"""What a step costs on a machine that is not here: a roofline over arithmetic, memory and links.

    linear layers   2 N t / C  and  W / B                    t tokens; and the output layer for those that are sampled
    attention       4 L d_q pairs / C_a  and  k c / B        pairs of query and key; c tokens of KV read
    all-reduces     2 L (latency + 2 (n-1)/n t h b / link)   n devices; h the width of the residual stream, b its bytes
    step            their sum, plus a fixed overhead

N, L, d_q, W, k as in `limits`; C, C_a and B are what the machine reaches: all devices' peak, times an efficiency. Every
request reads its own context, shared or not, as most engines do. Linear layers, attention and all-reduces follow one
another, so their times add up; within each, arithmetic and reading overlap on a GPU, so that the longer one counts, and
follow one another on a CPU, whose cores do both. It knows steps, and no clock.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mainstem.bench.hardware import Efficiency, Hardware
from mainstem.bench.limits import Limits
from mainstem.bench.machines import Seconds
from mainstem.bench.shapes import ModelSizes
from mainstem.scheduler import SchedulerOutput


class StepLoad(NamedTuple):
    """What a step has to do; single numbers, or one for each of several steps.

    Attributes:
        tokens: that go through the layers.
        sampled: that go through the output layer.
        pairs: of a query and a key that it attends to.
        context: tokens of KV that are read, each request's by itself.
    """

    tokens: Seconds | float
    sampled: Seconds | float
    pairs: Seconds | float
    context: Seconds | float


class StepParts(NamedTuple):
    """Where a step's seconds go."""

    linear: Seconds
    attention: Seconds
    all_reduce: Seconds
    overhead: Seconds

    @property
    def total(self) -> Seconds:
        """The whole step."""
        return self.linear + self.attention + self.all_reduce + self.overhead


class RooflineCost:
    """Seconds of steps of a model on a machine.

    Args:
        sizes: of the model.
        hardware: the machine.
        efficiency: what is reached of its peaks.
    """

    def __init__(self, sizes: ModelSizes, hardware: Hardware, efficiency: Efficiency) -> None:
        self.sizes = sizes
        self.model = sizes.cost
        self.hardware = hardware
        self.efficiency = efficiency
        self._gemm = hardware.flops_per_s * hardware.devices * efficiency.gemm
        self._attention = hardware.flops_per_s * hardware.devices * efficiency.attention
        self._memory = hardware.bytes_per_s * hardware.devices * efficiency.memory
        self._link = hardware.link_bytes_per_s * efficiency.link

    def __call__(self, output: SchedulerOutput) -> float:
        tokens = pairs = context = 0
        for _, start, stop in output.scheduled:
            tokens += stop - start
            pairs += (start + stop + 1) * (stop - start) // 2
            context += stop
        return float(self.parts(StepLoad(tokens, len(output.sources), pairs, context)).total)

    def ahead(self, requests: int, context: int, steps: int) -> Seconds:
        """See `StepCost`."""
        longer = context + requests * np.arange(steps, dtype=np.float64)
        return self.parts(StepLoad(float(requests), float(requests), longer, longer)).total

    def parts(self, load: StepLoad) -> StepParts:
        """Where the seconds of a step go."""
        model, sizes, devices = self.model, self.sizes, self.hardware.devices
        tokens, sampled = np.asarray(load.tokens, np.float64), np.asarray(load.sampled, np.float64)
        pairs, context = np.asarray(load.pairs, np.float64), np.asarray(load.context, np.float64)
        products = 2.0 * model.num_active * tokens + 2.0 * sizes.vocab_size * sizes.hidden * sampled
        together = np.maximum if self.efficiency.overlap else np.add
        linear = together(products / self._gemm, model.weight_bytes / self._memory)
        attention = together(
            4.0 * model.num_layers * model.query_width * pairs / self._attention,
            model.kv_bytes_per_token * context / self._memory,
        )
        all_reduce = np.zeros_like(tokens)
        if devices > 1:
            moved = 2.0 * (devices - 1) / devices * tokens * sizes.hidden * sizes.bytes_per_number
            all_reduce = 2.0 * model.num_layers * (self.hardware.link_latency_s + moved / self._link)
        shape = np.broadcast_shapes(linear.shape, attention.shape)
        overhead = np.full(shape, self.efficiency.step_overhead_s)
        return StepParts(linear + np.zeros(shape), attention + np.zeros(shape), all_reduce + np.zeros(shape), overhead)

    def prefill(self, cached: int, new: int) -> StepParts:
        """One request's `new` tokens after `cached` ones, alone in one step."""
        pairs = cached * new + (new + 1) * new / 2
        return self.parts(StepLoad(float(new), 1.0, pairs, float(cached + new)))

    def floor(self, cached: int, new: int) -> float:
        """Seconds that prefill takes at least: at the machine's peak, with free links and no overhead."""
        peak = Limits(
            self.hardware.flops_per_s * self.hardware.devices, self.hardware.bytes_per_s * self.hardware.devices
        )
        return peak.ttft_floor(self.model, cached, new)

    def pool_tokens(self, utilization: float = 0.9) -> int:
        """Tokens of KV that fit beside the weights in this share of the memory."""
        memory = self.hardware.memory_bytes * self.hardware.devices * utilization
        weights = self.sizes.num_parameters * self.sizes.bytes_per_weight
        return max(0, int((memory - weights) // self.model.kv_bytes_per_token))
