"""`mainstem bench trace` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mainstem.cli.main import main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    prompts = [[1, 2], [3], [1, 2], [1, 2, 4]]
    rows = ({"timestamp": 0, "input_length": 512 * len(ids), "hash_ids": ids} for ids in prompts)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_it_prints_the_ratios_and_writes_result_and_pictures(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "folder"
    assert main(["bench", "trace", str(trace), "--out", str(out), "--capacities", "100%,3"]) == 0
    shown = capsys.readouterr().out
    assert "infinite cache: 0.5000 of 8 block references hit" in shown
    document = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert document["files"] == ["small.jsonl"]
    assert [point["capacity_blocks"] for point in document["curves"]["clairvoyant"]] == [3, 4]
    assert (out / "trace.svg").stat().st_size > 1000
    assert (out / "trace.png").stat().st_size > 1000


def test_without_a_folder_it_only_prints(trace: Path, tmp_path: Path) -> None:
    assert main(["bench", "trace", str(trace)]) == 0
    assert list(tmp_path.iterdir()) == [trace]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--capacities", "2"], "error: --capacities: 2 blocks cannot hold the longest prompt, which has 3 (75%)"),
        (["--capacities", "0%"], "error: --capacities: a percentage must be above 0 and at most 100, got 0%"),
        (["--capacities", "nan%"], "error: --capacities: a percentage must be above 0 and at most 100, got nan%"),
        (["--capacities", "x%"], "error: --capacities: 'x%' is not a percentage"),
        (
            ["--capacities", "5,5x"],
            "error: --capacities: '5x' is neither a number of blocks, as in 1000, nor a percentage, as in 5%",
        ),
        (["--block-size", "0"], "error: --block-size must be at least 1, got 0"),
    ],
)
def test_wrong_flags_are_one_line_and_exit_code_2(
    flags: list[str], complaint: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "trace", str(trace), *flags]) == 2
    assert capsys.readouterr().err == complaint + "\n"


def test_a_bad_file_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "trace", str(tmp_path / "gone")]) == 1
    assert capsys.readouterr().err == f"error: cannot read {tmp_path / 'gone'}: No such file or directory\n"


def test_a_folder_of_traces_is_told_to_name_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "trace", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path} is a folder; name its files, as in {tmp_path / '*.json*'}\n"


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_measured(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "trace", str(trace), "--out", str(trace / "below")]) == 2
    assert capsys.readouterr().err.startswith("error: --out: cannot make the folder")
