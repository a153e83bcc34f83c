"""Attention over the slots of KV memory: one plan for decoding, chunked prefill and shared prefixes."""

from mainstem.attention.backends import Backend, StepAttention, backend_for
from mainstem.attention.plan import SequenceRows, SharedRange, StepPlan, plan_step, sharing_order
from mainstem.attention.pool import KVPool

__all__ = [
    "Backend",
    "KVPool",
    "SequenceRows",
    "SharedRange",
    "StepAttention",
    "StepPlan",
    "backend_for",
    "plan_step",
    "sharing_order",
]
