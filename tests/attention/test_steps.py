"""Tests of a step's attention over the KV pool, against dense attention of each row by itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.attention import KVPool, SequenceRows, plan_step, sharing_order
from mainstem.pages import Run, runs_of
from tests.attention.backends import MAKERS, Maker
from tests.attention.reference import dense_attention

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 16
SCALE = 0.25


class Sequence(NamedTuple):
    """Slots of all its tokens, and how many of the last ones are computed in this step."""

    slots: list[int]
    new: int


def pool_of(num_slots: int) -> KVPool:
    pool = KVPool(
        num_layers=1,
        num_slots=num_slots,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    generator = torch.Generator().manual_seed(num_slots)
    pool.keys[0].normal_(generator=generator)
    pool.values[0].normal_(generator=generator)
    return pool


def runs(slots: list[int]) -> list[Run]:
    return runs_of(torch.tensor(slots, dtype=torch.int32).numpy())


def check_step(sequences: list[Sequence], make: Maker, *, cascade: bool) -> None:
    """Run one step over the sequences and compare every row with dense attention."""
    singles = [s for s in sequences if s.new == 1]
    order = sharing_order([runs(s.slots) for s in singles])
    packed: list[SequenceRows] = []
    rows: list[tuple[list[int], int]] = []
    for s in [singles[i] for i in order] + [s for s in sequences if s.new > 1]:
        slots = np.array(s.slots, np.int32)
        packed.append(SequenceRows(len(rows), len(rows) + s.new, slots, tuple(runs_of(slots))))
        rows += [(s.slots, end) for end in range(len(s.slots) - s.new + 1, len(s.slots) + 1)]

    generator = torch.Generator().manual_seed(len(rows))
    q = torch.randn(1, HEADS, len(rows), HEAD_DIM, generator=generator)
    k = torch.randn(1, KV_HEADS, len(rows), HEAD_DIM, generator=generator)
    v = torch.randn(1, KV_HEADS, len(rows), HEAD_DIM, generator=generator)
    pool = pool_of(max(max(s.slots) for s in sequences) + 1)
    mapping = torch.tensor([slots[end - 1] for slots, end in rows])
    attention = make(plan_step(packed, cascade=cascade), mapping, pool)
    out = attention(0, q, k, v, SCALE)

    assert out.shape == (1, len(rows), HEADS, HEAD_DIM)
    torch.testing.assert_close(pool.keys[0][:, mapping], k[0])
    for row, (visible, end) in enumerate(rows):
        expected = dense_attention(q[0, :, row], pool.keys[0], pool.values[0], runs(visible[:end]), SCALE)
        torch.testing.assert_close(out[0, row].double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("cascade", [True, False])
def test_branches_on_a_shared_root(make: Maker, cascade: bool) -> None:
    root = list(range(2000))
    check_step(
        [Sequence([*root, *range(3000 + 50 * i, 3000 + 50 * i + 9 + i)], 1) for i in range(5)], make, cascade=cascade
    )


@pytest.mark.parametrize("make", MAKERS)
def test_decoding_and_two_prefills_in_one_step(make: Maker) -> None:
    root = list(range(400))
    check_step(
        [
            Sequence([*root, *range(1000, 1040)], 20),
            Sequence([*root, 2000], 1),
            Sequence(list(range(2100, 2130)), 30),
            Sequence([*range(3000, 3600)], 1),
        ],
        make,
        cascade=True,
    )


@pytest.mark.parametrize("make", MAKERS)
def test_a_first_token_attends_to_itself(make: Maker) -> None:
    check_step([Sequence([7], 1)], make, cascade=True)


@pytest.mark.parametrize("make", MAKERS)
def test_a_row_reads_what_another_row_writes_in_the_same_step(make: Maker) -> None:
    shared = list(range(64))
    check_step([Sequence(shared, 64), Sequence([*shared, 100, 101, 102], 3)], make, cascade=True)


@pytest.mark.parametrize("make", MAKERS)
def test_scattered_slots(make: Maker) -> None:
    scattered = list(range(0, 60, 2))
    check_step([Sequence(scattered, 1), Sequence([*scattered[:20], *range(100, 104)], 4)], make, cascade=True)


@st.composite
def steps(draw: st.DrawFn) -> list[Sequence]:
    """Sequences of a random tree: they share slots up to where they part, and own what is computed now."""
    next_slot = 0

    def fresh(length: int, stride: int = 1) -> list[int]:
        nonlocal next_slot
        slots = list(range(next_slot, next_slot + length * stride, stride))
        next_slot = slots[-1] + 1 + draw(st.integers(0, 1))
        return slots

    trunks: list[list[int]] = [[]]
    for _ in range(draw(st.integers(0, 3))):
        base = draw(st.sampled_from(trunks))
        trunks.append(
            [*base, *fresh(draw(st.sampled_from([1, 3, 40, 270, 600, 1600])), draw(st.sampled_from([1, 1, 1, 3])))]
        )
    sequences = []
    for _ in range(draw(st.integers(1, 6))):
        new = draw(st.sampled_from([1, 1, 1, 2, 17]))
        sequences.append(Sequence([*draw(st.sampled_from(trunks)), *fresh(new)], new))
    return sequences


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=40)
@given(sequences=steps(), cascade=st.booleans())
def test_random_trees_agree_with_dense_attention(make: Maker, sequences: list[Sequence], cascade: bool) -> None:
    check_step(sequences, make, cascade=cascade)
