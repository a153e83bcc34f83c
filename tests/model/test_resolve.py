"""Names and paths to model folders, and a clear sentence for everything that is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.errors import ModelLoadError
from mainstem.model import resolve_model


def test_a_hugging_face_folder_is_served_as_it_lies(tiny_model: Path) -> None:
    files = resolve_model(str(tiny_model))
    assert (files.folder, files.name) == (tiny_model, "llama")


def test_a_home_folder_path_is_understood(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tiny_model.parent))
    monkeypatch.setenv("USERPROFILE", str(tiny_model.parent))
    assert resolve_model("~/llama").folder == tiny_model


@pytest.mark.parametrize("name", ["no-such-model", "meta-llama/Llama-3.2-1B", "/no/such/folder"])
def test_an_unknown_name_says_what_can_be_given(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=r"neither 'smollm2' nor .* Hugging Face folder or of a GGUF file"):
        resolve_model(name)


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_a_folder_of_gguf_files_hints_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match=r"give its own path: .*model\.gguf"):
        resolve_model(str(tmp_path))


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelLoadError, match="no weights in the safetensors format"):
        resolve_model(str(tmp_path))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x10\x00")
    with pytest.raises(ModelLoadError, match="is not a GGUF file"):
        resolve_model(str(path))


def test_finding_a_folder_does_not_import_torch(tiny_model: Path) -> None:
    code = (
        "import sys; from mainstem.model import resolve_model; "
        f"resolve_model({str(tiny_model)!r}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
