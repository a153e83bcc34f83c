"""Drives the calls of a workload through a machine, in lockstep, and records what each of them cost.

A call is sent once the one that it waits for has ended and its wait has passed on the workload's clock; then the
machine runs one step, and so on. Nothing here depends on real time, so the same workload over the same cache gives the
same calls in the same steps on every machine. It knows workloads and machines, and nothing of models.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from mainstem.bench.distinct import LiveTokens
from mainstem.bench.machines import Holding, Machine, MemoryUse, NewToken, Seconds, Stretch
from mainstem.bench.workload import Workload
from mainstem.errors import ConfigError
from mainstem.tree import TokenArray


class CallRecord(NamedTuple):
    """What became of one call. Times are of one clock, the one that the machine measures by.

    Attributes:
        call: index in the workload.
        submitted: when it was sent.
        token_times: float64[reply_tokens], when each token of its reply came.
        reply: int32[reply_tokens].
        first_step: the step that its first token came from, from 0.
        prompt_tokens: length of its prompt.
        found_tokens: prompt tokens that were in the cache when it was sent.
        cached_tokens: prompt tokens that were in the cache, or that it took from a call that was computing them.
        prefilled_tokens: tokens computed for it beyond one for each later token of the reply: the prompt's that were
            not cached, and whatever had to be computed again.
        preemptions: how often it had to give way.
    """

    call: int
    submitted: float
    token_times: Seconds
    reply: TokenArray
    first_step: int
    prompt_tokens: int
    found_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    preemptions: int

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return float(self.token_times[0] - self.submitted)

    @property
    def gaps(self) -> Seconds:
        """Seconds between tokens, float64[reply_tokens - 1]."""
        return np.diff(self.token_times)

    @property
    def finished(self) -> float:
        """When the last token came."""
        return float(self.token_times[-1])


@dataclass(slots=True)
class MemoryLog:
    """The KV pool after each step, in tokens.

    Attributes:
        used: slots that are not free.
        in_use: slots that running calls hold, reserved ones included.
        resident: of these, slots with KV.
        logical: tokens with KV that the running calls refer to, each by itself.
        distinct: of these, tokens that differ in themselves or in what precedes them: the least that could be held.
    """

    used: array[int] = field(default_factory=lambda: array("q"))
    in_use: array[int] = field(default_factory=lambda: array("q"))
    resident: array[int] = field(default_factory=lambda: array("q"))
    logical: array[int] = field(default_factory=lambda: array("q"))
    distinct: array[int] = field(default_factory=lambda: array("q"))

    def add(self, use: MemoryUse, distinct: int) -> None:
        """Note one step."""
        self.used.append(use.used)
        self.in_use.append(use.in_use)
        self.resident.append(use.in_use - use.unfilled)
        self.logical.append(sum(holding.tokens for holding in use.holdings))
        self.distinct.append(distinct)

    def add_ahead(self, use: MemoryUse, distinct: Sequence[int]) -> None:
        """Note the steps of a stretch: `use` after the last of them, `distinct` after each."""
        steps, running = len(distinct), len(use.holdings)
        logical = sum(holding.tokens for holding in use.holdings)
        # Each step gave every call one token more; their slots had been reserved.
        missing = [running * left for left in range(steps - 1, -1, -1)]
        self.used.extend([use.used] * steps)
        self.in_use.extend([use.in_use] * steps)
        self.resident.extend([use.in_use - use.unfilled - tokens for tokens in missing])
        self.logical.extend([logical - tokens for tokens in missing])
        self.distinct.extend(distinct)


class DriveResult(NamedTuple):
    """A workload, driven to its end.

    Attributes:
        records: of every call, in the workload's order.
        memory: after each step; empty where it was not watched.
        steps: how many steps were run.
    """

    records: list[CallRecord]
    memory: MemoryLog
    steps: int


@dataclass(slots=True)
class _Open:
    """A call that was sent and has not ended."""

    submitted: float
    prompt: TokenArray
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    first_step: int = -1


def require_fit(workload: Workload, max_model_len: int) -> None:
    """Refuse a workload of which a call does not fit the context.

    Raises:
        ConfigError: naming the longest call.
    """
    needs = [length + call.reply_tokens for length, call in zip(workload.prompt_lengths, workload.calls, strict=True)]
    longest = max(range(len(needs)), key=needs.__getitem__)
    if needs[longest] > max_model_len:
        call = workload.calls[longest]
        raise ConfigError(
            f"{workload.name} does not fit: turn {call.turn} of session {call.session} takes {needs[longest]:,} tokens "
            f"with its reply, and there is room for {max_model_len:,}. Make it smaller, or take a model with a longer "
            "context and a larger --kv-memory"
        )


def drive(
    workload: Workload,
    machine: Machine,
    on_end: Callable[[int], None] = lambda _: None,
    *,
    watch_memory: bool = True,
) -> DriveResult:
    """Run every call of a workload.

    Args:
        workload: fits the machine's context; see `require_fit`.
        machine: nothing has run on it.
        on_end: told the index of each call that has ended.
        watch_memory: look at the pool after every step, which with hundreds of running calls is most of the work.

    Raises:
        MainstemError: when a call cannot be run.
    """
    return _Drive(workload, machine, on_end, watch_memory).run()


class _Drive:
    """The state of one run."""

    def __init__(self, workload: Workload, machine: Machine, on_end: Callable[[int], None], watch_memory: bool) -> None:
        self._calls = workload.calls
        self._machine = machine
        self._on_end = on_end
        self._watch_memory = watch_memory
        self._followers: dict[int, list[int]] = defaultdict(list)
        self._queue: list[tuple[float, int]] = []
        for index, call in enumerate(self._calls):
            if call.after is None:
                heappush(self._queue, (call.wait, index))
            else:
                self._followers[call.after].append(index)
        self._open: dict[int, _Open] = {}
        self._records: dict[int, CallRecord] = {}
        # What calls begin with, until the last of those that extend it has been sent.
        self._contexts: dict[int, TokenArray] = {}
        self._extensions = [
            sum(self._calls[follower].extends for follower in self._followers.get(index, ()))
            for index in range(len(self._calls))
        ]
        self._live = LiveTokens()
        self._memory = MemoryLog()

    def run(self) -> DriveResult:
        machine, steps = self._machine, 0
        while self._queue or machine.has_work():
            while self._queue and self._queue[0][0] <= machine.now:
                self._submit(*heappop(self._queue))
            if not machine.has_work():
                machine.wait_until(self._queue[0][0])
                continue
            for new in machine.step():
                self._take(new, steps)
            steps += 1
            if self._watch_memory:
                use = machine.memory()
                self._memory.add(use, self._live.distinct(use.holdings))
            stretch = machine.run_ahead(self._queue[0][0] if self._queue else math.inf)
            if stretch is not None:
                self._take_ahead(stretch)
                steps += len(stretch.times)
        return DriveResult([self._records[index] for index in range(len(self._calls))], self._memory, steps)

    def _submit(self, due: float, index: int) -> None:
        call = self._calls[index]
        prompt = call.appended
        if call.extends:
            assert call.after is not None
            prompt = np.concatenate([self._contexts[call.after], call.appended])
            self._extensions[call.after] -= 1
            if self._extensions[call.after] == 0:
                del self._contexts[call.after]
        submitted = self._machine.submit(index, prompt, call.reply_tokens, call.reply, due=due)
        self._open[index] = _Open(submitted, prompt)
        self._live.add(index, prompt)

    def _take(self, new: NewToken, step: int) -> None:
        opened = self._open[new.call]
        if not opened.tokens:
            opened.first_step = step
        opened.tokens.append(new.token)
        opened.times.append(new.at)
        if new.last:
            self._end(new.call)
        else:
            self._live.append(new.call, new.token)

    def _take_ahead(self, stretch: Stretch) -> None:
        times = stretch.times.tolist()
        for call, tokens in stretch.tokens.items():
            opened = self._open[call]
            opened.tokens += tokens.tolist()
            opened.times += times
            self._live.extend(call, tokens)
        if self._watch_memory:
            use = self._machine.memory()
            self._memory.add_ahead(use, self._distinct_ahead(use.holdings, len(times)))

    def _distinct_ahead(self, holdings: Sequence[Holding], steps: int) -> list[int]:
        """How many different tokens running calls had after each step of a stretch that has just ended."""
        before, after, most = self._memory.distinct[-1], self._live.distinct(holdings), len(holdings)
        if after - before == most * steps:
            return list(range(before + most, after + 1, most))
        # Some of them have said the same, at least in the beginning.
        return [
            self._live.distinct([Holding(call, tokens - left) for call, tokens in holdings])
            for left in range(steps - 1, -1, -1)
        ]

    def _end(self, index: int) -> None:
        opened = self._open.pop(index)
        self._live.remove(index)
        usage = self._machine.usage(index)
        reply = np.array(opened.tokens, np.int32)
        self._records[index] = CallRecord(
            call=index,
            submitted=opened.submitted,
            token_times=np.array(opened.times),
            reply=reply,
            first_step=opened.first_step,
            prompt_tokens=len(opened.prompt),
            found_tokens=usage.found,
            cached_tokens=usage.cached,
            prefilled_tokens=usage.computed - (len(reply) - 1),
            preemptions=usage.preemptions,
        )
        if self._extensions[index]:
            self._contexts[index] = np.concatenate([opened.prompt, reply])
        for follower in self._followers.pop(index, ()):
            heappush(self._queue, (self._machine.now + self._calls[follower].wait, follower))
        self._on_end(index)
