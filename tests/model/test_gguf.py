"""GGUF files become folders that hold the same weights, exactly, and the same tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize
from safetensors.torch import load_file, save_file

from mainstem.errors import ModelLoadError, UnsupportedModel
from mainstem.model import ModelFiles, load_model, resolve_model
from mainstem.tokens import Tokenizer
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def gguf(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tiny_model, tmp_path_factory.mktemp("gguf") / "Tiny-1.0.Q8_0.gguf")


@pytest.fixture(scope="module")
def converted(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAINSTEM_CACHE", str(tmp_path_factory.mktemp("cache")))
        return resolve_model(str(gguf))


KINDS = [
    {"": "Q8_0"},
    {"": "Q4_1"},
    {"": "Q4_0"},
    {"": "Q5_1"},
    {"": "Q4_1", "token_embd": "Q8_0", "attn_v": "Q8_0", "ffn_down": "F16"},
]


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: "-".join(kinds.values()))
def test_weights_are_exactly_what_the_file_stands_for(
    kinds: dict[str, str], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    path = write_tiny_gguf(tiny_model, tmp_path / "tiny.gguf", kinds=kinds)
    folder = resolve_model(str(path)).folder
    module = load_model(folder, dtype=torch.float32, device=torch.device("cpu")).module
    parameters = dict(module.named_parameters())
    original = load_file(tiny_model / "model.safetensors")
    assert parameters.keys() == original.keys()
    names = {"v_proj": "attn_v", "down_proj": "ffn_down", "embed_tokens": "token_embd"}
    for name, weight in original.items():
        kind = GGMLQuantizationType[kinds.get(names.get(name.split(".")[-2], ""), kinds[""])]
        expected = weight if weight.ndim == 1 else torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))
        assert torch.equal(parameters[name], expected), name


def test_other_number_types_are_made_of_blocks_when_they_are_loaded(converted: ModelFiles) -> None:
    cpu = torch.device("cpu")
    exact = dict(load_model(converted.folder, dtype=torch.float32, device=cpu).module.named_parameters())
    loaded = load_model(converted.folder, dtype=torch.bfloat16, device=cpu, keep_blocks=True)
    for name, weight in loaded.module.named_parameters():
        assert torch.equal(weight, exact[name].bfloat16()), name


def test_blocks_stay_blocks(converted: ModelFiles, tiny_model: Path) -> None:
    assert [path.name for path in converted.folder.glob("*.safetensors")] == ["blocks.safetensors"]
    kept, plain = (
        (folder / name).stat().st_size
        for folder, name in ((converted.folder, "blocks.safetensors"), (tiny_model, "model.safetensors"))
    )
    assert kept < plain / 3


def test_a_file_that_lacks_weights_is_refused(converted: ModelFiles, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(converted.folder, folder)
    weights = load_file(folder / "blocks.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "blocks.safetensors", metadata=dict.fromkeys(weights, "Q8_0"))
    with pytest.raises(ModelLoadError, match=r"lacks 1 of the model's weights, among them model\.norm\.weight"):
        load_model(folder, dtype=torch.float32, device=torch.device("cpu"))


def test_tied_weights_are_kept_once(converted: ModelFiles) -> None:
    assert not any("lm_head" in name for name in load_file(converted.folder / "blocks.safetensors"))


def test_the_tokenizer_gives_the_same_ids(tiny_model: Path, converted: ModelFiles) -> None:
    text = "The river<|im_end|> runs to the sea, Straße 東京 🌳\n"
    tokenizer, original = Tokenizer.load(converted.folder), Tokenizer.load(tiny_model)
    assert tokenizer.encode(text).tolist() == original.encode(text).tolist()
    assert tokenizer.eos_token_ids == original.eos_token_ids
    messages = [{"role": "user", "content": "Hello"}]
    assert tokenizer.encode_chat(messages).tolist() == original.encode_chat(messages).tolist()


def test_digits_are_split_as_the_files_pre_tokenizer_says(converted: ModelFiles) -> None:
    tokenizer = Tokenizer.load(converted.folder)
    ids = tokenizer.encode("a\n\n1").tolist()
    assert ids == [*tokenizer.encode("a\n\n").tolist(), *tokenizer.encode("1").tolist()]


def test_the_model_is_called_after_the_file(converted: ModelFiles) -> None:
    assert converted.name == "Tiny-1.0.Q8_0"


def test_a_file_is_converted_once_and_again_when_it_changes(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    path = write_tiny_gguf(tiny_model, tmp_path / "tiny.gguf")
    stages: list[str] = []
    first = resolve_model(str(path), lambda stage, *_: stages.append(stage)).folder
    assert stages == [
        "reading tiny.gguf",
        "converting the tokenizer of tiny.gguf",
        "converting the weights of tiny.gguf",
    ]
    stages.clear()
    assert resolve_model(str(path), lambda stage, *_: stages.append(stage)).folder == first
    assert stages == []
    write_tiny_gguf(make_tiny_model(tmp_path / "other", seed=1, num_hidden_layers=1), path)
    assert resolve_model(str(path)).folder != first


def test_converting_writes_nothing_to_the_terminal(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path))
    resolve_model(str(gguf))
    assert capfd.readouterr() == ("", "")


def test_scaled_rotary_positions_are_refused_because_they_would_be_lost(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    path = write_tiny_gguf(tiny_model, tmp_path / "yarn.gguf", rope_scaling="yarn")
    with pytest.raises(UnsupportedModel, match="scales its rotary positions"):
        resolve_model(str(path))


def test_a_truncated_file_is_refused_and_leaves_nothing_behind(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("MAINSTEM_CACHE", str(cache))
    path = tmp_path / "half.gguf"
    path.write_bytes(gguf.read_bytes()[:30_000])
    with pytest.raises(ModelLoadError, match=r"half\.gguf cannot be converted"):
        resolve_model(str(path))
    assert [p for p in (cache / "models").iterdir() if p.is_dir()] == []
