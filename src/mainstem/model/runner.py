"""Runs one packed step of a model from the `transformers` zoo over the KV pool.

The model keeps its own layers; only its attention function is ours. It knows nothing of requests or prefix caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from mainstem.attention import KVPool, StepAttention, StepPlan, backend_for
from mainstem.attention.native_attention import NativeStepAttention
from mainstem.model.llama import LlamaForward, is_llama
from mainstem.model.loading import LoadedModel
from mainstem.model.precision import number_name
from mainstem.native import native_library

ATTENTION_NAME = "mainstem"


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The packed tokens of one step: single-token rows first, then the chunks of prefill.

    Attributes:
        token_ids: int64[tokens].
        positions: int64[tokens], each token's place in its own sequence.
        slot_mapping: int64[tokens], where each token's key and value go.
        logit_rows: int64[n], the rows whose logits are wanted.
        plan: what each row attends to.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    logit_rows: Tensor
    plan: StepPlan


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - part of the interface; the plan says who sees what
    *,
    scaling: float | None = None,
    step_attention: StepAttention,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function that `transformers` calls in every layer."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]
    return step_attention(layer, query, key, value, scale), None


AttentionInterface.register(ATTENTION_NAME, _attend)


class ModelRunner:
    """A loaded model and its KV pool.

    Args:
        loaded: the model, on its device, in its dtype, its linear layers packed (`pack`) or not.
        num_slots: size of the pool in tokens.
        device: where the model is.
        kernels: what computes attention and linear layers: "native", "torch", or "auto" for the best that can run.

    Raises:
        ConfigError: when these kernels cannot run here.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        num_slots: int,
        device: torch.device,
        *,
        kernels: str = "auto",
    ) -> None:
        self.shape = loaded.shape
        self.device = device
        self._weights = loaded.weights
        self._module = loaded.module
        self._module.set_attn_implementation(ATTENTION_NAME)  # type: ignore[operator]
        self.pool = KVPool(
            num_layers=loaded.shape.num_layers,
            num_slots=num_slots,
            num_kv_heads=loaded.shape.num_kv_heads,
            head_dim=loaded.shape.head_dim,
            dtype=loaded.shape.kv_dtype,
            device=device,
        )
        self.attention = backend_for(self.pool, kernels)
        self._forward: LlamaForward | None = None
        library = native_library()
        if self.attention.name == "native" and library is not None and is_llama(self._module, self.pool):
            self._forward = LlamaForward(self._module, self.pool, library)

    @property
    def deterministic(self) -> bool:
        """Whether a token's numbers are the same bits however it is run: cached or not, alone or not, in any chunks."""
        return self._forward is not None

    @property
    def compute(self) -> str:
        """What computes the steps, fit to show."""
        threads = f"{torch.get_num_threads()} threads" if self.device.type == "cpu" else str(self.device)
        library = native_library()
        if self.attention.name == "native" and library is not None:
            exact = "equals a miss bit for bit" if self.deterministic else "may differ from a miss in its last bits"
            chosen = library.instruction_sets[library.fastest]
            kept = f"weights in {self._weights}, KV in {number_name(self.shape.kv_dtype)}"
            return f"native extension ({chosen}), {kept}, {threads}, a hit {exact}"
        if self.device.type == "cpu" and library is None:
            return (
                f"PyTorch's operators, {threads}; the faster native extension was not built: "
                "get a C compiler, then run python -m mainstem.native"
            )
        return f"PyTorch's operators, {threads}"

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> Tensor:
        """Compute the batch, writing its keys and values into the pool.

        Returns logits, float32 (len(logit_rows), vocab).
        """
        device = self.device
        slots, logit_rows = batch.slot_mapping.to(device), batch.logit_rows.to(device)
        token_ids, positions = batch.token_ids.to(device), batch.positions.to(device)
        step = self.attention.start(batch.plan, slots)
        if self._forward is not None and isinstance(step, NativeStepAttention):
            return self._forward(token_ids, positions, slots, logit_rows, step)
        output = self._module(
            input_ids=token_ids[None],
            position_ids=positions[None],
            logits_to_keep=logit_rows,
            use_cache=False,
            step_attention=step,
        )
        logits: Tensor = output.logits[0]
        return logits.float()
