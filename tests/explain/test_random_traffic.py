"""Random traffic through every cache: each uncached token has one cause, and the causes are true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from mainstem.explain import MissCause, Recorder
from mainstem.scheduler import Request
from tests.scheduler.driver import Driver
from tests.scheduler.test_random_traffic import ARRANGEMENTS, TrafficMachine

NEW = (MissCause.FIRST_SEEN, MissCause.DIVERGED)
FEW = 2
LOST = (MissCause.EVICTED, MissCause.RESET)


class CheckedRecorder(Recorder):
    """Checks every request's causes against what the driver has computed so far."""

    driver: Driver
    forgetful: bool

    def admitted(self, request: Request, running: Sequence[Request]) -> None:
        super().admitted(request, running)
        (record,) = self.of(request.id)
        bounds = [record.num_cached, *(miss.stop for miss in record.misses)]
        assert [miss.start for miss in record.misses] == bounds[:-1], "causes overlap or leave a gap"
        assert bounds[-1] == record.num_prompt
        assert bounds == sorted(set(bounds)), "a cause has no tokens"
        tokens = request.tokens.array.tolist()
        computed = {(namespace, prefix) for namespace, prefix, _ in self.driver.computed}
        computing = {
            (other.namespace, tuple(other.tokens.array[:end].tolist()))
            for other in running
            for end in range(1, len(other.tokens) + 1)
        }
        for miss in record.misses:
            for position in range(miss.start, miss.stop):
                prefix = tuple(tokens[: position + 1])
                was_computed = (request.namespace, prefix) in computed
                is_computed = (request.namespace, prefix) in computing
                if miss.cause in NEW:
                    assert not was_computed or self.forgetful, f"token {position} of {tokens} is not new"
                elif miss.cause in LOST:
                    assert was_computed
                elif miss.cause is MissCause.IN_FLIGHT:
                    assert is_computed
                elif miss.cause is MissCause.ROUNDING:
                    assert was_computed or is_computed
                    assert position >= len(tokens) - 1 or self._cache.page_size > 1 or request.score_from is not None
                elif miss.cause is MissCause.OTHER_NAMESPACE:
                    assert not was_computed or self._cache.page_size > 1  # in a page that the namespace has a part of
                    assert any(prefix == theirs and name != request.namespace for name, theirs in computed | computing)
                else:
                    assert miss.cause is MissCause.NEVER_CACHED


class ExplainedTraffic(TrafficMachine):
    """The scheduler's random traffic, without steps that fail: what these computed is not cached."""

    spoil_some_requests = None  # type: ignore[assignment]
    fail_a_step = None  # type: ignore[assignment]

    @initialize(
        num_slots=st.integers(8, 60),
        budget=st.integers(1, 12),
        max_num_seqs=st.integers(1, 5),
        arrangement=st.sampled_from(ARRANGEMENTS),
        page_size=st.integers(1, 4),
        anti_thrash=st.booleans(),
        by_tenant=st.booleans(),
        tenant_quota=st.just(1.0),
        public=st.just(([], 0)),  # what was computed is noted by namespace here
        limit=st.sampled_from([FEW, 1000]),
    )
    def start(self, *, limit: int, **arguments: Any) -> None:
        super().start(**arguments)
        self.recorder = CheckedRecorder(self.driver.cache, limit, ghosts_per_slot=10_000)
        self.recorder.driver = self.driver
        self.recorder.forgetful = limit == FEW
        self.driver.scheduler.observer = self.recorder

    def check_replies(self) -> None:
        super().check_replies()
        counts = self.driver.scheduler.counts
        assert sum(self.recorder.counts.values()) == counts.prompt_tokens - counts.cached_tokens


TestExplained = ExplainedTraffic.TestCase
TestExplained.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)
