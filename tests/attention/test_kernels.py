"""Tests of the attention kernels and of joining their partial results."""

from __future__ import annotations

import pytest
import torch

from mainstem.attention.kernels import Kernel, flash_cpu, kernel_for, matmul, merge_state

KERNELS = [flash_cpu, matmul]


def random_tensors(heads: int, kv_heads: int, rows: int, keys: int, head_dim: int = 16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 1000 + keys)
    shapes = [(1, heads, rows, head_dim), (1, kv_heads, keys, head_dim), (1, kv_heads, keys, head_dim)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, hidden: torch.Tensor) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    scores = q.double() @ k.double().repeat_interleave(group, 1).transpose(-1, -2) * scale
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v.double().repeat_interleave(group, 1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (9, 3), (4, 1)])
def test_agrees_with_dense_attention(kernel: Kernel, heads: int, kv_heads: int) -> None:
    q, k, v = random_tensors(heads, kv_heads, rows=5, keys=37)
    out, lse = kernel(q, k, v, 0.3, False, None)
    torch.testing.assert_close(
        out.double(), dense(q, k, v, 0.3, torch.zeros(5, 37, dtype=torch.bool)), atol=1e-5, rtol=0
    )
    assert lse.shape == (1, heads, 5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_causal_rows_see_only_keys_up_to_their_own(kernel: Kernel) -> None:
    q, k, v = random_tensors(4, 2, rows=9, keys=9)
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    torch.testing.assert_close(
        kernel(q, k, v, 0.2, True, None).out.double(), dense(q, k, v, 0.2, hidden), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_masked_keys_do_not_count(kernel: Kernel) -> None:
    q, k, v = random_tensors(4, 2, rows=3, keys=12)
    hidden = torch.arange(12) >= 7
    mask = torch.zeros(12).masked_fill(hidden, -torch.inf)[None, None, None]
    masked = kernel(q, k, v, 0.2, False, mask)
    shorter = kernel(q, k[:, :, :7], v[:, :, :7], 0.2, False, None)
    torch.testing.assert_close(masked.out, shorter.out, atol=1e-6, rtol=0)
    torch.testing.assert_close(masked.lse, shorter.lse, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("cut", [1, 13, 29])
def test_merging_two_parts_gives_the_whole(kernel: Kernel, cut: int) -> None:
    q, k, v = random_tensors(9, 3, rows=4, keys=30)
    first = kernel(q, k[:, :, :cut], v[:, :, :cut], 0.5, False, None)
    second = kernel(q, k[:, :, cut:], v[:, :, cut:], 0.5, False, None)
    whole = kernel(q, k, v, 0.5, False, None)
    merged = merge_state(first, second)
    torch.testing.assert_close(merged.out, whole.out, atol=1e-6, rtol=0)
    torch.testing.assert_close(merged.lse, whole.lse, atol=1e-5, rtol=0)


def test_merging_survives_scores_far_apart() -> None:
    q, k, v = random_tensors(2, 2, rows=2, keys=8)
    weak = flash_cpu(q, k[:, :, :4], v[:, :, :4], 1.0, False, None)
    strong = flash_cpu(q * 1000, k[:, :, 4:], v[:, :, 4:], 1.0, False, None)
    merged = merge_state(weak, strong)
    assert torch.isfinite(merged.out).all()
    assert torch.isfinite(merged.lse).all()


def test_other_devices_get_the_portable_kernel() -> None:
    assert kernel_for(torch.device("cpu")) is flash_cpu
    assert kernel_for(torch.device("cuda")) is matmul
