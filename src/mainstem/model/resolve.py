"""Where a model lies on this machine: the embedded one, a Hugging Face folder, a GGUF file, or a shape to fill.

It knows names, paths and the user's cache folder; it loads no weights to run them.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import NamedTuple

from mainstem.errors import NoSuchModel
from mainstem.model import embedded
from mainstem.model.cache import cache_folder, make_once
from mainstem.model.progress import Progress, no_progress

# Goes up when what is kept of a GGUF file changes.
_FORMAT = 2
RANDOM_PREFIX = "random:"


class ModelFiles(NamedTuple):
    """A Hugging Face folder with config.json, safetensors and a tokenizer, and what to call the model.

    Attributes:
        random_weights: the folder has no safetensors: the weights are to be drawn.
    """

    folder: Path
    name: str
    random_weights: bool = False


def resolve_model(name_or_path: str, progress: Progress | None = None) -> ModelFiles:
    """Finds a model's files; fetches the embedded model, or converts a GGUF file, the first time it is used.

    Args:
        name_or_path: `smollm2`, a path (`~` is the home folder), or a shape to fill with random weights.
        progress: told how far a download or conversion is.

    Raises:
        DownloadError: when the embedded model cannot be fetched.
        NoSuchModel: when there is no model at the path.
        ModelLoadError: when it cannot be read.
    """
    tell = progress or no_progress
    if name_or_path.startswith(RANDOM_PREFIX):
        return ModelFiles(_shaped(name_or_path, tell), name_or_path, random_weights=True)
    path = Path(name_or_path).expanduser()
    if name_or_path == embedded.NAME:
        return ModelFiles(embedded.fetch_embedded(tell), embedded.NAME)
    if path.is_dir():
        _check_folder(path)
        return ModelFiles(path, path.resolve().name)
    if path.is_file():
        return ModelFiles(_converted(path, tell), path.stem)
    raise NoSuchModel(
        f"There is no model '{name_or_path}': it is neither '{embedded.NAME}' nor a folder or file on this machine. "
        "Models are not fetched from a hub; give the path of a Hugging Face folder or of a GGUF file."
    )


def _shaped(name: str, progress: Progress) -> Path:
    from mainstem.model.random_weights import parse_shape, write_folder

    key = hashlib.sha256(json.dumps(parse_shape(name), sort_keys=True).encode()).hexdigest()[:12]
    folder = cache_folder() / "models" / f"random-{key}-{_FORMAT}"
    return make_once(folder, lambda draft: write_folder(name, draft), progress)


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        hint = f" To serve a GGUF file, give its own path: {ggufs[0]}." if ggufs else ""
        raise NoSuchModel(f"{folder} is not a Hugging Face model folder: it has no config.json.{hint}")
    if not any(folder.glob("*.safetensors")):
        raise NoSuchModel(f"{folder} has no weights in the safetensors format (*.safetensors), which mainstem reads.")


def _converted(path: Path, progress: Progress) -> Path:
    from mainstem.model.gguf import convert_gguf, is_gguf

    if not is_gguf(path):
        raise NoSuchModel(f"{path} is not a GGUF file. Give the folder that a model's files lie in, or a GGUF file.")
    path, stat = path.resolve(), path.stat()
    key = hashlib.sha256(f"{path}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()[:12]
    name = re.sub(r"[^\w.-]", "_", path.stem)
    folder = cache_folder() / "models" / f"{name}-{key}-{_FORMAT}"
    return make_once(folder, lambda draft: convert_gguf(path, draft, progress, title=path.name), progress)
