"""Attention over segments of KV slots: one plan for decoding, chunked prefill and shared prefixes."""

from mainstem.attention.kernels import Kernel, Partial, flash_cpu, kernel_for, matmul, merge_state
from mainstem.attention.plan import ChunkPlan, DecodePlan, Segment, StepPlan, Tail, plan_decode, sharing_order
from mainstem.attention.segments import KVPool, StepAttention

__all__ = [
    "ChunkPlan",
    "DecodePlan",
    "KVPool",
    "Kernel",
    "Partial",
    "Segment",
    "StepAttention",
    "StepPlan",
    "Tail",
    "flash_cpu",
    "kernel_for",
    "matmul",
    "merge_state",
    "plan_decode",
    "sharing_order",
]
