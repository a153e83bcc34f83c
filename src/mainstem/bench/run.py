"""Runs a workload on each arm in turn, several times over, and checks that all of them said the same.

An arm is a kind of prefix cache, by its name. Arms alternate, and another one goes first in each repeat, so that a
machine that slows down slows all of them; each run begins with an empty cache. All arms use one model and one KV pool.
It knows machines and arms, and nothing of figures.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from mainstem.bench.distinct import endless_cache
from mainstem.bench.drive import CallRecord, MemoryLog, drive
from mainstem.bench.machines import (
    EngineMachine,
    Machine,
    ObservedScheduler,
    StepCost,
    StepSeconds,
    VirtualMachine,
    nominal_seconds,
)
from mainstem.bench.workload import Call, Workload
from mainstem.config import BLOCK_SIZE, EngineConfig
from mainstem.errors import ConfigError
from mainstem.scheduler import DECODE_RESERVATION, Scheduler
from mainstem.tree import CACHES, PrefixCache

if TYPE_CHECKING:
    from mainstem.engine import StepTimes
    from mainstem.engine.build import BuiltEngine

ARMS = tuple(CACHES)
# A cache on its own has no model that would end its context.
NO_CONTEXT_LIMIT = 2**31 - 1
# The share of a workload's distinct tokens that a scarce pool holds.
SCARCE_SHARE = 0.3
# Every arm gets as many slots; this is a multiple of the usual sizes of blocks.
_POOL_UNIT = 256


class ArmRun(NamedTuple):
    """One arm, run once.

    Attributes:
        arm: its name.
        repeat: which time, from 0.
        records: of every call.
        memory: what it held after each step; None where that cannot be seen.
        times: where the engine's time went; None where there was no engine.
    """

    arm: str
    repeat: int
    records: Sequence[CallRecord]
    memory: MemoryLog | None = None
    times: StepTimes | None = None

    @property
    def seconds(self) -> float:
        """From the first call's sending to the last token."""
        return max(record.finished for record in self.records) - min(record.submitted for record in self.records)


class Difference(NamedTuple):
    """The first call whose reply differs between two runs, and where.

    Attributes:
        token: the first one of the reply that differs, from 0.
    """

    call: int
    token: int
    arm: str
    repeat: int
    other_arm: str
    other_repeat: int


class Arms(Protocol):
    """Makes machines, an arm each, that are alike in all but the cache."""

    def machine(self, arm: str) -> Machine:
        """A machine with an empty cache."""

    def times(self, machine: Machine) -> StepTimes | None:
        """Where the time of a machine went."""


