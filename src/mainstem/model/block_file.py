"""Models whose weights are kept in blocks, in one file: written when a GGUF file is converted, read at every start.

Beside blocks the file holds plain tensors, under the names that `transformers` has for them, tied ones once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mainstem.errors import ModelLoadError
from mainstem.model.blocks import BYTES, Blocks, set_blocks

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_NAME = "blocks.safetensors"


def has_blocks(folder: Path) -> bool:
    """Whether a model's folder keeps its weights in such a file."""
    return (folder / _NAME).is_file()


def write_blocks(folder: Path, module: nn.Module, blocks: Mapping[str, Blocks]) -> None:
    """Write a model's weights.

    Args:
        folder: an existing folder.
        module: the model, in float32.
        blocks: what stands for some of its parameters, by their names.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            tensors[name] = blocks[name].data if name in blocks else tensor.detach().contiguous()
        seen.add(id(tensor))
    save_file(tensors, folder / _NAME, metadata={name: found.kind for name, found in blocks.items()})


def read_blocks(folder: Path, config: PretrainedConfig) -> nn.Module:
    """The model of such a folder; weights in blocks are on the meta device, with their blocks beside them.

    Raises:
        ModelLoadError: when the file lacks weights.
    """
    from transformers import AutoModelForCausalLM

    auto_model: Any = AutoModelForCausalLM
    with _parameters_without_memory():
        module: nn.Module = auto_model.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    with safe_open(folder / _NAME, framework="pt") as file:
        kinds = {name: kind for name, kind in (file.metadata() or {}).items() if kind in BYTES}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    plain = {name: tensor for name, tensor in tensors.items() if name not in kinds}
    module.load_state_dict(plain, strict=False, assign=True)
    module.tie_weights()  # type: ignore[operator]
    modules_of: dict[int, list[nn.Module]] = {}
    for part in module.modules():
        modules_of.setdefault(id(part._parameters.get("weight")), []).append(part)
    parameters = dict(module.named_parameters())
    for name, kind in kinds.items():
        found = Blocks(kind, tensors[name])
        for part in modules_of[id(parameters.pop(name))]:
            set_blocks(part, found)
    missing = sorted(name for name, parameter in parameters.items() if parameter.is_meta)
    if missing:
        raise ModelLoadError(f"{folder} lacks {len(missing)} of the model's weights, among them {missing[0]}")
    return module


@contextmanager
def _parameters_without_memory() -> Iterator[None]:
    """New modules have parameters on the meta device; buffers, which no file holds, are real."""
    register: Any = nn.Module.register_parameter

    def register_empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter if parameter is None else nn.Parameter(parameter.to("meta"), False))

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
