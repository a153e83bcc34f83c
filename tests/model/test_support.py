"""What is served computes standard causal attention; what does not is refused with a reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM

from mainstem.errors import UnsupportedModel
from mainstem.model import check_supported
from mainstem.model.support import SERVED_ARCHITECTURES

TINY: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "sliding_window": None,
    "layer_types": None,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# Arguments of the attention function that tell about the run, not about the kind of attention.
HARMLESS = {
    "position_ids",
    "use_cache",
    "cache_position",
    "position_embeddings",
    "output_router_logits",
    "output_attentions",
    "output_hidden_states",
    "dropout",
}


def plain_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """All that the engine computes: causal attention with grouped heads and a scale."""
    asked = {name for name, argument in others.items() if argument is not None} - HARMLESS
    assert mask is None
    assert not asked
    assert isinstance(module.layer_idx, int)
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register("plain_for_tests", plain_attention)
AttentionMaskInterface.register("plain_for_tests", lambda *_, **__: None)


@pytest.mark.parametrize("architecture", sorted(SERVED_ARCHITECTURES))
def test_plain_causal_attention_gives_the_logits_of_a_served_architecture(architecture: str) -> None:
    config = AutoConfig.for_model(architecture, **TINY)
    check_supported(config)
    auto_model: Any = AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = auto_model.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.arange(2, 82)[None]
    run = {"input_ids": ids, "position_ids": torch.arange(80)[None], "use_cache": False}
    with torch.no_grad():
        expected = model(**run).logits[:, [3, 79]]
        model.set_attn_implementation("plain_for_tests")
        logits = model(**run, logits_to_keep=torch.tensor([3, 79])).logits
    assert (logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("architecture", "settings", "reason"),
    [
        ("mistral", {"sliding_window": 128}, "sliding window of 128 tokens"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, "sliding window of 64"),
        ("phi3", {"sliding_window": 100}, "sliding window"),
        ("gemma2", {}, "soft-capping"),
        ("gemma3_text", {}, "sliding window"),
        ("deepseek_v3", {}, "MLA"),
        ("gpt_oss", {}, "sinks"),
        ("bloom", {}, "ALiBi"),
        ("falcon", {"alibi": True}, "ALiBi"),
        ("t5", {}, "encoder-decoder"),
        ("mamba", {}, "state-space"),
        ("jamba", {}, "state-space"),
        ("qwen3_next", {}, "linear-attention"),
        ("llava", {}, "only text models"),
        ("llama", {"is_causal": False}, "attend to later ones"),
        ("bert", {}, "has not been checked"),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "factor": 4.0,
                    "short_factor": [1.0] * 64,
                    "long_factor": [2.0] * 64,
                    "original_max_position_embeddings": 256,
                }
            },
            "longrope",
        ),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
    ],
)
def test_other_attention_is_refused_with_the_reason(architecture: str, settings: dict[str, Any], reason: str) -> None:
    config = AutoConfig.for_model(architecture, **settings)
    with pytest.raises(UnsupportedModel, match=reason) as refused:
        check_supported(config)
    assert architecture in str(refused.value)


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("mistral", {"sliding_window": 4096, "max_position_embeddings": 4096}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 64}),
        ("smollm3", {"sliding_window": 64, "use_sliding_window": False}),
    ],
)
def test_a_sliding_window_that_never_slides_is_no_obstacle(architecture: str, settings: dict[str, Any]) -> None:
    check_supported(AutoConfig.for_model(architecture, **settings))


def test_an_unheard_of_kind_of_layer_is_refused_by_its_name() -> None:
    config = AutoConfig.for_model("llama")
    config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(UnsupportedModel, match="chunked_attention"):
        check_supported(config)


def test_a_refusal_of_an_unknown_architecture_names_what_is_served() -> None:
    config = SimpleNamespace(model_type="new", is_encoder_decoder=False, max_position_embeddings=10)
    with pytest.raises(UnsupportedModel, match=r"Served are apertus, .*, starcoder2"):
        check_supported(config)
