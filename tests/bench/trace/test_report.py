"""Tables, JSON and pictures of a measured trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from mainstem.bench.trace import TraceResult, measure
from mainstem.bench.trace.report import as_json, draw, summary, table
from tests.bench.trace.support import trace_of


@pytest.fixture(scope="module")
def result() -> TraceResult:
    return measure(trace_of([[1, 2], [3], [1, 2], [1, 2, 4]]), [3, 4], lambda *_: None)


def test_the_summary_has_the_infinite_caches_ratio_with_four_decimals(result: TraceResult) -> None:
    assert "infinite cache: 0.5000 of 8 block references hit" in summary(result)


def test_the_table_has_a_row_a_capacity(result: TraceResult) -> None:
    console = Console(width=80)
    with console.capture() as shown:
        console.print(table(result))
    text = shown.get()
    assert "75.0%" in text
    assert "100.0%" in text
    assert "0.5000  0.5000" in text


def test_json_counts_hits_and_amplification(result: TraceResult) -> None:
    document = as_json(result)
    assert document["infinite"] == {
        "block_hits": 4,
        "block_hit_ratio": 0.5,
        "token_hits": 16,
        "token_hit_ratio": 0.5,
        "amplification": 1.0,
    }
    assert [point["capacity_blocks"] for point in document["curves"]["radix"]] == [3, 4]


def test_the_picture_is_the_same_file_for_the_same_result(result: TraceResult, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        assert [path.name for path in draw(result, "title", folder)] == ["trace.svg", "trace.png"]
    assert (first / "trace.svg").read_bytes() == (second / "trace.svg").read_bytes()
    assert (first / "trace.png").read_bytes().startswith(b"\x89PNG")
