"""Runs a step's attention in the native extension, layer by layer.

It knows plans and pools on a CPU; it does not know requests, models or where a plan came from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mainstem.attention.native_tasks import plan_tasks
from mainstem.attention.plan import StepPlan
from mainstem.attention.pool import KVPool
from mainstem.native import DTYPES, AttentionWork, NativeLibrary

MAX_HEAD_DIM = 256


def runs_natively(pool: KVPool) -> bool:
    """Whether the extension can read a pool: on a CPU, a head size that is a multiple of 8, at most 256."""
    keys = pool.keys[0]
    return keys.device.type == "cpu" and keys.dtype in DTYPES and takes_heads(keys.shape[2])


def takes_heads(head_dim: int) -> bool:
    """Whether the extension can compute with heads of this size."""
    return head_dim % 8 == 0 and head_dim <= MAX_HEAD_DIM


class NativeStepAttention:
    """A `StepAttention` of the native extension. Queries, sums and outputs are float32 whatever the pool's dtype.

    Args:
        plan: what each row attends to; its slots must not change while this is in use.
        slot_mapping: int64[tokens], where each row's own key and value go.
        pool: the KV memory, for which `runs_natively` holds.
        library: the extension.
        instruction_set: which of the library's to use; the fastest if None.
    """

    def __init__(
        self,
        plan: StepPlan,
        slot_mapping: Tensor,
        pool: KVPool,
        library: NativeLibrary,
        *,
        instruction_set: int | None = None,
    ) -> None:
        self._plan = plan
        self._slot_mapping = slot_mapping
        self._pool = pool
        self._library = library
        self._instruction_set = library.fastest if instruction_set is None else instruction_set
        self._work: AttentionWork | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """See `StepAttention`."""
        self._pool.write(layer, self._slot_mapping, k, v)
        queries = q if q.dtype == torch.float32 and q.stride(3) == 1 else q.float().contiguous()
        _, heads, rows, head_dim = q.shape
        out = torch.empty(1, rows, heads, head_dim)
        self.attend(layer, queries[0].transpose(0, 1), out[0], scale)
        return out.to(q.dtype)

    def attend(self, layer: int, q: Tensor, out: Tensor, scale: float) -> None:
        """Attend, the layer's keys and values being in their slots.

        Args:
            layer: which layer's memory to read.
            q: float32 (rows, heads, head_dim), the last dimension contiguous.
            out: float32 (rows, heads, head_dim), contiguous, where the output goes.
            scale: of the scores.
        """
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        if self._work is None:
            self._work = self._prepare(q.shape[1])
        work = self._work
        work.q, work.q_row_stride, work.q_head_stride = q.data_ptr(), q.stride(0), q.stride(1)
        work.keys, work.values, work.kv_head_stride = keys.data_ptr(), values.data_ptr(), keys.stride(0)
        work.out, work.scale = out.data_ptr(), scale
        self._library.attend(work)

    def _prepare(self, heads: int) -> AttentionWork:
        """What is the same in every layer of the step."""
        library = self._library
        kv_heads, _, head_dim = self._pool.keys[0].shape
        group = heads // kv_heads
        threads = torch.get_num_threads()
        tasks = plan_tasks(
            self._plan,
            group=group,
            kv_heads=kv_heads,
            threads=threads,
            block=library.block,
            span=library.span,
            rows=library.rows,
        )
        per_thread = library.workspace_floats(head_dim, group, tasks.max_rows)
        states = torch.empty(tasks.num_states * kv_heads * library.state_floats(head_dim, group))
        workspace = torch.empty(threads * per_thread)
        self._alive = (tasks, states, workspace)
        return AttentionWork(
            pieces=tasks.pieces.ctypes.data,
            tasks=tasks.tasks.ctypes.data,
            limits=tasks.limits.ctypes.data,
            merged_rows=tasks.merged_rows.ctypes.data,
            states_at=tasks.states_at.ctypes.data,
            states=states.data_ptr(),
            workspace=workspace.data_ptr(),
            workspace_stride=per_thread,
            dtype=DTYPES[self._pool.keys[0].dtype],
            kv_heads=kv_heads,
            group=group,
            head_dim=head_dim,
            num_tasks=len(tasks.tasks) - 1,
            num_merged=len(tasks.merged_rows),
            threads=threads,
            instruction_set=self._instruction_set,
        )
