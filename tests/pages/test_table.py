"""Tests of the page table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.pages import PageTable, Run, runs_of

slot_lists = st.lists(st.lists(st.integers(0, 50), max_size=5), max_size=6)


def table_of(*parts: list[int]) -> PageTable:
    table = PageTable()
    for part in parts:
        table.append(np.array(part, np.int32))
    return table


def test_runs_grow_across_appends() -> None:
    table = table_of([4, 5], [6], [9, 10])
    assert table.runs(5) == [Run(4, 7), Run(9, 11)]


def test_runs_of_a_prefix_are_clipped() -> None:
    table = table_of([4, 5, 6, 9, 10])
    assert table.runs(2) == [Run(4, 6)]
    assert table.runs(3) == [Run(4, 7)]
    assert table.runs(4) == [Run(4, 7), Run(9, 10)]
    assert table.runs(0) == []


def test_more_tokens_than_there_are_have_no_runs() -> None:
    with pytest.raises(ValueError, match="3 tokens"):
        table_of([1, 2]).runs(3)


def test_remapping_changes_the_beginning_only() -> None:
    table = table_of([20, 21, 22, 23])
    table.remap(np.array([1, 2], np.int32))
    assert table.slots.tolist() == [1, 2, 22, 23]
    assert table.runs(4) == [Run(1, 3), Run(22, 24)]


def test_an_empty_table_has_no_last_slot() -> None:
    assert table_of().last is None
    assert table_of([3, 8]).last == 8


@given(slot_lists, st.data())
def test_runs_always_spell_the_slots(parts: list[list[int]], data: st.DataObject) -> None:
    table = table_of(*parts)
    flat = [slot for part in parts for slot in part]
    length = data.draw(st.integers(0, len(flat)))
    assert [slot for start, stop in table.runs(length) for slot in range(start, stop)] == flat[:length]
    table.truncate(length)
    assert table.slots.tolist() == flat[:length]
    assert table.runs(length) == runs_of(np.array(flat[:length], np.int32))
