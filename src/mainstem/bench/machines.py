"""What runs the calls of a workload: the engine itself, or its scheduler and cache alone, on a clock of their own.

A machine has two clocks. The *workload's clock* (`now`) decides when a call is due; it moves by a stated cost of each
step and jumps over idle time, so that an engine and a cache alone, fast or slow, see the same calls in the same order.
The clock that things are *measured* by is in the results: the wall's for an engine, the workload's for a virtual
machine. Both machines drive the same `Scheduler` over the same `PrefixCache`.

It knows requests and steps; it knows no workload, no report, and imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable
from zlib import crc32

import numpy as np
import numpy.typing as npt

from mainstem.errors import EngineFailed, MainstemError
from mainstem.params import SamplingParams
from mainstem.scheduler import Request, ScheduledTokens, Scheduler, SchedulerOutput
from mainstem.tree import TokenArray

if TYPE_CHECKING:
    from mainstem.engine import EngineCore, RequestOutput

Seconds = npt.NDArray[np.float64]
StepSeconds = Callable[[SchedulerOutput], float]
"""What a step costs on the workload's clock."""


@runtime_checkable
class StepCost(Protocol):
    """What a step costs, and what many steps cost that only make replies longer."""

    def __call__(self, output: SchedulerOutput) -> float:
        """Seconds of one step."""

    def ahead(self, requests: int, context: int, steps: int) -> Seconds:
        """Seconds of each of the next steps, in which every request gets one token longer.

        Args:
            requests: how many decode.
            context: how many tokens they attend to in the first of these steps, all together.
            steps: how many.

        Returns:
            float64[steps].
        """


# A step of a small model on a laptop, roughly. Only the order of calls depends on it, and only where calls wait.
NOMINAL_STEP_S, NOMINAL_TOKEN_S = 0.02, 0.001
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def num_scheduled(output: SchedulerOutput) -> int:
    """Tokens that a step computes."""
    return sum(stop - start for _, start, stop in output.scheduled)


class NominalCost:
    """20 ms a step and 1 ms a token."""

    def __call__(self, output: SchedulerOutput) -> float:
        return NOMINAL_STEP_S + NOMINAL_TOKEN_S * num_scheduled(output)

    def ahead(self, requests: int, context: int, steps: int) -> Seconds:  # noqa: ARG002 - nominally all contexts are alike
        return np.full(steps, NOMINAL_STEP_S + NOMINAL_TOKEN_S * requests)


nominal_seconds = NominalCost()


class NewToken(NamedTuple):
    """A token of a call's reply.

    Attributes:
        call: index of the call.
        token: its id.
        at: when it was sampled, by the clock that is measured by.
        last: whether it ends the reply.
    """

    call: int
    token: int
    at: float
    last: bool


class Stretch(NamedTuple):
    """Steps in which every running call got one token of its reply and nothing else happened.

    Attributes:
        times: float64[steps], when each of them ended, by the clock that is measured by.
        tokens: int32[steps] for each running call.
    """

    times: Seconds
    tokens: dict[int, TokenArray]


class CallUsage(NamedTuple):
    """Where the tokens of a finished call came from.

    Attributes:
        found: prompt tokens that were in the cache when it was sent.
        cached: prompt tokens found at its first admission, or taken from a request that was computing them.
        computed: tokens computed for it, the reply's and those computed again after a preemption included.
        preemptions: how often it had to give way.
    """

    found: int
    cached: int
    computed: int
    preemptions: int


class Holding(NamedTuple):
    """How many tokens of a running call have KV; the call's index."""

    call: int
    tokens: int


class MemoryUse(NamedTuple):
    """The KV pool between two steps, in token slots.

    Attributes:
        used: slots that are not free, cached ones that nobody runs on included.
        in_use: of these, slots that running calls hold; with what they have reserved and not filled yet.
        unfilled: of these, slots without KV: reserved, or still to be computed.
        holdings: what each running call would hold by itself.
    """

    used: int
    in_use: int
    unfilled: int
    holdings: list[Holding]


class Machine(Protocol):
    """Runs calls, one step at a time. Single-threaded."""

    @property
    def now(self) -> float:
        """Seconds on the workload's clock."""

    def has_work(self) -> bool:
        """Whether a call is queued or running."""

    def submit(
        self, call: int, prompt: TokenArray, reply_tokens: int, reply: TokenArray | None, *, due: float
    ) -> float:
        """Queue a call; returns when, by the clock that is measured by.

        Args:
            call: its index, not in use by another one.
            prompt: int32[n].
            reply_tokens: how long its reply is, exactly.
            reply: int32[reply_tokens], what it replies; None for what the model says.
            due: when it was to be sent, on the workload's clock; not after `now`.
        """

    def step(self) -> list[NewToken]:
        """Run one step; the clock goes on.

        Raises:
            MainstemError: when a call cannot be run.
        """

    def run_ahead(self, until: float) -> Stretch | None:
        """Take as many steps at once as only make replies longer, none of them beginning at `until` or later.

        The result is that of single steps. None where there are none, or where steps take real work.
        """

    def wait_until(self, when: float) -> None:
        """Let time pass, with nothing to do."""

    def usage(self, call: int) -> CallUsage:
        """Where the tokens of a call came from; asked once, after its last token."""

    def memory(self) -> MemoryUse:
        """Count slots between two steps."""


