"""How many tokens a text is: by a model's tokenizer alone, or by an estimate where there is none.

It needs no weights, no torch and no chat template; only the `tokenizers` package, for a model's own count.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from mainstem.errors import ModelLoadError, NoSuchModel

Counter: TypeAlias = Callable[[str], int]

BYTES_PER_TOKEN = 4  # of English and of code, in the vocabularies of today's models; docs/lint.md has how far off it is


def estimate(text: str) -> int:
    """A token for every four bytes of UTF-8, or a part of four."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def load_counter(folder: Path) -> Counter:
    """Counts with the tokenizer in a Hugging Face folder.

    Raises:
        NoSuchModel: when the folder has none.
        ModelLoadError: when it cannot be read, or the `tokenizers` package is missing.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise NoSuchModel(f"{folder} has no tokenizer.json, which counting tokens needs")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ModelLoadError("counting a model's tokens needs the package tokenizers: pip install tokenizers") from None
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises bare exceptions
        raise ModelLoadError(f"{path} cannot be read: {error}") from None
    backend.no_truncation()
    backend.no_padding()

    def count(text: str) -> int:
        readable = text.encode("utf-8", "replace").decode()
        return len(backend.encode_batch_fast([readable], add_special_tokens=False)[0].ids)

    return count
