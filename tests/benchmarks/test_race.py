"""The race against peers: what is sent, how steps are counted, and that table and picture say what the result says."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_peers
from benchmarks.bench_peers import Failed, common_step_s, measure, order
from benchmarks.peers.engines import engines
from benchmarks.peers.race import BEGIN, END, ROWS, main, table
from benchmarks.peers.race_picture import picture
from mainstem.bench.http import Completion
from tests.bench.fake_server import Habits, fake_server


def summary(value: float) -> dict[str, float]:
    return {"median": value, "min": value * 0.9, "max": value * 1.1, "repeats": 3}


def entry(title: str, value: float, **figures: float) -> dict[str, Any]:
    """An engine of a result; every figure is `value` unless it is named."""
    every = {row.figure: value for row in ROWS} | {name.replace("_", " "): one for name, one in figures.items()}
    runs = [{"repeat": 0, "figures": every, "first_reply": [1, 2, 3], "compute": None}]
    described = {"title": title, "version": "1", "precision": "float32", "command": f"{title} --port PORT"}
    return {**described, "figures": {name: summary(one) for name, one in every.items()}, "runs": runs}


@pytest.fixture
def result() -> dict[str, Any]:
    return {
        "command": "python -m benchmarks.bench_peers",
        "date": "2026-01-01 00:00 UTC",
        "machine": {"cpus": 2, "cpu": "a processor", "architecture": "x86_64"},
        "sizes": bench_peers.Sizes()._asdict(),
        "quick": False,
        "engines": {
            "mainstem": entry("mainstem", 2.0),
            "openvino": entry("OpenVINO", 4.0, turn_1_s=2.1),
            "vllm": entry("vLLM", 5.0, turn_1_s=9.0),
            "unshared": entry("mainstem, sharing off", 1.0),
        },
    }


def cells(result: dict[str, Any], row: int) -> list[str]:
    return [cell.strip() for cell in table(result)[2 + row].strip("|").split("|")]


def test_a_row_compares_with_the_best_peer_and_not_with_mainstem_itself(result: dict[str, Any]) -> None:
    label, own, openvino, vllm, ratio, aim = cells(result, 0)
    assert label == "first turn of 3,250 tokens, nothing cached"
    assert (own, openvino, vllm) == ("2.00 s (1.80–2.20)", "2.10 s (1.89–2.31)", "9.00 s (8.10–9.90)")
    assert (ratio, aim) == ("0.95", "≤ 0.9, missed")
    assert cells(result, 1)[-2:] == ["0.50", "≤ 0.8, met"]


def test_the_start_is_held_against_a_time(result: dict[str, Any]) -> None:
    assert cells(result, len(ROWS) - 1)[-1] == "≤ 5 s, met"


def test_what_an_engine_did_not_give_is_left_open(result: dict[str, Any]) -> None:
    for name in ("openvino", "vllm"):
        del result["engines"][name]["figures"]["decode ms"]
    assert cells(result, 3)[2:] == ["–", "–", "–", "≤ 0.75"]


def test_the_page_and_the_picture_are_written_and_then_agree(result: dict[str, Any], tmp_path: Path) -> None:
    page, picture_file, result_file = tmp_path / "page.md", tmp_path / "picture.svg", tmp_path / "race.json"
    page.write_text(f"before\n\n{BEGIN}\n{END}\n\nafter\n")
    result_file.write_text(json.dumps(result))
    flags = ["--result", str(result_file), "--page", str(page), "--picture", str(picture_file)]
    assert main(flags) == 1  # not yet written
    assert main([*flags, "--write"]) == 0
    assert main(flags) == 0
    text = page.read_text()
    assert "first turn of 3,250 tokens" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "Its first replies begin with 3 of the 3 tokens" in text
    page.write_text(text.replace("2.00 s", "1.00 s", 1))
    assert main(flags) == 1


def test_a_quick_run_is_not_written(result: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "race.json"
    file.write_text(json.dumps(result | {"quick": True}))
    assert main(["--result", str(file), "--write"]) == 1
    assert "--quick" in capsys.readouterr().err


def test_the_picture_shows_the_figures_of_all_arms(result: dict[str, Any]) -> None:
    result["engines"]["vllm"]["figures"]["many branches, step ms"] = summary(432.0)
    del result["engines"]["openvino"]["figures"]["many branches, step ms"]
    drawn = picture(result)
    assert "432 ms" in drawn
    assert "not together" in drawn
    assert drawn.index("mainstem, sharing off") < drawn.index("OpenVINO") < drawn.index("vLLM")


def replies(*times: list[float]) -> list[Completion]:
    return [Completion(0.0, token_times=each) for each in times]


def test_a_step_counts_only_while_all_generate() -> None:
    early = [1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0]
    late = [3.0, 3.5, 4.0, 4.5, 5.0, 9.0, 10.0]
    assert common_step_s(replies(early, late)) == pytest.approx(0.5)


def test_there_is_no_step_where_branches_do_not_run_together() -> None:
    assert common_step_s(replies([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])) is None


def test_a_run_sends_what_the_table_says() -> None:
    habits = Habits(token_s=0.0)
    sizes = bench_peers.Sizes(many_root=6000)
    with fake_server(habits) as url, pytest.raises(Failed, match="not cold"):
        # This server claims that half of every prompt was cached.
        asyncio.run(measure(url, sizes, seed=[0, 0], only_many=False))
    habits = Habits(tells_usage=False)
    with fake_server(habits) as url:
        measured = asyncio.run(measure(url, sizes, seed=[0, 0], only_many=False))
    lengths = [(len(body["prompt"]), body["max_tokens"]) for body in habits.asked]
    assert lengths[3] == (3250, 32)
    assert lengths[12] == (5788, 32)
    assert Counter(lengths)[6050, 32] == 32
    assert Counter(lengths)[3100, 64] == 16
    assert measured.figures.keys() >= {row.figure for row in ROWS} - {
        "memory MiB",
        "start-up s",
        "many branches, step ms",
    }
    session = next(body["prompt"] for body in habits.asked if len(body["prompt"]) == 5788)
    branches = [body["prompt"] for body in habits.asked if len(body["prompt"]) == 6050]
    assert all(branch[:5788] == session for branch in branches)


def test_engines_take_turns_to_begin() -> None:
    assert [order(["a", "b", "c"], repeat) for repeat in range(3)] == [list("abc"), list("bca"), list("cab")]


def test_a_peer_that_is_not_there_is_told_by_what_it_lacks(tmp_path: Path) -> None:
    known = engines()
    assert known["mainstem"].lacks(tmp_path) is None
    assert known["vllm"].lacks(tmp_path) == str(tmp_path / "vllm/bin/python")
    python = tmp_path / "vllm/bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert known["vllm"].lacks(tmp_path) == str(tmp_path / "smol")
