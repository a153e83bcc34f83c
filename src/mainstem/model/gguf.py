"""GGUF files to Hugging Face folders, once: `transformers` takes many seconds to read one, and a moment for the other.

Weights in blocks that are known here stay in these, all others become the float32 numbers that they stand for. It knows
nothing of caches or downloads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partialmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import pre_tokenizers
from torch import Tensor

from mainstem.errors import ModelLoadError, UnsupportedModel
from mainstem.model.block_file import write_blocks
from mainstem.model.blocks import BYTES, Blocks
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
    blocks = find_blocks(path, dict(model.named_parameters()))
    if not blocks:
        model.save_pretrained(folder)
        return
    write_blocks(folder, model, blocks)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


def find_blocks(path: Path, weights: Mapping[str, Tensor]) -> dict[str, Blocks]:
    """The blocks of a GGUF file that stand for a model's weights, number for number.

    transformers gives tensors other names and orders their rows anew, in ways that differ between architectures, so
    rows are recognised by their numbers.

    Args:
        path: the GGUF file.
        weights: float32, by the names that the result has too.
    """
    from gguf import GGUFReader

    tensors = [found for tensor in GGUFReader(path).tensors if (found := _blocks_of_tensor(tensor)) is not None]
    places = [_places(blocks) for blocks in tensors]
    kept: dict[str, Blocks] = {}
    for name, weight in weights.items():
        if weight.ndim != 2:
            continue
        keys = [hash(row.tobytes()) for row in weight.detach().numpy()]
        for blocks, place in zip(tensors, places, strict=True):
            if len(place) and blocks.width == weight.shape[1] and all(key in place for key in keys):
                rows = Blocks(blocks.kind, blocks.data[torch.tensor([place[key] for key in keys])])
                if torch.equal(rows.floats(), weight):
                    kept[name] = rows
                    break
    return kept


def _blocks_of_tensor(tensor: Any) -> Blocks | None:
    kind = tensor.tensor_type.name
    if kind not in (*BYTES, "Q4_0") or len(tensor.shape) != 2:
        return None
    data = torch.from_numpy(np.array(tensor.data))
    return with_minima(data) if kind == "Q4_0" else Blocks(kind, data)


def with_minima(data: Tensor) -> Blocks:
    """Q4_0 blocks, whose half bytes count from -8, as Q4_1: the minimum is eight scales below zero."""
    blocks = data.view(len(data), -1, 18)
    scale = blocks[..., :2]
    minimum = (scale.contiguous().view(torch.float16) * -8).view(torch.uint8)
    return Blocks("Q4_1", torch.cat([scale, minimum, blocks[..., 2:]], dim=-1).flatten(1))


def _places(blocks: Blocks) -> dict[int, int]:
    """Numbers of rows by a hash of what they stand for."""
    return {hash(row.tobytes()): index for index, row in enumerate(blocks.floats().numpy())}
