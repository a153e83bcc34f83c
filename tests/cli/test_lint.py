"""`mainstem lint`: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pytest

from mainstem.cli.main import main
from mainstem.lint import Sizes, lint_conversations, read
from mainstem.tokens.counting import estimate
from tests.cli.commands import mainstem
from tests.lint.logs import Body, conversation, write
from tests.support.tiny_models import save_tiny_tokenizer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lint.md").read_text(encoding="utf-8")


def with_clock(turn: int, body: Body) -> None:
    body["messages"][0]["content"] = f"It is 10:0{turn}.\n" + body["messages"][0]["content"]


def test_the_card_says_what_where_how_much_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, conversation(4, with_clock))
    assert main(["lint", str(path), "--model", "none"]) == 0
    card = capsys.readouterr().out
    assert "4 requests in 1 conversation" in card
    assert "(an estimate, 4 bytes a token)" in card
    assert "1. timestamp in the system's text:" in card
    assert f"where     {path}:2\n             messages[0].content, character 10" in card
    assert "in 3 of 3 requests" in card
    assert "fix       leave the clock out" in card


def test_requests_may_come_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write(tmp_path, conversation(4, with_clock)).read_text(encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["lint", "-", "--model", "none"]) == 0
    assert "4 requests in 1 conversation" in capsys.readouterr().out


@pytest.mark.parametrize(("limit", "code"), [("0.9", 1), ("90%", 1), ("0", 0), ("0.05", 0)])
def test_fail_under_decides_how_it_ends(
    tmp_path: Path, limit: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, conversation(4, with_clock))
    assert main(["lint", str(path), "--model", "none", "--fail-under", limit]) == code
    assert f"verdict   {'FAILED' if code else 'passed'}" in capsys.readouterr().out


def test_stable_prompts_pass_any_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, conversation(4))
    assert main(["lint", str(path), "--model", "none", "--fail-under", "1"]) == 0
    assert "Nothing changes that should not." in capsys.readouterr().out


def test_one_request_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(write(tmp_path, conversation(1))), "--fail-under", "0.9"]) == 0
    assert "nothing to compare" in capsys.readouterr().out


def test_json_has_every_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, conversation(3, with_clock))
    assert main(["lint", str(path), "--model", "none", "--json", "--fail-under", "0.9"]) == 1
    told = json.loads(capsys.readouterr().out)
    result = lint_conversations(read([path]).conversations, Sizes(estimate))
    assert (told["share"], told["passed"], told["alarms"]) == (round(result.share, 6), False, 1)
    (finding,) = told["findings"]
    assert (finding["level"], finding["cause"], finding["place"]) == ("alarm", "timestamp", "system")
    assert (finding["openai_reason"], finding["anthropic_type"]) == ("input_changed", "system_changed")
    assert [(place["file"], place["line"]) for place in finding["occurrences"]] == [(str(path), 2), (str(path), 3)]
    assert finding["occurrences"][0]["part"] == "messages[0].content"


def test_a_folder_that_is_no_more_than_a_tokenizer_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_tiny_tokenizer(tmp_path / "tiny")
    for file in folder.iterdir():
        if file.name != "tokenizer.json":
            file.unlink() if file.is_file() else shutil.rmtree(file)
    assert main(["lint", str(write(tmp_path, conversation(3))), "--model", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counted_with"] == "tiny's tokenizer"
    assert told["prompt_tokens"] > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["none.jsonl"], "error: there is no file none.jsonl"),
        (["{empty}"], "error: there are no requests in {empty}"),
        (["{good}", "--fail-under", "much"], "error: --fail-under: 'much' is not a number, such as 0.9"),
        (["{good}", "--fail-under", "2"], "error: --fail-under must be between 0 and 1, got 2"),
        (["{good}", "--model", "{empty}/.."], "has no tokenizer.json"),
        (["{good}", "--model", "nope"], "error: There is no model 'nope'"),
        (
            ["{broken}"],
            "error: {broken}:1 is not JSON: Expecting property name enclosed in double quotes, at character 2",
        ),
    ],
)
def test_complaints(tmp_path: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"good": write(tmp_path, conversation(2)), "empty": write(tmp_path, [{"event": 1}], "empty.jsonl")}
    names["broken"] = tmp_path / "broken.jsonl"
    names["broken"].write_text("{", encoding="utf-8")
    filled = [argument.format(**names).replace("/empty.jsonl/..", "") for argument in arguments]
    assert main(["lint", *filled]) == 2
    told = capsys.readouterr().err
    assert complaint.format(**names) in told
    assert told.count("\n") == 1


def test_it_needs_neither_torch_nor_rich(tmp_path: Path) -> None:
    path = write(tmp_path, conversation(3))
    block = tmp_path / "sitecustomize.py"
    names = "torch transformers rich fastapi httpx yaml tokenizers"
    block.write_text(f"import sys\nfor name in '{names}'.split():\n    sys.modules[name] = None\n", encoding="utf-8")
    ended = mainstem("lint", str(path), env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])})
    assert ended.returncode == 0, ended.stderr
    assert "an estimate" in ended.stdout


def test_the_page_shows_what_it_really_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["lint", "examples/prompts.jsonl", "--model", "none", "--fail-under", "0.9"]) == 1
    assert capsys.readouterr().out.strip() in PAGE
