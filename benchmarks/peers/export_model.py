"""Writes the embedded model as a plain Hugging Face folder in float32, for other engines to load.

    python -m benchmarks.peers.export_model DIR

The weights are those that mainstem serves. The configuration is written twice over where older releases of
transformers, which some engines still use, have other names for a setting: read without them, they would fall back to
another rotary base and say something else.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from mainstem.model import load_model, no_progress
from mainstem.model.embedded import fetch_embedded

FILES = ("generation_config.json", "tokenizer.json", "chat_template.jinja")


def export(folder: Path) -> None:
    """Fill `folder`, making it if need be."""
    source = fetch_embedded(no_progress)
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(source / name, folder / name)
    module = load_model(source, dtype=torch.float32, device=torch.device("cpu")).module
    weights = {name: parameter.detach() for name, parameter in module.named_parameters()}  # tied ones once
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    config["torch_dtype"] = config["dtype"]
    _write(folder / "config.json", config)
    tokenizer = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    _write(folder / "tokenizer_config.json", tokenizer)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Export, and say where to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path)
    folder = parser.parse_args().folder
    export(folder)
    print(folder)


if __name__ == "__main__":
    main()
