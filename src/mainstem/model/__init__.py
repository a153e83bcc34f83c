"""Weights and sampling: where a model comes from, one step of it, and the choice of the next token.

This layer knows the `transformers` model zoo. It knows nothing of requests or caching policy. Its names are imported on
first use, because torch takes seconds to import and the command line needs some of this layer without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainstem.model.loading import LoadedModel, load_model
    from mainstem.model.logprobs import PositionLogprobs, TokenLogprob
    from mainstem.model.progress import Progress, no_progress
    from mainstem.model.resolve import ModelFiles, resolve_model
    from mainstem.model.runner import ModelRunner, StepBatch
    from mainstem.model.sampling import NOT_FINITE, Sampled, SampleRow, sample, token_logprobs
    from mainstem.model.shape import ModelShape
    from mainstem.model.support import check_supported

_HOME = {
    "NOT_FINITE": "sampling",
    "LoadedModel": "loading",
    "ModelFiles": "resolve",
    "ModelRunner": "runner",
    "ModelShape": "shape",
    "PositionLogprobs": "logprobs",
    "Progress": "progress",
    "SampleRow": "sampling",
    "Sampled": "sampling",
    "StepBatch": "runner",
    "TokenLogprob": "logprobs",
    "check_supported": "support",
    "load_model": "loading",
    "no_progress": "progress",
    "resolve_model": "resolve",
    "sample": "sampling",
    "token_logprobs": "sampling",
}

__all__ = [
    "NOT_FINITE",
    "LoadedModel",
    "ModelFiles",
    "ModelRunner",
    "ModelShape",
    "PositionLogprobs",
    "Progress",
    "SampleRow",
    "Sampled",
    "StepBatch",
    "TokenLogprob",
    "check_supported",
    "load_model",
    "no_progress",
    "resolve_model",
    "sample",
    "token_logprobs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
