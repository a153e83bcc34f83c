"""Models with random weights of a stated shape, named `random:llama,layers=4,context=32768`: to measure, not to talk.

What is not stated is as in SmolLM2-135M, but for a context of 32,768. The tokenizer knows single bytes only; any other
id says nothing. It writes the files that a model's folder has, without its weights; these are drawn when it is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mainstem.errors import NoSuchModel
from mainstem.model.resolve import RANDOM_PREFIX

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
_FIELDS = {
    "layers": ("num_hidden_layers", 30),
    "hidden": ("hidden_size", 576),
    "intermediate": ("intermediate_size", 1536),
    "heads": ("num_attention_heads", 9),
    "kv_heads": ("num_key_value_heads", 3),
    "vocab": ("vocab_size", 49_152),
    "context": ("max_position_embeddings", 32_768),
}
_FORM = f"write for example {RANDOM_PREFIX}llama or {RANDOM_PREFIX}llama,layers=4,hidden=256,heads=4,kv_heads=2"
_BYTES = 256


def parse_shape(name: str) -> dict[str, Any]:
    """The fields of a `transformers` configuration that a name asks for.

    Raises:
        NoSuchModel: when it names no shape that can be made.
    """
    architecture, *parts = name.removeprefix(RANDOM_PREFIX).split(",")
    if architecture not in ARCHITECTURES:
        raise NoSuchModel(
            f"'{name}': '{architecture}' is not one of {', '.join(ARCHITECTURES)}; {_FORM}. "
            f"Sizes are {', '.join(_FIELDS)}."
        )
    config: dict[str, Any] = {"model_type": architecture, **dict(_FIELDS.values())}
    for part in parts:
        key, _, text = part.partition("=")
        if key not in _FIELDS or not text.isascii() or not text.isdigit() or int(text) < 1:
            raise NoSuchModel(f"'{name}': '{part}' is not a size; {_FORM}. Sizes are {', '.join(_FIELDS)}.")
        config[_FIELDS[key][0]] = int(text)
    _check(name, config)
    heads = config["num_attention_heads"]
    return config | {"head_dim": config["hidden_size"] // heads, "tie_word_embeddings": False, "sliding_window": None}


def _check(name: str, config: dict[str, Any]) -> None:
    hidden, heads, kv_heads = (config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    if hidden % (2 * heads):
        raise NoSuchModel(f"'{name}': hidden={hidden} is no even multiple of heads={heads}")
    if heads % kv_heads:
        raise NoSuchModel(f"'{name}': heads={heads} is no multiple of kv_heads={kv_heads}")
    if config["vocab_size"] <= _BYTES:
        raise NoSuchModel(f"'{name}': vocab must be above {_BYTES}")


def write_folder(name: str, folder: Path) -> None:
    """Write the configuration and the tokenizer of such a model.

    Raises:
        NoSuchModel: as `parse_shape`.
    """
    config = parse_shape(name)
    end = {"bos_token_id": _BYTES, "eos_token_id": _BYTES, "pad_token_id": _BYTES}
    (folder / "config.json").write_text(json.dumps(config | end, indent=1), encoding="utf-8")
    _byte_tokenizer().save_pretrained(folder)


def _byte_tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    fast_tokenizer: Any = PreTrainedTokenizerFast
    return fast_tokenizer(tokenizer_object=tokenizer, eos_token="<|end|>")


def draw_weights(config: Any, dtype: torch.dtype | None) -> nn.Module:
    """A model of this configuration; the same weights every time."""
    from transformers import AutoModelForCausalLM

    # Wide enough that attention matters and the most likely token changes from place to place.
    config.initializer_range = 0.8 / config.hidden_size**0.5
    auto_model: Any = AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module: nn.Module = auto_model.from_config(config, dtype=dtype or torch.float32, attn_implementation="sdpa")
    return module
