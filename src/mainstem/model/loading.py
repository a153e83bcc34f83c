"""From a Hugging Face folder to a module that is ready to run.

It knows how `transformers` loads weights; it knows nothing of KV memory or requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from mainstem.errors import ModelLoadError
from mainstem.model.block_file import has_blocks, read_blocks
from mainstem.model.blocks import fill_in
from mainstem.model.precision import number_name
from mainstem.model.random_weights import draw_weights
from mainstem.model.shape import ModelShape, shape_of
from mainstem.model.support import check_supported
from mainstem.tokens.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class LoadedModel(NamedTuple):
    """A causal language model in evaluation mode, where it is, its sizes, and the configuration it was built from.

    Attributes:
        weights: what the weights of linear layers are kept in, fit to show.
    """

    module: nn.Module
    shape: ModelShape
    dtype: torch.dtype
    device: torch.device
    config: PretrainedConfig
    weights: str


def load_model(
    folder: Path,
    *,
    dtype: torch.dtype | None,
    device: torch.device,
    random_weights: bool = False,
    keep_blocks: bool = False,
) -> LoadedModel:
    """Loads a model's weights. Never touches the network.

    Args:
        folder: from `resolve_model`.
        dtype: of the weights; None takes the model's own.
        device: where they go.
        random_weights: draw them, instead of reading files that the folder does not have.
        keep_blocks: leave weights in blocks as they are, if the model is in float32 on a CPU; see `blocks_of`.

    Raises:
        UnsupportedModel: when its attention is not one that is computed here.
        ModelLoadError: when its files cannot be read.
    """
    try:
        with quiet_transformers():
            return _load(folder, dtype, device, random_weights, keep_blocks)
    except ModelLoadError:
        raise
    except (
        Exception
    ) as error:  # transformers, safetensors and torch raise OSError, ValueError, KeyError, ... as it comes
        raise ModelLoadError(f"The model in {folder} cannot be loaded: {error}") from error


def _load(
    folder: Path, dtype: torch.dtype | None, device: torch.device, random_weights: bool, keep_blocks: bool
) -> LoadedModel:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    check_supported(config)
    if random_weights:
        module = draw_weights(config, dtype)
    elif has_blocks(folder):
        module = read_blocks(folder, config)
        if not keep_blocks or dtype not in (None, torch.float32) or device.type != "cpu":
            fill_in(module)
            module.to(dtype)
    else:
        module = _read_weights(folder, config, dtype)
    module = module.eval().requires_grad_(False)
    if device.type != "cpu":
        module = module.to(device)
    shape = shape_of(module, config)
    return LoadedModel(module, shape, shape.dtype, device, config, number_name(shape.dtype))


def _read_weights(folder: Path, config: PretrainedConfig, dtype: torch.dtype | None) -> nn.Module:
    from transformers import AutoModelForCausalLM

    auto_model: Any = AutoModelForCausalLM
    module, info = auto_model.from_pretrained(
        folder,
        config=config,
        dtype=dtype or "auto",
        attn_implementation="sdpa",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would fill them with random numbers
        raise ModelLoadError(f"{folder} lacks {len(missing)} of the model's weights, among them {missing[0]}")
    weights: nn.Module = module
    return weights
