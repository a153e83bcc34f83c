"""The sizes of a model that memory planning and the attention need. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a decoder looks like from outside.

    Attributes:
        architecture: the `transformers` model type, such as `llama`.
        num_layers: attention layers, each with a KV pool of its own.
        num_heads: query heads of a layer.
        num_kv_heads: key and value heads of a layer.
        head_dim: width of one head.
        hidden_size: width of the residual stream.
        intermediate_size: width inside the feed-forward blocks.
        vocab_size: logits per position.
        max_position: longest context, in tokens.
        num_parameters: weights, tied ones counted once.
        num_active_parameters: of these, the ones that every token goes through: embeddings and the output layer left
            out, and of experts only the share that a token is sent to.
        weight_bytes: memory the weights take.
        dtype: number type that is computed with.
        kv_dtype: number type of the KV pool.
    """

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    num_parameters: int
    num_active_parameters: int
    weight_bytes: int
    dtype: torch.dtype
    kv_dtype: torch.dtype

    @property
    def query_width(self) -> int:
        """Width of a token's queries in one layer, all heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that the keys and values of one token take in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.kv_dtype.itemsize


def shape_of(module: nn.Module, config: PretrainedConfig) -> ModelShape:
    """Reads the sizes of a loaded model."""
    parameters = list(module.parameters())  # names tied weights once
    num_heads: int = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    return ModelShape(
        architecture=config.model_type,
        num_layers=config.num_hidden_layers,
        num_heads=num_heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=head_dim,
        hidden_size=config.hidden_size,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocab_size=config.vocab_size,
        max_position=config.max_position_embeddings,
        num_parameters=sum(p.numel() for p in parameters),
        num_active_parameters=_num_active(module, config),
        weight_bytes=sum(p.numel() * p.element_size() for p in parameters),
        dtype=parameters[0].dtype,
        kv_dtype=parameters[0].dtype,
    )


def _num_active(module: nn.Module, config: PretrainedConfig) -> int:
    """Parameters that a token is multiplied with on its way through the layers."""
    outside = {
        id(parameter)
        for part in (module.get_input_embeddings(), module.get_output_embeddings())  # type: ignore[operator]
        if part is not None
        for parameter in part.parameters()
    }
    num_experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    share = config.num_experts_per_tok / num_experts if num_experts else 1.0
    return round(
        sum(
            parameter.numel() * (share if ".experts." in name else 1.0)
            for name, parameter in module.named_parameters()
            if id(parameter) not in outside
        )
    )
