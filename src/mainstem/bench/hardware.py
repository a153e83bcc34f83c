"""Machines to simulate: what their makers say of them, and what of that is reached.

Peak figures are those of the makers' data sheets, dense (without sparsity), in 16-bit floats with 32-bit sums. What is
reached of them is stated apart, as `Efficiency`, with a reason for each share; both are printed with every result.
Prices are round figures for renting the machine, to be replaced by one's own with `--price`. It knows no model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mainstem.errors import ConfigError

GB, TB = 1e9, 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Equal devices that hold one model together, by tensor parallelism.

    Attributes:
        name: such as `8xh100`.
        devices: how many.
        flops_per_s: of one device, at most.
        bytes_per_s: of one device's memory, at most.
        memory_bytes: of one device.
        link_bytes_per_s: from one device to the others, one way; 0 for a single one.
        link_latency_s: of one all-reduce of few bytes.
        price_per_hour: of the whole machine, in dollars.
        source: where the figures are from.
    """

    name: str
    devices: int
    flops_per_s: float
    bytes_per_s: float
    memory_bytes: float
    link_bytes_per_s: float
    link_latency_s: float
    price_per_hour: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What is reached of the peak figures.

    Attributes:
        gemm: share of the peak FLOP/s in matrix products with weights, everything between them included.
        attention: share of the peak FLOP/s in the attention of prefill.
        memory: share of the peak bandwidth in reading weights and KV.
        link: share of the link's bandwidth in an all-reduce.
        step_overhead_s: of every step, what is neither: scheduling, launching, sampling.
        overlap: whether a kernel reads while it computes, so that the longer of the two is what it takes.
        reasons: one sentence for each of the figures.
    """

    gemm: float
    attention: float
    memory: float
    link: float
    step_overhead_s: float
    overlap: bool
    reasons: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("gemm", "attention", "memory", "link"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"the {name} efficiency must be above 0 and at most 1, got {getattr(self, name)}")
        if self.step_overhead_s < 0:
            raise ConfigError(f"the overhead of a step must not be negative, got {self.step_overhead_s}")


_DEVICES = {
    "a100": Hardware(
        name="a100",
        devices=1,
        flops_per_s=312 * TB,
        bytes_per_s=2.039 * TB,
        memory_bytes=80 * GB,
        link_bytes_per_s=300 * GB,
        link_latency_s=12e-6,
        price_per_hour=1.5,
        source="NVIDIA A100 80GB SXM data sheet: 312 TFLOP/s, 2,039 GB/s, NVLink 600 GB/s both ways",
    ),
    "h100": Hardware(
        name="h100",
        devices=1,
        flops_per_s=989.4 * TB,
        bytes_per_s=3.35 * TB,
        memory_bytes=80 * GB,
        link_bytes_per_s=450 * GB,
        link_latency_s=10e-6,
        price_per_hour=3.0,
        source="NVIDIA H100 SXM5 data sheet: 989.4 TFLOP/s dense, 3.35 TB/s, NVLink 900 GB/s both ways",
    ),
    "h200": Hardware(
        name="h200",
        devices=1,
        flops_per_s=989.4 * TB,
        bytes_per_s=4.8 * TB,
        memory_bytes=141 * GB,
        link_bytes_per_s=450 * GB,
        link_latency_s=10e-6,
        price_per_hour=3.5,
        source="NVIDIA H200 SXM data sheet: 989.4 TFLOP/s dense, 4.8 TB/s, NVLink 900 GB/s both ways",
    ),
}

GPU_EFFICIENCY = Efficiency(
    gemm=0.65,
    attention=0.45,
    memory=0.80,
    link=0.75,
    step_overhead_s=0.002,
    overlap=True,
    reasons=(
        "gemm 0.65: large 16-bit products reach 0.65 to 0.75 of the dense peak on these devices; the lower end, as "
        "norms, activations and launches lie between them",
        "attention 0.45: forward kernels reach 0.5 to 0.75 of the peak on long square problems, less on chunks whose "
        "rows are few and whose context is long",
        "memory 0.80: streaming reads reach 0.8 to 0.9 of the data sheet's bandwidth",
        "link 0.75: large ring all-reduces reach about three quarters of what the links carry one way",
        "overhead 2 ms a step: scheduling, launches and sampling, as well-tuned engines show at small batches",
    ),
)


def hardware(name: str) -> Hardware:
    """A machine by its name: a device, or `NxDEVICE`.

    Raises:
        ConfigError: when it is not known.
    """
    found = re.fullmatch(r"(?:([1-9][0-9]?)x)?([a-z0-9]+)", name.lower())
    device = _DEVICES.get(found[2]) if found else None
    if found is None or device is None:
        known = ", ".join(sorted(_DEVICES))
        raise ConfigError(f"hardware '{name}' is not known; it is one of {known}, with a count before it as in 8xh100")
    count = int(found[1] or 1)
    return replace(
        device,
        name=name.lower(),
        devices=count,
        price_per_hour=device.price_per_hour * count,
        link_bytes_per_s=device.link_bytes_per_s if count > 1 else 0.0,
    )
