"""Writes a tiny Llama as a GGUF file, the way llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file

_LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OTHER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_tiny_gguf(
    folder: Path, path: Path, *, kinds: Mapping[str, str] = MappingProxyType({}), rope_scaling: str | None = None
) -> Path:
    """Writes the tiny Llama in `folder` to `path` and returns `path`.

    Args:
        folder: of the model.
        path: to write to.
        kinds: what matrices are written as, by the last part of their names in the file or for "" all; Q8_0 otherwise.
        rope_scaling: kind of scaling that the header names.
    """
    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if rope_scaling is not None:
        writer.add_string("llama.rope.scaling.type", rope_scaling)
    _add_tokenizer(writer, folder)
    for name, weight in load_file(folder / "model.safetensors").items():
        _add_tensor(writer, config, name, weight, kinds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def _add_tensor(
    writer: GGUFWriter, config: dict[str, Any], name: str, weight: NDArray[np.float32], kinds: Mapping[str, str]
) -> None:
    stem = name.removesuffix(".weight")
    if stem in _OTHER_NAMES:
        stem = _OTHER_NAMES[stem]
    else:
        _, _, layer, inner = stem.split(".", 3)
        stem = f"blk.{layer}.{_LAYER_NAMES[inner]}"
    if stem.endswith("attn_q"):
        weight = _interleave_halves(weight, config["num_attention_heads"])
    if stem.endswith("attn_k"):
        weight = _interleave_halves(weight, config["num_key_value_heads"])
    if weight.ndim == 1:
        writer.add_tensor(f"{stem}.weight", weight)
    else:
        kind = GGMLQuantizationType[kinds.get(stem.split(".")[-1], kinds.get("", "Q8_0"))]
        writer.add_tensor(f"{stem}.weight", quantize(weight, kind), raw_dtype=kind)


def _interleave_halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp rotates neighbouring pairs where transformers rotates the two halves of a head."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
