"""The demo's chart in the terminal and its picture."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

import pytest
from rich.console import Console

from mainstem.cli.chart import bar, print_chart
from mainstem.cli.client import Reply
from mainstem.cli.picture import HEIGHT, svg
from mainstem.cli.report import TurnReport, summarize

TURNS = [
    TurnReport(1, "reads <all>", 1000, Reply("", 1000, 0, 10, 2.0, 2.5), 2.0),
    TurnReport(2, "runs", 91, Reply("", 1100, 1009, 10, 0.25, 0.5), 12.0),
]


@pytest.mark.parametrize(("share", "drawn"), [(1.0, "████"), (0.5, "██"), (0.53125, "██▏"), (0.0, "▏")])
def test_a_bar_is_exact_to_an_eighth_and_never_empty(share: float, drawn: str) -> None:
    assert bar(share, 4) == drawn


def test_the_longest_bar_fills_the_line_and_no_line_is_longer() -> None:
    page = io.StringIO()
    print_chart(Console(file=page, width=60), TURNS)
    lines = page.getvalue().splitlines()[1:]
    assert len(lines) == 4
    assert max(lines, key=len).endswith("█ 12.00 s")
    assert max(map(len, lines)) <= 60


def rectangles(text: str, kind: str) -> list[dict[str, str]]:
    return [
        dict(found.attrib)
        for found in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}rect")
        if found.get("class") == kind and found.get("y") != "68"
    ]


def test_the_picture_has_two_bars_a_turn_in_proportion() -> None:
    text = svg(TURNS, summarize(TURNS), subtitle="a & b")
    cached, uncached = rectangles(text, "cached"), rectangles(text, "uncached")
    assert len(cached) == len(uncached) == 2
    assert float(uncached[1]["height"]) == pytest.approx(6 * float(uncached[0]["height"]), rel=0.01)
    assert cached[0]["height"] == uncached[0]["height"]


@pytest.mark.parametrize("seconds", [0.004, 0.7, 9.99, 10.0, 10.01, 123.0])
def test_every_bar_stays_within_the_picture(seconds: float) -> None:
    turns = [TurnReport(1, "", 1000, Reply("", 1000, 0, 10, seconds, seconds), seconds)]
    (bar_drawn,) = rectangles(svg(turns, summarize(turns), subtitle=""), "uncached")
    assert 80 < float(bar_drawn["y"]) < HEIGHT / 2
