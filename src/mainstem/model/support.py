"""Which models can be served: those whose attention is the standard causal one.

The engine computes attention itself, so a model that needs another kind must be refused before it gives wrong text.
It knows configurations only, no weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.errors import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def check_supported(config: PretrainedConfig) -> None:
    """Returns if the model can be served.

    Raises:
        UnsupportedModel: saying why not.
    """
    reason = _reason_against(config)
    if reason is not None:
        raise UnsupportedModel(f"This model ({config.model_type}) cannot be served: {reason}.")


def _reason_against(config: PretrainedConfig) -> str | None:
    return None
