"""How far the step cost is from a real machine: a workload on the engine here, and the same one on the virtual clock.

Both run the same scheduler over the same cache with replies of the same lengths, so they differ in nothing but what a
step takes. The machine's peaks are a matrix product and a copy, measured at start-up. Of the shares of them that are
reached there are two sets: stated ones, fixed beforehand for any CPU, and probed ones, measured on three steps that are
not the workload's. The first say how well such a model predicts a machine it has not seen; the second, whether its form
is right. It knows machines and costs, and no terminal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mainstem.bench.cost import RooflineCost
from mainstem.bench.drive import CallRecord, drive
from mainstem.bench.hardware import Efficiency, Hardware
from mainstem.bench.limits import Limits
from mainstem.bench.machines import VirtualMachine
from mainstem.bench.run import EngineArms, make_cache
from mainstem.bench.shapes import ModelSizes
from mainstem.bench.workload import Call, Workload
from mainstem.config import EngineConfig
from mainstem.scheduler import Scheduler
from mainstem.tree import TokenArray

if TYPE_CHECKING:
    from mainstem.model import ModelShape

# Predictions further off than this are reported as such.
TOLERANCE = 0.25

CPU_EFFICIENCY = Efficiency(
    gemm=0.65,
    attention=0.5,
    memory=1.0,
    link=1.0,
    step_overhead_s=0.006,
    overlap=False,
    reasons=(
        "gemm 0.65: norms, rotations, activations and residual sums lie between the products, and small models have "
        "products narrower than the one measured",
        "attention 0.5: its products are small, and an exponential lies between them",
        "memory 1.0: weights are read about as fast as a copy reads and writes",
        "overhead 6 ms a step: the Python of the layers, the scheduler and the sampler",
    ),
)

_PROBES = 3
_PROBE_CONTEXT = 3  # times as long as the chunk that is timed over it
_PROBE_DECODES = 12
_SHORT_PROMPT = 64


class Probe(NamedTuple):
    """Steps of the engine alone, in seconds, each the median of a few.

    Attributes:
        rows: tokens in a full chunk.
        context: tokens of the longer context.
        chunk: a full chunk with nothing before it.
        chunk_over_context: a full chunk over the longer context.
        decode: one token over a short context.
    """

    rows: int
    context: int
    chunk: float
    chunk_over_context: float
    decode: float


class TurnCheck(NamedTuple):
    """One turn; times to the first token in seconds.

    Attributes:
        turn: from 1.
        prompt: tokens of its prompts, in the mean.
        prefilled: tokens computed for its calls, in the mean.
        predicted: by each step cost, its name to the median over the calls.
        measured: on the engine, the median over calls and repeats.
        fastest: the shortest that was measured.
        slowest: the longest.
    """

    turn: int
    prompt: float
    prefilled: float
    predicted: dict[str, float]
    measured: float
    fastest: float
    slowest: float

    def ratio(self, cost: str) -> float:
        """Predicted over measured."""
        return self.predicted[cost] / self.measured


def this_machine(limits: Limits, rows: int) -> Hardware:
    """The machine that this runs on, by what was measured of it with products of `rows` rows."""
    return Hardware(
        name="this",
        devices=1,
        flops_per_s=limits.flops_per_s,
        bytes_per_s=limits.bytes_per_s,
        memory_bytes=0.0,
        link_bytes_per_s=0.0,
        link_latency_s=0.0,
        price_per_hour=0.0,
        source=f"measured: a matrix product of {rows} rows, and a copy",
    )


def sizes_of(name: str, shape: ModelShape) -> ModelSizes:
    """A loaded model as the step cost sees it."""
    outside = shape.num_parameters - shape.num_active_parameters
    return ModelSizes(
        name=name,
        layers=shape.num_layers,
        hidden=shape.hidden_size,
        intermediate=shape.intermediate_size,
        heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        tied=outside < 1.5 * shape.vocab_size * shape.hidden_size,
        bytes_per_weight=shape.weight_bytes / shape.num_parameters,
        bytes_per_number=shape.kv_dtype.itemsize,
        max_position=shape.max_position,
    )


def probe(arms: EngineArms, rows: int, max_len: int, vocab_size: int) -> Probe:
    """Time three kinds of steps.

    Args:
        arms: engines that are warm.
        rows: most tokens in a step.
        max_len: most tokens of a prompt and its reply.
        vocab_size: of the model.
    """
    rows = min(rows, max_len // (_PROBE_CONTEXT + 2))
    context = _PROBE_CONTEXT * rows
    draw = np.random.default_rng(0)

    def tokens(n: int) -> TokenArray:
        return draw.integers(0, vocab_size, n).astype(np.int32)

    first: list[float] = []
    over: list[float] = []
    gaps: list[float] = []
    for _ in range(_PROBES):
        calls = (
            Call(session=0, turn=1, after=None, extends=False, appended=tokens(rows), reply_tokens=1),
            Call(session=1, turn=1, after=0, extends=False, appended=tokens(context), reply_tokens=1),
            # With the reply's token, which has no KV yet, a full chunk.
            Call(session=1, turn=2, after=1, extends=True, appended=tokens(rows - 1), reply_tokens=1),
            Call(
                session=2,
                turn=1,
                after=2,
                extends=False,
                appended=tokens(min(rows, _SHORT_PROMPT)),
                reply_tokens=_PROBE_DECODES,
            ),
        )
        workload = Workload(name="probe", settings={}, calls=calls, vocab_size=vocab_size)
        records = drive(workload, arms.machine("radix")).records
        first.append(records[0].ttft)
        over.append(records[2].ttft)
        gaps.extend(records[3].gaps.tolist())
    return Probe(rows, context, median(first), median(over), median(gaps))


def efficiency_of(found: Probe, sizes: ModelSizes, hardware: Hardware) -> Efficiency:
    """The shares of the peaks that a probe shows, none above 1, with reading and arithmetic one after the other."""
    model = sizes.cost
    per_pair = 4.0 * model.num_layers * model.query_width
    per_row, per_sample = 2.0 * model.num_active, 2.0 * sizes.vocab_size * sizes.hidden
    read = model.kv_bytes_per_token / hardware.bytes_per_s
    more = max(found.chunk_over_context - found.chunk, 1e-9)
    attending = max(more - read * found.context, 1e-9)
    attention_rate = min(per_pair * found.rows * found.context / attending, hardware.flops_per_s)
    own = per_pair * found.rows * (found.rows + 1) / 2 / attention_rate + read * found.rows
    # What the chunk's other rows add to a decoded token's time are products alone: both read the weights once.
    products = max(found.chunk - found.decode - own, 1e-9)
    gemm_rate = min(per_row * (found.rows - 1) / products, hardware.flops_per_s)
    gemm, attention = gemm_rate / hardware.flops_per_s, attention_rate / hardware.flops_per_s
    reading = model.weight_bytes / hardware.bytes_per_s
    overhead = max(0.0, found.decode - reading - (per_row + per_sample) / gemm_rate)
    return Efficiency(
        gemm=gemm,
        attention=attention,
        memory=1.0,
        link=1.0,
        step_overhead_s=overhead,
        overlap=False,
        reasons=(
            f"gemm {gemm:.2f}: from a chunk of {found.rows} tokens with nothing before it, {found.chunk * 1e3:.0f} ms",
            f"attention {attention:.2f}: from the {more * 1e3:.0f} ms more that it takes over {found.context:,} tokens",
            "memory 1.0: as a copy",
            f"overhead {overhead * 1e3:.1f} ms a step: a decoded token takes {found.decode * 1e3:.1f} ms, of which "
            f"reading the weights takes {reading * 1e3:.1f}",
        ),
    )


def validate(
    arms: EngineArms,
    config: EngineConfig,
    workload: Workload,
    costs: Mapping[str, RooflineCost],
    *,
    arm: str,
    pool_tokens: int,
    repeats: int,
    on_end: Callable[[int], None] = lambda _: None,
) -> list[TurnCheck]:
    """Run a workload on the engine, and predict what each turn took.

    Args:
        arms: engines that are warm.
        config: that they were built with.
        workload: fits them.
        costs: step costs of the model on this machine, by name.
        arm: which cache.
        pool_tokens: slots of the engines' pool.
        repeats: how often the engine runs it.
        on_end: told the call whenever one has ended.
    """
    measured = [drive(workload, arms.machine(arm), on_end).records for _ in range(repeats)]
    predicted: dict[str, Sequence[CallRecord]] = {}
    for name, cost in costs.items():
        scheduler = Scheduler(
            make_cache(arm, pool_tokens),
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            max_model_len=cost.sizes.max_position,
        )
        machine = VirtualMachine(scheduler, vocab_size=workload.vocab_size, step_seconds=cost)
        predicted[name] = drive(workload, machine).records
    return _compare(workload, predicted, measured)


def _compare(
    workload: Workload, predicted: Mapping[str, Sequence[CallRecord]], measured: Sequence[Sequence[CallRecord]]
) -> list[TurnCheck]:
    turns: dict[int, list[int]] = defaultdict(list)
    for index, call in enumerate(workload.calls):
        turns[call.turn].append(index)
    checks = []
    for turn, members in sorted(turns.items()):
        seconds = [run[index].ttft for run in measured for index in members]
        checks.append(
            TurnCheck(
                turn=turn,
                prompt=fmean(workload.prompt_lengths[index] for index in members),
                prefilled=fmean(measured[0][index].prefilled_tokens for index in members),
                predicted={
                    name: median(records[index].ttft for index in members) for name, records in predicted.items()
                },
                measured=median(seconds),
                fastest=min(seconds),
                slowest=max(seconds),
            )
        )
    return checks
