"""Tests of the numbers that keys and values are kept in: rounded as PyTorch rounds them, by each instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mainstem.native import DTYPES, RotateWork, native_library

LIBRARY = native_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the native extension was not built: no C compiler")
DIM = 16


def hard_numbers() -> Tensor:
    """Ordinary ones, ties, subnormal ones and those about to become so, the largest, endless ones and NaN."""
    generator = np.random.default_rng(0)
    bits = torch.from_numpy(generator.integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32))
    halves = torch.arange(0, 2**15, 17, dtype=torch.int16).view(torch.float16).float()
    halves = halves[halves.isfinite()]
    edges = torch.tensor([65504, 65519.996, 65520, 65536, 6.1e-5, 5.96e-8, 2.98e-8, 2.9e-8, 0, torch.inf, torch.nan])
    found = torch.cat([bits, halves, (halves[:-1] + halves[1:]) / 2, edges])
    found = torch.cat([found, -found])
    return found[: len(found) // DIM * DIM].view(-1, DIM)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("index", range(len(LIBRARY.instruction_sets) if LIBRARY else 0))
def test_values_are_rounded_as_pytorch_rounds_them(dtype: torch.dtype, index: int) -> None:
    assert LIBRARY is not None
    numbers = hard_numbers()
    rows = len(numbers)
    qkv = torch.cat([torch.zeros(rows, 2 * DIM), numbers], dim=1)  # one head of queries, of keys, of values
    q, keys, values = torch.empty(rows, DIM), torch.empty(rows, DIM, dtype=dtype), torch.empty(rows, DIM, dtype=dtype)
    angles, slots = torch.ones(rows, DIM), torch.arange(rows).flip(0)
    work = RotateWork(
        rows=rows,
        threads=1,
        instruction_set=index,
        qkv=qkv.data_ptr(),
        cos=angles.data_ptr(),
        sin=angles.data_ptr(),
        slots=slots.data_ptr(),
        q=q.data_ptr(),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        kv_head_stride=rows * DIM,
        heads=1,
        kv_heads=1,
        head_dim=DIM,
        dtype=DTYPES[dtype],
    )
    LIBRARY.rotate(work)
    torch.testing.assert_close(values[slots], numbers.to(dtype), rtol=0, atol=0, equal_nan=True)
