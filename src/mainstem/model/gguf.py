"""GGUF files to Hugging Face folders, once: `transformers` takes many seconds to read one, and a moment for the other.

Weights are kept in float32, exactly as the quantised blocks stand for. It knows nothing of caches or downloads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import pre_tokenizers

from mainstem.errors import ModelLoadError, UnsupportedModel
from mainstem.model.progress import Progress
from mainstem.model.support import check_supported
from mainstem.tokens.quiet import quiet_transformers

if TYPE_CHECKING:
    from gguf import GGUFReader

_MAGIC = b"GGUF"
# Vocabularies that were learned with every digit by itself; transformers splits their text as GPT-2's.
_SINGLE_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell"}


def is_gguf(path: Path) -> bool:
    """Whether a file begins as a GGUF file does."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def convert_gguf(path: Path, folder: Path, progress: Progress, *, title: str, pre_tokenizer: str | None = None) -> None:
    """Writes config.json, model.safetensors and the tokenizer of a GGUF file to a folder.

    Args:
        path: the GGUF file.
        folder: an existing folder.
        progress: told each stage.
        title: what to call the model in them.
        pre_tokenizer: how its vocabulary splits text, in llama.cpp's words; None reads it from the file.

    Raises:
        UnsupportedModel: when the model cannot be served.
        ModelLoadError: when the file cannot be read.
    """
    try:
        if pre_tokenizer is None:
            progress(f"reading {title}", 0, None)
            pre_tokenizer = _read_header(path)
        with quiet_transformers(), _no_bars():
            progress(f"converting the tokenizer of {title}", 0, None)
            _convert_tokenizer(path, folder, pre_tokenizer)
            progress(f"converting the weights of {title}", 0, None)
            _convert_weights(path, folder)
    except ModelLoadError:
        raise
    except Exception as error:  # gguf and transformers raise ValueError, KeyError, NotImplementedError, ... as it comes
        if isinstance(error, OSError) and error.errno is not None:  # the disk, not the file
            raise
        raise ModelLoadError(f"The GGUF file {path} cannot be converted: {error}") from error


@contextmanager
def _no_bars() -> Iterator[None]:
    """Hides the bar that transformers draws, whatever its settings, while it reads tensors."""
    bar: Any = import_module("tqdm.std").tqdm
    drawn = bar.__init__
    bar.__init__ = partialmethod(drawn, disable=True)
    try:
        yield
    finally:
        bar.__init__ = drawn


def _read_header(path: Path) -> str:
    """The name of the pre-tokenizer; refuses what transformers would read wrongly without a word."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    architecture = _text_field(reader, "general.architecture")
    scaling = _text_field(reader, f"{architecture}.rope.scaling.type")
    if scaling not in ("", "none") or any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors):
        raise UnsupportedModel(
            f"{path.name} scales its rotary positions, which is lost when transformers reads a GGUF file. "
            "Serve the same model from its Hugging Face folder (safetensors) instead."
        )
    return _text_field(reader, "tokenizer.ggml.pre")


def _text_field(reader: GGUFReader, name: str) -> str:
    field = reader.get_field(name)
    return "" if field is None else str(field.contents())


def _convert_tokenizer(path: Path, folder: Path, pre_tokenizer: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    if pre_tokenizer in _SINGLE_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.save_pretrained(folder)


def _convert_weights(path: Path, folder: Path) -> None:
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    source: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(path.parent, **source)
    check_supported(config)
    if hasattr(transformers, "GgufConfig"):  # newer versions would keep the weights packed where they have kernels
        source["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, config=config, dtype=torch.float32, attn_implementation="sdpa", **source
    )
    # The weights are plain numbers now; transformers refuses to save them as long as they count as quantised.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
