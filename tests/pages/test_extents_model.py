"""Random allocations and frees, against a plain set of free slots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainstem.errors import OutOfSlots
from mainstem.pages import ExtentAllocator, runs_of

SIZE = 40


def longest_run(slots: set[int]) -> int:
    return max((run.stop - run.start for run in runs_of(np.array(sorted(slots), dtype=np.int32))), default=0)


class AllocatorMachine(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([1, 4]))
    def start(self, page_size: int) -> None:
        self.page_size = page_size
        self.allocator = ExtentAllocator(SIZE, page_size)
        self.free = set(range(SIZE))

    @rule(pages=st.integers(0, 12), after=st.none() | st.integers(-1, SIZE))
    def allocate(self, pages: int, after: int | None) -> None:
        n = pages * self.page_size
        if n > len(self.free):
            with pytest.raises(OutOfSlots):
                self.allocator.allocate(n, after=after)
            return
        slots = self.allocator.allocate(n, after=after).tolist()
        assert len(slots) == len(set(slots)) == n
        assert self.free.issuperset(slots)
        goes_on = after is not None and after not in self.free and after + 1 in self.free
        if n and goes_on:
            assert after is not None
            assert slots[0] == after + 1
        elif n and n <= longest_run(self.free):
            assert len(runs_of(np.array(slots))) == 1
        self.free.difference_update(slots)
        if self.page_size > 1:
            assert all(slot % self.page_size == 0 for slot in slots[:: self.page_size])

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        used_pages = sorted({slot // self.page_size for slot in set(range(SIZE)) - self.free})
        chosen = data.draw(st.permutations(used_pages).flatmap(lambda p: st.integers(0, len(p)).map(lambda k: p[:k])))
        slots = [page * self.page_size + offset for page in chosen for offset in range(self.page_size)]
        self.allocator.free(np.array(slots, dtype=np.int32))
        self.free.update(slots)

    @rule(slots=st.lists(st.integers(-2, SIZE + 1), min_size=1, max_size=6))
    def release_wrongly(self, slots: list[int]) -> None:
        used = set(range(SIZE)) - self.free
        if len(set(slots)) == len(slots) and used.issuperset(slots):
            return
        with pytest.raises(ValueError, match="slot"):
            self.allocator.free(np.array(slots, dtype=np.int32))

    @invariant()
    def agrees(self) -> None:
        self.allocator.check_integrity()
        assert self.allocator.num_free == len(self.free)
        extents = runs_of(np.array(sorted(self.free), dtype=np.int32))
        assert self.allocator.num_extents == len(extents)


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
