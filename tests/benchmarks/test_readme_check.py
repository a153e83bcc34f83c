"""Tests that the README's table cannot say anything but what the committed results say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.readme_check import BEGIN, END, main

ROWS = """
[[row]]
label = "first turn of {tokens:,.0f} tokens"
figure = "{ttft:.1f} s"
values.tokens.at = ["run.json", "turns", 0, "prompt"]
values.ttft = { at = ["run.json", "turns", 0, "ttft ms"], times = 0.001 }
"""
TABLE = f"text\n\n{BEGIN}\n\n| | |\n|---|--:|\n| first turn of 3,250 tokens | 6.4 s |\n\n{END}\n\nmore\n"


class Folder:
    """A README, its rows and its results."""

    def __init__(self, folder: Path) -> None:
        self.readme, self.rows, self.result = folder / "README.md", folder / "rows.toml", folder / "run.json"
        self.readme.write_text(TABLE)
        self.rows.write_text(ROWS)
        self.result.write_text(json.dumps({"turns": [{"prompt": 3250, "ttft ms": 6423.8}], "model": "smollm2"}))

    def check(self, *flags: str) -> int:
        return main(
            ["--readme", str(self.readme), "--rows", str(self.rows), "--results", str(self.result.parent), *flags]
        )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_the_readme_agrees_with_the_committed_results() -> None:
    assert main([]) == 0


def test_a_table_that_agrees_passes(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.check() == 0
    assert "agrees with its results: 1 rows" in capsys.readouterr().out


@pytest.mark.parametrize(("right", "wrong"), [("6.4 s", "6.3 s"), ("3,250", "3,251"), ("| first", "| our first")])
def test_a_changed_figure_is_shown_beside_the_right_one(
    folder: Folder, right: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.readme.write_text(TABLE.replace(right, wrong))
    assert folder.check() == 1
    complaint = capsys.readouterr().err
    assert "the results say   | first turn of 3,250 tokens | 6.4 s |" in complaint
    assert wrong in complaint


def test_a_row_without_a_result_is_not_let_in(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.readme.write_text(TABLE.replace("\n\n" + END, "\n| ten times faster | 10× |\n\n" + END))
    assert folder.check() == 1
    assert "the README says   | ten times faster | 10× |\n  the results say   (nothing)" in capsys.readouterr().err


def test_a_new_result_is_written_into_the_readme(folder: Folder) -> None:
    folder.result.write_text(json.dumps({"turns": [{"prompt": 3250, "ttft ms": 2000}]}))
    assert folder.check() == 1
    assert folder.check("--write") == 0
    assert folder.check() == 0
    assert folder.readme.read_text() == TABLE.replace("6.4 s", "2.0 s")


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (ROWS.replace('"turns", 0, "prompt"', '"turns", 1, "prompt"'), "has no turns / 1 / prompt: '1' is missing"),
        (ROWS.replace('"turns", 0, "prompt"', '"model"'), "model is no number but 'smollm2'"),
        (ROWS.replace("run.json", "other.json"), "there is no result file"),
        (ROWS.replace("{ttft:.1f}", "{itl:.1f}"), "KeyError: 'itl'"),
        (ROWS.replace("{ttft:.1f}", "{ttft:.1q}"), "ValueError"),
    ],
)
def test_a_row_that_finds_no_figure_says_why(
    folder: Folder, rows: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.rows.write_text(rows)
    assert folder.check() == 1
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("text", ["no table", TABLE.replace(END, ""), f"{END}\n{BEGIN}", TABLE + BEGIN])
def test_a_readme_without_its_marks_is_refused(folder: Folder, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder.readme.write_text(text)
    assert folder.check() == 1
    assert "must stand between" in capsys.readouterr().err
