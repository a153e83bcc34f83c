"""Which models can be served: those whose attention is the standard causal one.

The engine computes attention itself, so a model that needs another kind must be refused before it gives wrong text.
An architecture is served once a test has shown that a plain causal attention function gives the same logits as its own.
It knows configurations only, no weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from mainstem.errors import UnsupportedModel

Config: TypeAlias = Any
"""A `transformers.PretrainedConfig`; its fields differ from model to model, so they are asked for one by one."""

SERVED_ARCHITECTURES = frozenset(
    {
        "apertus",
        "arcee",
        "cohere",
        "ernie4_5",
        "gemma",
        "glm",
        "glm4",
        "gpt2",
        "gpt_neox",
        "granite",
        "granitemoe",
        "helium",
        "hunyuan_v1_dense",
        "llama",
        "mistral",
        "mixtral",
        "nemotron",
        "olmo",
        "olmo2",
        "olmoe",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "starcoder2",
    }
)
"""`transformers` model types."""

_SEES_OR_HEARS = ("vision_config", "audio_config", "vision_tower", "image_token_id", "audio_token_id")
_STATE_SPACE = ("state_size", "ssm_cfg", "mamba_d_state", "mamba_config", "linear_num_key_heads", "attn_layer_indices")


def check_supported(config: Config) -> None:
    """Returns if the model can be served.

    Args:
        config: a `transformers` configuration.

    Raises:
        UnsupportedModel: saying why not.
    """
    for check in _CHECKS:
        reason = check(config)
        if reason is not None:
            raise UnsupportedModel(f"This model ({config.model_type}) cannot be served: {reason}.")


def _encoder_decoder(config: Config) -> str | None:
    return "it is an encoder-decoder model, and only decoders are served" if config.is_encoder_decoder else None


def _other_than_text(config: Config) -> str | None:
    found = _first_set(config, _SEES_OR_HEARS)
    return "it reads more than text, and only text models are served" if found else None


def _two_ways(config: Config) -> str | None:
    one_way = getattr(config, "is_causal", True) and not getattr(config, "use_bidirectional_attention", False)
    return None if one_way else "its tokens also attend to later ones, so that what is computed cannot be kept"


def _latent_attention(config: Config) -> str | None:
    if not _first_set(config, ("kv_lora_rank",)):
        return None
    return "it uses multi-head latent attention (MLA), which keeps another kind of KV"


def _soft_capping(config: Config) -> str | None:
    if not _first_set(config, ("attn_logit_softcapping",)):
        return None
    return "its attention caps its scores (soft-capping), which is not computed here"


def _sinks(config: Config) -> str | None:
    return "it uses attention sinks, which are not computed here" if config.model_type == "gpt_oss" else None


def _alibi(config: Config) -> str | None:
    if config.model_type not in ("bloom", "mpt") and not getattr(config, "alibi", False):
        return None
    return "it tells positions by biases on the attention scores (ALiBi), which are not computed here"


def _recurrent(config: Config) -> str | None:
    found = _first_set(config, _STATE_SPACE)
    return "it has state-space or linear-attention layers, whose state is not KV of single tokens" if found else None


def _layer_kinds(config: Config) -> str | None:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    return (
        f"it has layers of the kind {', '.join(sorted(kinds))}; only full attention is computed here" if kinds else None
    )


def _sliding_window(config: Config) -> str | None:
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    used = "sliding_attention" in layer_types if layer_types else getattr(config, "use_sliding_window", True)
    if window is None or not used or window >= config.max_position_embeddings:
        return None
    return (
        f"its attention uses a sliding window of {window} tokens within a context of {config.max_position_embeddings}, "
        "and only full attention is computed here"
    )


def _long_rope(config: Config) -> str | None:
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {rope.get("rope_type")} | {part.get("rope_type") for part in rope.values() if isinstance(part, dict)}
    if "longrope" not in kinds:
        return None
    return (
        "its rotary frequencies depend on the longest position in a step (longrope), so that what is computed for a "
        "token would depend on who shares its step"
    )


def _quantized(config: Config) -> str | None:
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        return None
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
    return (
        None if method == "gguf" else f"its weights are quantised ({method}); use the unquantised ones, or a GGUF file"
    )


def _unknown(config: Config) -> str | None:
    if config.model_type in SERVED_ARCHITECTURES:
        return None
    return f"its attention has not been checked. Served are {', '.join(sorted(SERVED_ARCHITECTURES))}"


# From the particular to the general, so that the first reason found is the most telling.
_CHECKS: tuple[Callable[[Config], str | None], ...] = (
    _encoder_decoder,
    _two_ways,
    _latent_attention,
    _soft_capping,
    _sinks,
    _alibi,
    _recurrent,
    _other_than_text,
    _layer_kinds,
    _sliding_window,
    _long_rope,
    _quantized,
    _unknown,
)


def _first_set(config: Config, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if getattr(config, name, None) is not None), None)
