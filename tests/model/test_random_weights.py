"""Models of a stated shape with random weights: found by name, loaded, and the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mainstem.errors import ModelLoadError
from mainstem.model import LoadedModel, load_model, resolve_model
from mainstem.tokens import Tokenizer

NAME = "random:llama,layers=2,hidden=64,intermediate=128,heads=4,kv_heads=2,vocab=300,context=20000"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path))


def load(name: str) -> LoadedModel:
    files = resolve_model(name)
    return load_model(
        files.folder, dtype=torch.float32, device=torch.device("cpu"), random_weights=files.random_weights
    )


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_the_shape_is_the_one_that_was_named(architecture: str) -> None:
    shape = load(NAME.replace("llama", architecture)).shape
    assert (shape.architecture, shape.num_layers, shape.hidden_size) == (architecture, 2, 64)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (4, 2, 16)
    assert (shape.intermediate_size, shape.vocab_size, shape.max_position) == (128, 300, 20000)
    # The embedding and the output layer are no part of what a token is multiplied with on its way.
    assert shape.num_active_parameters == shape.num_parameters - 2 * 300 * 64


def test_the_weights_are_the_same_every_time() -> None:
    first, second = (dict(load(NAME).module.named_parameters()) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_its_tokens_are_bytes() -> None:
    tokenizer = Tokenizer.load(resolve_model(NAME).folder)
    ids = tokenizer.encode("née")
    assert len(ids) == 4
    assert tokenizer.decode(ids) == "née"
    assert tokenizer.vocab_size == 300


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("random:mamba", "'mamba' is not one of llama"),
        ("random:llama,depth=3", "'depth=3' is not a size"),
        ("random:llama,layers=0", "'layers=0' is not a size"),
        ("random:llama,layers=many", "'layers=many' is not a size"),
        ("random:llama,hidden=100", "hidden=100 is no even multiple of heads=9"),
        ("random:llama,kv_heads=2", "heads=9 is no multiple of kv_heads=2"),
        ("random:llama,vocab=256", "vocab must be above 256"),
    ],
)
def test_a_shape_that_cannot_be_made_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(ModelLoadError, match=complaint):
        resolve_model(name)
