"""Tests of `mainstem bench simulate` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.cli.bench import simulate
from mainstem.cli.main import main
from tests.cli.commands import environment, without


@pytest.fixture(autouse=True)
def few_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "TABLE_AGENTS", 2)
    monkeypatch.setattr("mainstem.bench.simulate.LONE_AGENTS", 1)


def test_the_claimed_table_and_the_simulated_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "simulate", "--agents", "2", "--rate", "0.5", "--out", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "claimed: SGLang" in said
    assert "Floor at turn 10, 501 new tokens" in said
    assert "no measurement behind it is published. Where it differs:" in said
    assert "tokens holds 2 agents" in said
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(result["arms"]) == {"radix", "block-hash", "none"}
    assert result["arms"]["radix"]["steady"]["reuse"] > result["arms"]["none"]["steady"]["reuse"] == 0
    assert [load["agents"] for load in result["sweep"]] == [2, 2, 2]
    assert {path.name for path in tmp_path.iterdir()} == {
        "result.json",
        *(f"{name}.{form}" for name in ("hits", "waits") for form in ("svg", "png")),
    }


def test_another_machine_has_no_claims_and_another_price(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "llama-3.1-8b", "--hardware", "h100", "--arms", "radix", "--price-per-hour", "2"]
    assert main(["bench", "simulate", *flags, "--efficiency", "gemm=0.5,step_overhead_s=0.001"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "$2 an hour" in said
    assert "gemm 0.5: given on the command line" in said
    assert "gemm 0.65" not in said
    assert "overhead 2 ms" not in said
    assert "claimed" not in said


def test_it_needs_no_torch() -> None:
    code = (
        without("torch", "transformers")
        + "import mainstem.cli.bench.simulate as s, mainstem.bench.simulate as b; s.TABLE_AGENTS = b.LONE_AGENTS = 1;"
        + "from mainstem.cli.main import main; raise SystemExit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "bench", "simulate", "--arms", "radix"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--hardware", "8xtpu"], "is not known"),
        (["--hardware", "this"], "is for --validate"),
        (["--model", "llama-9"], "are not known"),
        (["--efficiency", "speed=1"], "there is no 'speed'"),
        (["--efficiency", "gemm=2"], "at most 1"),
        (["--hardware", "h100"], "leaves no room"),
        (["--validate", "--hardware", "h100"], "runs on this machine"),
    ],
)
def test_what_cannot_be_simulated_is_refused(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "simulate", *flags]) == 2
    assert words in capsys.readouterr().err


def test_the_engine_here_is_compared_with_the_prediction(
    roomy_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", str(roomy_model), "--kv-memory", "7.9MiB", "--max-num-batched-tokens", "64", "--repeats", "2"]
    flags += ["--scale", "0.02", "--arms", "radix", "--out", str(tmp_path)]
    assert main(["bench", "simulate", "--validate", *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "stated, radix: predicted over measured is" in said
    assert "probed, radix: predicted over measured is" in said
    result = json.loads((tmp_path / "validation.json").read_text())
    assert [turn["turn"] for turn in result["turns"]["radix"]] == list(range(1, 11))
    assert set(result["turns"]["radix"][0]["ratio"]) == {"stated", "probed"}