class _Account:
    """What both machines note of their calls: the requests behind them, what was found and computed for each."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._calls: dict[str, int] = {}
        self._computed: dict[int, int] = {}
        self._found: dict[int, int] = {}
        self._requests: dict[int, Request] = {}

    def look_up(self, call: int, prompt: TokenArray) -> None:
        """Note what the cache has of a call that is about to be sent; its last token is always computed."""
        if call in self._found:
            raise ValueError(f"call {call} has been submitted already")
        self._found[call] = self._scheduler.cache.peek(prompt[:-1]).length

    def open(self, call: int, request: Request) -> None:
        """A call was sent."""
        self._calls[request.id] = call
        self._requests[call] = request
        self._computed[call] = 0

    def note(self, output: SchedulerOutput) -> None:
        """A step was run."""
        for request, start, stop in output.scheduled:
            self._computed[self._calls[request.id]] += stop - start

    def note_ahead(self, steps: int) -> None:
        """Every running call computed as many tokens of its reply."""
        for request in self._scheduler.running:
            self._computed[self._calls[request.id]] += steps

    def call_of(self, request: Request) -> int:
        return self._calls[request.id]

    def close(self, call: int) -> CallUsage:
        """A call has ended."""
        request = self._requests.pop(call)
        del self._calls[request.id]
        # Drafts that were right were computed beside what was scheduled.
        computed = self._computed.pop(call) + request.num_accepted
        return CallUsage(self._found.pop(call), request.num_cached, computed, request.num_preemptions)

    def memory(self) -> MemoryUse:
        stats = self._scheduler.cache.stats()
        running = self._scheduler.running
        return MemoryUse(
            used=stats.capacity - stats.free,
            in_use=stats.protected,
            unfilled=sum(len(request.table) - request.num_computed for request in running),
            holdings=[Holding(self._calls[request.id], request.num_computed) for request in running],
        )


class VirtualMachine:
    """A scheduler and a cache without a model, on a virtual clock.

    A reply that is not given is made of the prompt's own tokens, so that equal prompts get equal replies, as from a
    greedy model.

    Args:
        scheduler: with the cache to be measured; nothing else uses it.
        vocab_size: replies are made of token ids below this.
        step_seconds: what a step costs; this is also what is measured. Only with a `StepCost` are steps taken at once.
    """

    def __init__(
        self, scheduler: Scheduler, *, vocab_size: int, step_seconds: StepSeconds | StepCost = nominal_seconds
    ) -> None:
        self.scheduler = scheduler
        scheduler.clock = lambda: self._now
        self._vocab_size = vocab_size
        self._step_seconds = step_seconds
        self._ahead = step_seconds.ahead if isinstance(step_seconds, StepCost) else None
        self._account = _Account(scheduler)
        self._replies: dict[str, TokenArray] = {}
        self._now = 0.0
        self._busy = 0.0
        # Whether the next step is like the last one as long as no call is sent and none ends.
        self._settled = False

    @property
    def now(self) -> float:
        return self._now

    @property
    def busy_s(self) -> float:
        """Seconds in which a step ran."""
        return self._busy

    def has_work(self) -> bool:
        return self.scheduler.has_work()

    def submit(
        self, call: int, prompt: TokenArray, reply_tokens: int, reply: TokenArray | None, *, due: float
    ) -> float:
        self._account.look_up(call, prompt)
        request = Request(str(call), prompt, GREEDY, max_tokens=reply_tokens, arrival=due)
        self._account.open(call, request)
        self.scheduler.add(request)
        self._settled = False
        self._replies[request.id] = made_up_reply(prompt, reply_tokens, self._vocab_size) if reply is None else reply
        return due

    def step(self) -> list[NewToken]:
        output = self.scheduler.schedule()
        if not output.scheduled:
            raise EngineFailed("requests are left but none can run")
        self._account.note(output)
        seconds = self._step_seconds(output)
        self._now += seconds
        self._busy += seconds
        self.scheduler.commit(output)
        new = [self._push(request) for request, _, _ in output.sources]
        # Who waits after a step of decoding could not be admitted in it, and cannot be while nothing else changes.
        self._settled = not any(token.last for token in new) and (
            not self.scheduler.waiting or all(_decodes(scheduled) for scheduled in output.scheduled)
        )
        return new

    def run_ahead(self, until: float) -> Stretch | None:
        running = self.scheduler.running
        if not self._settled or self._ahead is None:
            return None
        # The last token of a reply is left to a step of its own.
        left = min((request.max_tokens - request.num_generated - 1 for request in running), default=0)
        steps = min(self.scheduler.num_repeatable(), left)
        if steps < 1:
            return None
        context = sum(len(request.tokens) for request in running)
        seconds = self._ahead(len(running), context, steps)
        clock = np.cumsum(np.concatenate([[self._now], seconds]))
        until = min(until, self.scheduler.conversations.deadline)
        steps = int(np.searchsorted(clock[:-1], until, side="left"))
        if steps < 1:
            return None
        tokens = {}
        for request in running:
            said = self._replies[request.id][request.num_generated : request.num_generated + steps]
            request.tokens.extend(said)
            tokens[self._account.call_of(request)] = said
        self.scheduler.repeat(steps)
        self._account.note_ahead(steps)
        self._busy += float(clock[steps]) - self._now
        self._now = float(clock[steps])
        return Stretch(clock[1 : steps + 1], tokens)

    def _push(self, request: Request) -> NewToken:
        token = int(self._replies[request.id][request.num_generated])
        request.tokens.append(token)
        last = request.num_generated == request.max_tokens
        if last:
            self.scheduler.finish(request)
            del self._replies[request.id]
        return NewToken(self._account.call_of(request), token, self._now, last)

    def wait_until(self, when: float) -> None:
        self._now = max(self._now, when)

    def usage(self, call: int) -> CallUsage:
        return self._account.close(call)

    def memory(self) -> MemoryUse:
        return self._account.memory()


def _decodes(scheduled: ScheduledTokens) -> bool:
    request, start, stop = scheduled
    return stop - start == 1 and start >= request.num_prompt


def made_up_reply(prompt: TokenArray, length: int, vocab_size: int) -> TokenArray:
    """int32[length], a function of the prompt and nothing else."""
    start = crc32(prompt.tobytes())
    # Knuth's multiplicative hash spreads neighbouring positions over the vocabulary.
    spread = (np.arange(start, start + length, dtype=np.uint64) * np.uint64(2654435761)) >> np.uint64(7)
    return (spread % np.uint64(vocab_size)).astype(np.int32)


class ObservedScheduler(Scheduler):
    """A scheduler that keeps its latest schedule for whoever measures."""

    latest: SchedulerOutput | None = None

    def schedule(self) -> SchedulerOutput:
        self.latest = super().schedule()
        return self.latest


class EngineMachine:
    """A real engine, stepped in this thread and measured by the clock on the wall.

    Args:
        core: with an `ObservedScheduler`; nothing else uses it.
        step_seconds: what a step costs on the workload's clock.
    """

    def __init__(self, core: EngineCore, *, step_seconds: StepSeconds | StepCost = nominal_seconds) -> None:
        if not isinstance(core.scheduler, ObservedScheduler):
            raise TypeError("the engine of an EngineMachine needs an ObservedScheduler")
        self.core = core
        self._scheduler = core.scheduler
        self._step_seconds = step_seconds
        self._account = _Account(core.scheduler)
        self._new: list[NewToken] = []
        self._failed: MainstemError | None = None
        self._now = 0.0

    @property
    def now(self) -> float:
        return self._now

    def has_work(self) -> bool:
        return self.core.has_work()

    def submit(
        self,
        call: int,
        prompt: TokenArray,
        reply_tokens: int,
        reply: TokenArray | None,
        *,
        due: float,  # noqa: ARG002
    ) -> float:
        def take(news: RequestOutput | MainstemError) -> None:
            if isinstance(news, MainstemError):
                self._failed = news
                return
            ended, final = news.finish_reason is not None, len(news.token_ids) - 1
            self._new += [
                NewToken(call, token, news.at, ended and index == final) for index, token in enumerate(news.token_ids)
            ]

        self._account.look_up(call, prompt)
        submitted = time.perf_counter()
        params = replace(GREEDY, max_tokens=reply_tokens)
        self.core.submit(prompt, params, take, arrival=submitted, recorded=reply)
        self._account.open(call, self._scheduler.waiting.latest)
        return submitted

    def step(self) -> list[NewToken]:
        self.core.step()
        if self._failed is not None:
            raise self._failed
        output = self._scheduler.latest
        assert output is not None
        self._account.note(output)
        self._now += self._step_seconds(output)
        new, self._new = self._new, []
        return new

    def run_ahead(self, until: float) -> None:  # noqa: ARG002 - a model takes one step after the other
        return None

    def wait_until(self, when: float) -> None:
        self._now = max(self._now, when)

    def usage(self, call: int) -> CallUsage:
        return self._account.close(call)

    def memory(self) -> MemoryUse:
        return self._account.memory()
