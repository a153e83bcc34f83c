"""Tests of `mainstem bench agent`, `branch` and `chat` as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.cli.main import main
from tests.cli.commands import environment, without

SMALL = {
    "agent": ["--scale", "0.04", "--turns", "3", "--agents", "2"],
    "branch": ["--scale", "0.01", "--branches", "3", "--depth", "2"],
    "chat": ["--scale", "0.05", "--sessions", "4"],
}


def test_a_workload_runs_on_a_model(roomy_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    flags = ["--model", str(roomy_model), "--kv-memory", "8MiB", "--max-num-batched-tokens", "64", "--repeats", "2"]
    assert main(["bench", "agent", *SMALL["agent"], *flags, "--price-per-hour", "2", "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "All arms gave the same greedy text in every call." in said
    assert "costs $2 an hour" in said
    result = json.loads((out / "result.json").read_text())
    assert result["same_text"] is True
    assert result["engine"]["dtype"] == "float32"
    assert result["limits"]["flops_per_s"] > 0
    radix, block_hash, none = (result["arms"][arm] for arm in ("radix", "block-hash", "none"))
    assert radix["counts"]["prefilled"] < block_hash["counts"]["prefilled"] < none["counts"]["prefilled"]
    assert none["counts"]["cached"] == 0
    assert radix["times"]["ttft"]["median"]["repeats"] == 2
    assert radix["rates"]["cost_per_task"]["median"] > 0
    assert {path.name for path in out.iterdir()} == {
        "result.json",
        *(f"{name}.{form}" for name in ("ttft", "prefill", "memory") for form in ("svg", "png")),
    }


@pytest.mark.parametrize("workload", sorted(SMALL))
def test_the_cache_alone_needs_no_torch(workload: str, tmp_path: Path) -> None:
    code = without("torch", "transformers") + "from mainstem.cli.main import main; raise SystemExit(main(sys.argv[1:]))"
    flags = ["--cache-only", "--repeats", "1", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", code, "bench", workload, *SMALL[workload], *flags],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "without a model" in done.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["arms"]["radix"]["times"] is None
    assert result["arms"]["radix"]["counts"]["hit_ratio"] > 0
    assert not (tmp_path / "ttft.svg").exists()


def test_the_same_cache_gives_the_same_picture(tmp_path: Path) -> None:
    for name in ("a", "b"):
        main(["bench", "branch", *SMALL["branch"], "--cache-only", "--repeats", "1", "--out", str(tmp_path / name)])
    assert (tmp_path / "a" / "prefill.svg").read_bytes() == (tmp_path / "b" / "prefill.svg").read_bytes()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["agent", "--scale", "big"], "--scale must be a number above 0, got 'big'"),
        (["agent", "--turns", "9-4"], "--turns must go up, got 9-4"),
        (["agent", "--turns", "many"], "--turns: 'many' is not a whole number"),
        (["agent", "--agents", "0"], "--agents must be at least 1, got 0"),
        (["agent", "--arms", "radix,lru"], "there is no cache 'lru'"),
        (["branch", "--repeats", "0"], "--repeats must be at least 1"),
        (["chat", "--price-per-hour", "-1"], "--price-per-hour must be a number above 0"),
        (["chat", "--pool-tokens", "100"], "chat does not fit"),
        (["chat", "--pool-tokens", "100", "--block-size", "128"], "does not hold one block of 128"),
        (["agent", "--max-model-len", "4096"], "agent does not fit"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_reason(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *flags, "--cache-only"]) == 2
    assert complaint in capsys.readouterr().err


def test_a_model_with_a_short_context_is_refused_before_anything_runs(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "agent", "--model", str(tiny_model), "--kv-memory", "4MiB"]) == 2
    assert "Make it smaller, or take a model with a longer context" in capsys.readouterr().err


def test_a_pool_larger_than_the_models_is_refused(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(tiny_model), "--kv-memory", "4MiB", "--pool-tokens", "100000"]
    assert main(["bench", "agent", "--scale", "0.04", *flags]) == 2
    assert "raise --kv-memory" in capsys.readouterr().err
