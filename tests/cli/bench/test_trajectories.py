"""Tests of `mainstem bench trajectories` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainstem.cli.main import main

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "The river runs to the sea."},
    {"role": "assistant", "content": "And the sea gives it back."},
    {"role": "user", "content": "As what?"},
    {"role": "assistant", "content": "As rain."},
]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "trajectories" / "run.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(MESSAGES))
    return path


def run(model: Path, out: Path, *arguments: str) -> dict[str, Any]:
    flags = ["--model", str(model), "--out", str(out), "--max-num-batched-tokens", "64", "--kv-memory", "3.99MiB"]
    assert main(["bench", "trajectories", *arguments, *flags]) == 0
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def counts(result: dict[str, Any], arm: str) -> dict[str, Any]:
    found: dict[str, Any] = result["sources"]["messages"]["arms"][arm]["counts"]
    return found


def test_the_cache_alone_and_the_engine_count_the_same(recording: Path, tiny_model: Path, tmp_path: Path) -> None:
    alone = run(tiny_model, tmp_path / "alone", str(recording), "--cache-only")
    engine = run(tiny_model, tmp_path / "engine", str(recording))
    for arm in ("radix", "block-hash", "none"):
        assert counts(alone, arm) == counts(engine, arm)
    assert counts(alone, "radix")["amplification"] == 1.0
    assert counts(alone, "radix")["cached"] > counts(alone, "block-hash")["cached"] > 0
    assert engine["sources"]["messages"]["same_text"] is True
    assert engine["sources"]["messages"]["arms"]["radix"]["times"]["ttft"]["median"]["median"] > 0
    assert alone["sources"]["messages"]["arms"]["radix"]["times"] is None


def test_the_data_folder_may_be_named(recording: Path, tiny_model: Path, tmp_path: Path) -> None:
    data = recording.parent.parent
    result = run(tiny_model, tmp_path / "out", "--data", str(data), "--cache-only", "--arms", "radix")
    assert result["sources"]["messages"]["workload"]["calls"] == 2


def test_turns_beyond_the_context_are_left_out_and_said_so(
    recording: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(tiny_model, tmp_path / "out", str(recording), "--cache-only", "--max-model-len", "60")
    assert result["sources"]["messages"]["turns_left_out"] == 1
    assert "messages: 1 turns are left out" in capsys.readouterr().out


def test_without_recordings_it_says_what_to_give(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "trajectories"]) == 2
    assert "say which recordings" in capsys.readouterr().err
    assert main(["bench", "trajectories", str(tmp_path), "--cache-only", "--model", str(tiny_model)]) == 2
    assert "no recordings of agents" in capsys.readouterr().err
