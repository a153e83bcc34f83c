"""Runs a scheduler without a model, and checks at every token that its KV would have been right.

The KV of a token is a function of its whole prefix. So the driver notes for each slot which prefix was last written to
it; when a token is computed, every earlier token's slot must hold exactly that token's prefix, written in an earlier
step or in this one. The next token of a sequence is a hash of the sequence, as with a greedy model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from mainstem.params import SamplingParams
from mainstem.scheduler import Hold, Request, RequestState, Scheduler, SchedulerOutput
from mainstem.tree import CACHES, PrefixCache, RadixCache

VOCAB = 7
NOT_FINITE = "not finite"


def next_token(tokens: Sequence[int], salt: int = 0) -> int:
    """What the "model" says after these tokens; `salt` stands for a seed."""
    return hash((tuple(tokens), salt)) % VOCAB


class Driver:
    """A scheduler, the requests given to it, and what its slots hold."""

    def __init__(
        self,
        capacity: int,
        *,
        budget: int = 8,
        max_num_seqs: int = 4,
        max_model_len: int = 10_000,
        kind: str = "radix",
        page_size: int = 1,
        schedule: str = "fcfs",
        lenience: float = 1.0,
        anti_thrash: bool = False,
        by_tenant: bool = False,
        tenant_quota: float = 1.0,
        cache_reserve: float = 0.0,
        declared: Sequence[int] = (),
        share_after: int = 0,
    ) -> None:
        """With `by_tenant`, `declared` tokens are public, as are those that `share_after` tenants have sent."""
        self.steps = 0
        self.shares = bool(declared or share_after)
        if by_tenant and kind == "radix":
            self.cache: PrefixCache = RadixCache(
                capacity, page_size, by_tenant=True, tenant_quota=tenant_quota, share_after=share_after
            )
            if declared:
                self.cache.declare_public(declared, ("public",))
        else:
            self.cache = CACHES[kind](capacity, page_size)
        self.scheduler = Scheduler(
            self.cache,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            schedule=schedule,
            lenience=lenience,
            anti_thrash=anti_thrash,
            by_tenant=by_tenant,
            tenant_quota=tenant_quota,
            cache_reserve=cache_reserve,
            clock=lambda: float(self.steps),
        )
        self.written: dict[int, Any] = {}
        self.computed: list[tuple[Any, ...]] = []
        self.live: dict[str, Request] = {}
        self.done: dict[str, list[int]] = {}
        self.scores: dict[str, list[int]] = {}
        self.to_hold: set[str] = set()
        self.holds: list[Hold] = []
        self.salts: dict[str, int] = {}

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        max_tokens: int = 1,
        *,
        namespace: tuple[Any, ...] = (),
        salt: int = 0,
        score_from: int | None = None,
        hold: bool = False,
    ) -> Request:
        """`score_from` as of `Request`; with `hold` what it computed is kept when it is done, in `holds`."""
        request = Request(
            name,
            np.array(prompt, np.int32),
            SamplingParams(),
            max_tokens=max_tokens,
            namespace=namespace,
            score_from=score_from,
        )
        self.scheduler.add(request)
        if hold:
            self.to_hold.add(name)
        self.live[name] = request
        self.salts[name] = salt
        return request

    def abort(self, name: str) -> None:
        self.scheduler.finish(self.live.pop(name))

    def step(self, spoilt: Mapping[str, int] = MappingProxyType({})) -> SchedulerOutput:
        """Run a step; `spoilt` requests compute numbers that are not finite from a position of theirs on."""
        output = self.scheduler.schedule()
        self.steps += 1
        assert sum(s.stop - s.start for s in output.scheduled) <= self.scheduler.max_num_batched_tokens
        assert len(self.scheduler.running) <= self.scheduler.max_num_seqs
        self._compute(output, spoilt)
        failed = self._failed(output)
        requeued = self.scheduler.commit(output, failed)
        for request in failed - requeued:
            self.scheduler.finish(request)
            del self.live[request.id]
        for request, entry, position in output.sources:
            if request in failed:
                continue
            self._check_source(output, request, entry, position)
            request.tokens.append(next_token(request.tokens.array.tolist(), self.salts[request.id]))
            if request.num_generated >= request.max_tokens:
                self._finish(request)
        for request, entry, start, stop in output.scored:
            assert output.scheduled[entry].request is request
            assert output.scheduled[entry].start <= start <= stop == output.scheduled[entry].stop
            if request not in failed and request not in requeued:
                self.scores.setdefault(request.id, []).extend(range(start, stop))
                if request.num_remaining == 0:
                    self._finish(request)
        self.scheduler.check_integrity()
        return output

    def _finish(self, request: Request) -> None:
        if request.id in self.to_hold and request.state is RequestState.RUNNING:
            self.holds.append(self.scheduler.hold(request, request.num_computed))
        self.scheduler.finish(request)
        self.done[request.id] = request.tokens.array[request.num_prompt :].tolist()
        del self.live[request.id]

    def refuse_first(self) -> None:
        """Nothing could be scheduled for what is held: give up the request that the scheduler blames."""
        assert self.scheduler.holds
        shortage = self.scheduler.shortage()
        assert shortage.needed > shortage.available
        assert shortage.held == len({slot for hold in self.holds for slot in hold.slots.tolist()})
        self.abort(self.scheduler.stuck.id)

    def run(self, max_steps: int = 2000) -> None:
        """Step until every request is done."""
        while self.scheduler.has_work():
            assert self.steps < max_steps, f"still running after {max_steps} steps: {self.live}"
            output = self.step()
            assert output.scheduled, "requests are left but nothing was scheduled"

    def _compute(self, output: SchedulerOutput, spoilt: Mapping[str, int]) -> None:
        now: set[int] = set()
        for request, start, stop in output.scheduled:
            assert request.state is RequestState.RUNNING
            keys = self._keys(request, stop)
            slots = request.table.slots[:stop].tolist()
            # A token that attends to what is not finite is not finite either.
            read = [self.written.get(slot) for slot in slots[:start]]
            first_bad = 0 if NOT_FINITE in read else spoilt.get(request.id, stop)
            for position in range(start, stop):
                self.written[slots[position]] = keys[position] if position < first_bad else NOT_FINITE
                self.computed.append((*keys[position], request.id))
            now.update(slots[start:])
        for request, start, stop in output.scheduled:
            slots = request.table.slots[:stop].tolist()
            read = [
                key if slot in now and self.written.get(slot) == NOT_FINITE else self.written.get(slot)
                for slot, key in zip(slots, self._keys(request, stop), strict=True)
            ]
            assert read == self._keys(request, stop), f"{request} attends to the wrong KV from {start}"

    def _failed(self, output: SchedulerOutput) -> set[Request]:
        """Requests whose last token, or the one they sample after, is not finite."""
        rows = [(request, request, stop - 1) for request, _, stop in output.scheduled]
        rows += [(request, output.scheduled[entry].request, position) for request, entry, position in output.sources]
        return {
            request for request, row, position in rows if self.written[int(row.table.slots[position])] == NOT_FINITE
        }

    def _keys(self, request: Request, stop: int) -> list[tuple[Any, ...]]:
        tokens = request.tokens.array[:stop].tolist()
        namespace = () if self.shares else request.namespace
        return [(namespace, tuple(tokens[: end + 1])) for end in range(stop)]

    def _check_source(self, output: SchedulerOutput, request: Request, entry: int, position: int) -> None:
        """The logits a request samples from must be those after its own last token."""
        source = output.scheduled[entry]
        assert source.start <= position < source.stop
        assert position == len(request.tokens) - 1
        before = source.request.tokens.array[: position + 1].tolist()
        assert before == request.tokens.array.tolist()
        assert source.request.namespace == request.namespace


def expected_reply(prompt: Sequence[int], max_tokens: int, salt: int = 0) -> list[int]:
    """What a request must get, whatever else ran beside it."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens, salt))
    return tokens[len(prompt) :]
