"""The page table of one sequence: which slot holds each of its tokens.

It keeps the slots twice: as an array, for writing KV, and as runs of consecutive slots, for reading KV in place.
It knows nothing of who owns a slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mainstem.pages.extents import Run, SlotArray, runs_of


class PageTable:
    """Slots of a sequence's tokens, in token order; grows at the end, and its beginning can be remapped."""

    def __init__(self) -> None:
        self._slots: SlotArray = np.empty(256, np.int32)
        self._length = 0
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return self._length

    @property
    def slots(self) -> SlotArray:
        """A view of the slots, int32[len]; valid until the next change."""
        return self._slots[: self._length]

    @property
    def last(self) -> int | None:
        """The last token's slot, None when empty."""
        return int(self._slots[self._length - 1]) if self._length else None

    def runs(self, length: int) -> list[Run]:
        """The runs that hold the first `length` tokens."""
        clipped: list[Run] = []
        left = length
        for start, stop in self._runs:
            if left == 0:
                break
            taken = min(stop - start, left)
            clipped.append(Run(start, start + taken))
            left -= taken
        if left:
            raise ValueError(f"{length} tokens asked for, the table has {self._length}")
        return clipped

    def append(self, slots: SlotArray) -> None:
        """Add the slots of the next tokens."""
        added = len(slots)
        if self._length + added > len(self._slots):
            grown = np.empty(max(2 * len(self._slots), self._length + added), np.int32)
            grown[: self._length] = self.slots
            self._slots = grown
        self._slots[self._length : self._length + added] = slots
        self._length += added
        runs = runs_of(slots)
        if runs and self._runs and self._runs[-1].stop == runs[0].start:
            runs[0] = Run(self._runs.pop().start, runs[0].stop)
        self._runs += runs

    def remap(self, slots: SlotArray) -> None:
        """Point the first `len(slots)` tokens at other slots that hold the same KV."""
        if np.array_equal(self._slots[: len(slots)], slots):
            return
        self._slots[: len(slots)] = slots
        self._runs = runs_of(self.slots)

    def reorder(self, start: int, order: Sequence[int]) -> None:
        """Give token `start + i` the slot that token `start + order[i]` had, for each i; `order` is a permutation."""
        self._slots[start : start + len(order)] = self._slots[start + np.array(order)]
        self._runs = runs_of(self.slots)

    def truncate(self, length: int) -> None:
        """Forget the slots after the first `length` tokens."""
        self._runs = self.runs(length)
        self._length = length