class VirtualArms:
    """Caches and schedulers without a model.

    Args:
        config: of the scheduler and the caches; nothing else of it counts.
        capacity: slots of the pool.
        vocab_size: of the workload.
        step_seconds: see `VirtualMachine`.
        block_size: of block hashes.
    """

    def __init__(
        self,
        config: EngineConfig,
        capacity: int,
        vocab_size: int,
        step_seconds: StepSeconds | StepCost = nominal_seconds,
        *,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        self._config = config
        self._capacity = capacity
        self._vocab_size = vocab_size
        self._step_seconds = step_seconds
        self._block_size = block_size

    def machine(self, arm: str) -> VirtualMachine:
        scheduler = Scheduler(
            make_cache(arm, self._capacity, self._block_size),
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            max_num_seqs=self._config.max_num_seqs,
            max_model_len=self._config.max_model_len or NO_CONTEXT_LIMIT,
        )
        return VirtualMachine(scheduler, vocab_size=self._vocab_size, step_seconds=self._step_seconds)

    def times(self, machine: Machine) -> None:  # noqa: ARG002 - no engine, no times
        return None


class EngineArms:
    """Engines over one loaded model and its pool.

    Args:
        built: the engine whose model and pool they use; nothing else uses it.
        config: that it was built with.
        capacity: slots of the pool that they may use.
        block_size: of block hashes.
    """

    def __init__(
        self, built: BuiltEngine, config: EngineConfig, capacity: int, *, block_size: int = BLOCK_SIZE
    ) -> None:
        self._built = built
        self._config = config
        self._capacity = capacity
        self._block_size = block_size

    def machine(self, arm: str) -> EngineMachine:
        from mainstem.engine import EngineCore
        from mainstem.engine.speculation import Speculation

        core = self._built.core
        cache = make_cache(arm, self._capacity, self._block_size)
        scheduler = ObservedScheduler(
            cache,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            max_num_seqs=self._config.max_num_seqs,
            max_model_len=core.max_model_len,
        )
        return EngineMachine(
            EngineCore(
                core.runner,
                core.tokenizer,
                cache,
                scheduler,
                cascade=self._config.cascade,
                speculation=Speculation.of(self._config, scheduler),
            )
        )

    def times(self, machine: Machine) -> StepTimes:
        assert isinstance(machine, EngineMachine)
        return machine.core.times

    def warm_up(self) -> None:
        """Run whole and partial chunks and a few decoding steps, so that no arm pays for what happens once."""
        core = self._built.core
        chunk = min(self._config.max_num_batched_tokens, self._capacity // 4, core.max_model_len // 4)
        vocab_size = core.runner.shape.vocab_size
        calls = []
        for session, length in enumerate((chunk, max(1, chunk // 2))):
            prompt = np.arange(length, dtype=np.int32) % vocab_size
            calls.append(Call(session=session, turn=1, after=None, extends=False, appended=prompt, reply_tokens=4))
        workload = Workload(name="warm-up", settings={}, calls=tuple(calls), vocab_size=vocab_size)
        for arm in ARMS:
            drive(workload, self.machine(arm))


def make_cache(arm: str, capacity: int, block_size: int = BLOCK_SIZE) -> PrefixCache:
    """An empty cache of an arm's kind; only block hashes have blocks, of which `capacity` is a multiple."""
    return CACHES[arm](capacity, block_size if arm == "block-hash" else 1)


def run_arms(
    workload: Workload,
    arms: Arms,
    names: Sequence[str],
    repeats: int,
    on_end: Callable[[str, int, int], None] = lambda _arm, _repeat, _call: None,
) -> Iterator[ArmRun]:
    """Run every arm `repeats` times, each on a machine of its own; yields runs as they end.

    Args:
        workload: fits the machines' context; see `require_fit`.
        arms: makes the machines.
        names: which arms.
        repeats: how often.
        on_end: told arm, repeat and call whenever a call has ended.
    """
    for repeat in range(repeats):
        first = repeat % len(names)
        for arm in (*names[first:], *names[:first]):
            gc.collect()  # so that no arm tidies up after the one before it
            machine = arms.machine(arm)
            result = drive(workload, machine, partial(on_end, arm, repeat))
            yield ArmRun(arm, repeat, result.records, result.memory, arms.times(machine))


def first_difference(runs: Sequence[ArmRun]) -> Difference | None:
    """The first call, in the workload's order, that did not get the same reply in all runs."""
    reference = runs[0]
    for index, record in enumerate(reference.records):
        for run in runs[1:]:
            reply, other = record.reply, run.records[index].reply
            if not np.array_equal(reply, other):
                common = min(len(reply), len(other))
                differs = np.flatnonzero(reply[:common] != other[:common])
                token = int(differs[0]) if len(differs) else common
                return Difference(record.call, token, reference.arm, reference.repeat, run.arm, run.repeat)
    return None


def parse_arms(text: str) -> tuple[str, ...]:
    """Names of arms, separated by commas.

    Raises:
        ConfigError: when one is unknown or comes twice.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in CACHES:
            raise ConfigError(f"there is no cache '{name}'; the arms are {', '.join(ARMS)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"an arm is named twice in '{text}'")
    return names


def ample_pool(workload: Workload) -> int:
    """Slots in which every arm can run what may run at once, without sharing and without evicting."""
    longest: dict[int, int] = defaultdict(int)
    together: dict[tuple[int, int | None], int] = defaultdict(int)
    for length, call in zip(workload.prompt_lengths, workload.calls, strict=True):
        longest[call.session] = max(longest[call.session], length + call.reply_tokens + DECODE_RESERVATION)
        together[call.session, call.after] += 1
    slots = sum(
        length * max(count for (other, _), count in together.items() if other == session)
        for session, length in longest.items()
    )
    return _in_units(slots * 1.1)


def scarce_pool(workload: Workload) -> int:
    """Slots for a part of a workload's distinct tokens, but for its longest call with some room to spare."""
    no_replies = [np.zeros(call.reply_tokens, np.int32) for call in workload.calls]
    distinct = endless_cache(workload, no_replies).distinct
    longest = max(n + call.reply_tokens for n, call in zip(workload.prompt_lengths, workload.calls, strict=True))
    return _in_units(max(SCARCE_SHARE * distinct, 1.5 * longest))


def _in_units(slots: float) -> int:
    return -(-int(slots) // _POOL_UNIT) * _POOL_UNIT
