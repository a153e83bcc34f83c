"""Tiny, randomly initialised models in Hugging Face folders, with a small but real tokenizer.

They have two layers and a vocabulary of 448, so a forward pass takes a millisecond, yet every part is the real one:
`transformers` makes the weights and writes the folder, `tokenizers` trains the byte-level BPE.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

VOCAB_SIZE = 448
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ARCHITECTURES: dict[str, type[PretrainedConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "smollm3": SmolLM3Config,
    "gemma": GemmaConfig,
}
_PARTICULAR: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "smollm3": {"no_rope_layers": [1, 0]},
}
_SENTENCES = (
    "The river runs to the sea and the sea gives it back as rain.",
    "A tree of tokens: every branch begins where another one ended.",
    "def main(argv: list[str]) -> int:\n    return 0\n",
    "You are a helpful assistant. Answer the question in one sentence.",
    "Naïve café, Straße, 東京, ελληνικά, русский, 🌳🌊",
    "the quick brown fox jumps over the lazy dog, again and again and again",
    "system user assistant tool function 0123456789",
)


def make_tiny_model(folder: Path, architecture: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Writes a tiny model and its tokenizer to `folder` and returns it.

    Args:
        folder: where to write; made if it does not exist.
        architecture: a key of `ARCHITECTURES`.
        seed: of the random weights; the same seed gives the same model.
        overrides: fields of the `transformers` configuration, such as `num_hidden_layers`.
    """
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        # Wide enough that attention matters and the most likely token changes from place to place.
        "initializer_range": 0.1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = ARCHITECTURES[architecture](**(settings | _PARTICULAR.get(architecture, {}) | overrides))
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        auto_model: Any = AutoModelForCausalLM
        model = auto_model.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    save_tiny_tokenizer(folder)
    return folder


def save_tiny_tokenizer(folder: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """Writes only the tokenizer's files to `folder` and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    fast_tokenizer: Any = PreTrainedTokenizerFast
    tokenizer = fast_tokenizer(
        tokenizer_object=Tokenizer.from_str(_trained_tokenizer()),
        bos_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[2],
        pad_token=SPECIAL_TOKENS[0],
        chat_template=chat_template,
    )
    tokenizer.save_pretrained(folder)
    return folder


@cache
def _trained_tokenizer() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    return str(tokenizer.to_str())
