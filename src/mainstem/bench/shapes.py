"""Shapes of models whose weights are not needed to say what a step of them costs. It knows sizes, and no hardware."""

from __future__ import annotations

from dataclasses import dataclass

from mainstem.bench.limits import ModelCost
from mainstem.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """A dense decoder with gated feed-forward blocks, as its published configuration has it.

    Attributes:
        name: as on the command line.
        layers: how many.
        hidden: width of the residual stream.
        intermediate: width inside the feed-forward blocks.
        heads: query heads of a layer.
        kv_heads: key and value heads of a layer.
        head_dim: width of a head.
        vocab_size: logits per position.
        tied: whether the output layer is the embedding.
        qkv_bias: whether queries, keys and values have biases.
        head_norms: whether queries and keys are normalised by head.
        bytes_per_weight: in the mean.
        bytes_per_number: of KV, and of what devices send one another.
        max_position: longest context, in tokens.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    bytes_per_weight: float = 2.0
    bytes_per_number: int = 2
    max_position: int = 131072

    @property
    def num_active_parameters(self) -> int:
        """Parameters that every token goes through; embeddings and the output layer left out."""
        query, key_value = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        attention = self.hidden * (2 * query + key_value)
        norms = 2 * self.hidden + (2 * self.head_dim if self.head_norms else 0)
        biases = query + key_value if self.qkv_bias else 0
        return self.layers * (attention + 3 * self.hidden * self.intermediate + norms + biases) + self.hidden

    @property
    def num_parameters(self) -> int:
        """All parameters, tied ones counted once."""
        return self.num_active_parameters + self.vocab_size * self.hidden * (1 if self.tied else 2)

    @property
    def cost(self) -> ModelCost:
        """What it costs to run. A step reads all weights but the embeddings, of which it looks up few rows."""
        read = self.num_active_parameters + self.vocab_size * self.hidden
        return ModelCost(
            num_active=self.num_active_parameters,
            num_layers=self.layers,
            query_width=self.heads * self.head_dim,
            weight_bytes=round(read * self.bytes_per_weight),
            kv_bytes_per_token=2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_number,
        )


_SIZES = {
    sizes.name: sizes
    for sizes in (
        ModelSizes(
            name="llama-3.1-8b",
            layers=32,
            hidden=4096,
            intermediate=14336,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocab_size=128256,
        ),
        ModelSizes(
            name="llama-3.1-70b",
            layers=80,
            hidden=8192,
            intermediate=28672,
            heads=64,
            kv_heads=8,
            head_dim=128,
            vocab_size=128256,
        ),
        ModelSizes(
            name="qwen2.5-7b",
            layers=28,
            hidden=3584,
            intermediate=18944,
            heads=28,
            kv_heads=4,
            head_dim=128,
            vocab_size=152064,
            qkv_bias=True,
        ),
        ModelSizes(
            name="qwen3-8b",
            layers=36,
            hidden=4096,
            intermediate=12288,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocab_size=151936,
            head_norms=True,
            max_position=40960,
        ),
        ModelSizes(
            name="smollm2",
            layers=30,
            hidden=576,
            intermediate=1536,
            heads=9,
            kv_heads=3,
            head_dim=64,
            vocab_size=49152,
            tied=True,
            bytes_per_weight=0.72,  # blocks of 4 bits, and of 8 for the embedding
            max_position=8192,
        ),
    )
}


def known_models() -> tuple[str, ...]:
    """The names that `model_sizes` knows."""
    return tuple(sorted(_SIZES))


def model_sizes(name: str) -> ModelSizes:
    """The sizes of a model by its name.

    Raises:
        ConfigError: when they are not known.
    """
    try:
        return _SIZES[name.lower()]
    except KeyError:
        raise ConfigError(f"the sizes of '{name}' are not known; known are {', '.join(known_models())}") from None
