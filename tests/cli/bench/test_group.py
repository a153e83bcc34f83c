"""`mainstem bench` as a group of workloads."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mainstem.cli.bench import workloads
from mainstem.cli.extras import BENCH_EXTRAS
from mainstem.cli.main import main
from tests.cli.commands import environment, without

ROOT = Path(__file__).parents[3]


def test_no_workload_lists_them_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    shown = capsys.readouterr().out
    for name, module in workloads().items():
        assert f"    {name}" in shown
        assert module.SUMMARY.split()[0] in shown


def test_an_unknown_workload_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "fly"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: argument WORKLOAD: invalid choice: 'fly'")
    assert complaint.endswith("try 'mainstem bench --help'\n")


@pytest.mark.parametrize("name", workloads())
def test_every_workload_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", name, "--help"])
    assert left.value.code == 0
    assert f"  mainstem bench {name}" in capsys.readouterr().out


def test_the_checked_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [requirement.split(">")[0].replace("-", "_") for requirement in project["optional-dependencies"]["bench"]]
    modules = [{"pyyaml": "yaml"}.get(name, name) for name in names]
    assert sorted(modules) == sorted(BENCH_EXTRAS)


def test_missing_extras_say_how_to_install_them() -> None:
    code = without("matplotlib") + "from mainstem.cli.extras import require_bench_extras as r; r('bench trace')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment())
    assert ended.stderr.splitlines()[-1] == (
        "mainstem.errors.MainstemError: mainstem bench trace needs the bench extras; "
        "pip install 'mainstem[bench]', in a checkout '.[bench]' (not found: matplotlib)"
    )
