"""Loading a Hugging Face folder: the right sizes and weights, no network, no noise, clear refusals."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mainstem.errors import ModelLoadError, UnsupportedModel
from mainstem.model import ModelFiles, ModelShape, load_model
from mainstem.tokens import Tokenizer
from tests.support.tiny_models import ARCHITECTURES, VOCAB_SIZE, make_tiny_model

CPU = torch.device("cpu")


@pytest.fixture
def own_copy(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_the_shape_is_read_from_the_model(architecture: str, tmp_path: Path) -> None:
    loaded = load_model(make_tiny_model(tmp_path, architecture), dtype=torch.float32, device=CPU)
    parameters = sum(p.numel() for p in loaded.module.parameters())
    assert loaded.shape == ModelShape(
        architecture=architecture,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        hidden_size=64,
        intermediate_size=128,
        vocab_size=VOCAB_SIZE,
        max_position=2048,
        num_parameters=parameters,
        num_active_parameters=parameters - 64 * VOCAB_SIZE,
        weight_bytes=4 * parameters,
        dtype=torch.float32,
        kv_dtype=torch.float32,
    )
    assert loaded.shape.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4


def test_the_weights_are_those_of_the_folder_ready_to_run(tiny_model: Path) -> None:
    loaded = load_model(tiny_model, dtype=torch.float32, device=CPU)
    saved = load_file(tiny_model / "model.safetensors")
    parameters = dict(loaded.module.named_parameters())
    assert all(torch.equal(parameters[name], weight) for name, weight in saved.items())
    assert not loaded.module.training
    assert not any(parameter.requires_grad for parameter in parameters.values())


def test_weights_are_loaded_in_the_type_asked_for(tiny_model: Path) -> None:
    loaded = load_model(tiny_model, dtype=torch.bfloat16, device=CPU)
    assert loaded.dtype == loaded.shape.dtype == torch.bfloat16
    assert {p.dtype for p in loaded.module.parameters()} == {torch.bfloat16}
    assert loaded.shape.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2


def test_without_a_type_the_models_own_is_taken(tiny_model: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float16).save_pretrained(tmp_path)
    assert load_model(tmp_path, dtype=None, device=CPU).dtype == torch.float16


def test_loading_needs_no_network(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load_model(tiny_model, dtype=torch.float32, device=CPU)
    Tokenizer.load(tiny_model)


def test_loading_writes_nothing_to_the_terminal(tiny_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(tiny_model, dtype=torch.float32, device=CPU)
    Tokenizer.load(tiny_model)
    assert capfd.readouterr() == ("", "")


def test_missing_weights_are_refused_not_made_up(own_copy: Path) -> None:
    path = own_copy / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"lacks 1 of the model's weights, .*layers\.1\.mlp\.up_proj"):
        load_model(own_copy, dtype=torch.float32, device=CPU)


def test_weights_of_another_size_are_refused(own_copy: Path) -> None:
    config = json.loads((own_copy / "config.json").read_text())
    (own_copy / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load_model(own_copy, dtype=torch.float32, device=CPU)


def test_a_truncated_weights_file_is_refused(own_copy: Path) -> None:
    path = own_copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load_model(own_copy, dtype=torch.float32, device=CPU)


def test_an_architecture_that_transformers_does_not_know_is_refused(own_copy: Path) -> None:
    (own_copy / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(ModelLoadError, match="unheard-of"):
        load_model(own_copy, dtype=torch.float32, device=CPU)


def test_code_that_comes_with_a_model_is_never_run(own_copy: Path) -> None:
    (own_copy / "custom.py").write_text("raise SystemExit('ran')")
    auto_map = {"AutoConfig": "custom.Config", "AutoModelForCausalLM": "custom.Model"}
    (own_copy / "config.json").write_text(json.dumps({"model_type": "custom", "auto_map": auto_map}))
    with pytest.raises(ModelLoadError):
        load_model(own_copy, dtype=torch.float32, device=CPU)


def test_an_unsupported_model_is_refused_before_its_weights_are_read(own_copy: Path) -> None:
    config = json.loads((own_copy / "config.json").read_text())
    (own_copy / "config.json").write_text(json.dumps(config | {"model_type": "mistral", "sliding_window": 16}))
    (own_copy / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match="sliding window"):
        load_model(own_copy, dtype=torch.float32, device=CPU)


def test_the_embedded_model_answers(embedded_model: ModelFiles) -> None:
    loaded = load_model(embedded_model.folder, dtype=torch.float32, device=CPU)
    tokenizer = Tokenizer.load(embedded_model.folder)
    prompt = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    ids = torch.from_numpy(prompt).long()[None]
    reply: list[int] = []
    with torch.inference_mode():
        for _ in range(7):
            reply.append(int(loaded.module(torch.cat([ids, torch.tensor([reply])], 1).long()).logits[0, -1].argmax()))
    assert tokenizer.decode(reply) == "The capital of France is Paris."
    assert (loaded.shape.num_layers, loaded.shape.num_heads, loaded.shape.num_kv_heads) == (30, 9, 3)
    assert loaded.shape.num_parameters == 134_515_008
