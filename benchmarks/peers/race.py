"""The race's result as a table and a picture, and the pages that show them. It measures nothing.

    python -m benchmarks.peers.race            # do the pages say what the committed result says?
    python -m benchmarks.peers.race --write    # make them say it

The table stands in docs/benchmarks.md between its marks, the picture is docs/branches.svg.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks/results/peers/race.json"
PAGE, PICTURE = ROOT / "docs/benchmarks.md", ROOT / "docs/branches.svg"
BEGIN, END = "<!-- race: python -m benchmarks.peers.race --write -->", "<!-- end of race -->"

MAINSTEM, UNSHARED = "mainstem", "unshared"
UNKNOWN = "–"


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        figure: its name in the result.
        label: what it reads, with the sizes of the workload.
        unit: s, ms or MiB.
        aim: at most this, as a ratio to the best peer; in seconds for the start.
    """

    figure: str
    label: str
    unit: str
    aim: float

    @property
    def is_ratio(self) -> bool:
        """Whether the aim is a ratio to the best peer; else it is a time."""
        return self.figure != "start-up s"


ROWS = (
    Row("turn 1 s", "first turn of {turn_1:,} tokens, nothing cached", "s", 0.9),
    Row("turn last s", "turn {turns} of {turn_last:,} tokens, {new} of them new", "s", 0.8),
    Row("second session s", "a second session's first turn, {root:,} of {turn_1:,} tokens cached", "s", 0.8),
    Row("decode ms", "a decoded token at {turn_1:,} tokens", "ms", 0.75),
    Row("branches, cold root s", "{branches} branches of one cold {branch_root:,}-token root, {branch_reply} tokens "
        "each, all of it", "s", 0.65),
    Row("branches, warm root s", "{branches} others on the same root, now warm", "s", 0.7),
    Row("many branches s", "{many} branches of a warm {many_root:,}-token root, {many_reply} tokens each, all of it",
        "s", 0.4),
    Row("many branches, step ms", "a decode step of these", "ms", 0.4),
    Row("memory MiB", "resident memory after all of this", "MiB", 0.6),
    Row("start-up s", "from starting the server to its first token", "s", 5.0),
)  # fmt: skip


class RaceError(Exception):
    """A page cannot be written or held against the result; the message says why."""


def table(result: dict[str, Any]) -> list[str]:
    """The rows of all engines that ran, mainstem's ratio to the best peer, and the aims."""
    engines = {name: engine for name, engine in result["engines"].items() if name != UNSHARED}
    sizes = described_sizes(result["sizes"])
    heads = [engine["title"] for engine in engines.values()]
    lines = ["| | " + " | ".join([*heads, "to the best peer", "aim"]) + " |", "|---|" + "--:|" * (len(heads) + 2)]
    for row in ROWS:
        figures = {name: engine["figures"].get(row.figure) for name, engine in engines.items()}
        cells = [_cell(figure, row.unit) for figure in figures.values()]
        cells += [_ratio_cell(ratio(figures)), _aim_cell(row, figures)]
        lines.append(f"| {row.label.format(**sizes)} | " + " | ".join(cells) + " |")
    return lines


def described_sizes(sizes: dict[str, int]) -> dict[str, int]:
    """The sizes of the workload, and those that follow from them."""
    first = sizes["root"] + sizes["own"]
    last = first + (sizes["turns"] - 1) * (sizes["reply"] + sizes["turn"])
    # The last token of a reply was sampled, but not put through the model.
    return {**sizes, "turn_1": first, "turn_last": last, "new": sizes["turn"] + 1}


def ratio(figures: dict[str, dict[str, float] | None]) -> float | None:
    """mainstem's median over that of the best peer; None without either."""
    own = figures.get(MAINSTEM)
    peers = [figure["median"] for name, figure in figures.items() if name != MAINSTEM and figure is not None]
    return own["median"] / min(peers) if own is not None and peers else None


def _ratio_cell(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _aim_cell(row: Row, figures: dict[str, dict[str, float] | None]) -> str:
    own = figures.get(MAINSTEM)
    reached = ratio(figures) if row.is_ratio else None if own is None else own["median"]
    said = f"≤ {row.aim:g}" + ("" if row.is_ratio else f" {row.unit}")
    if reached is None:
        return said
    return f"{said}, {'met' if round(reached, 2) <= row.aim else 'missed'}"


def _cell(figure: dict[str, float] | None, unit: str) -> str:
    if figure is None:
        return UNKNOWN
    median, low, high = (amount(figure[name], unit) for name in ("median", "min", "max"))
    return f"{median} {unit}" if figure["repeats"] == 1 else f"{median} {unit} ({low}–{high})"


def amount(value: float, unit: str) -> str:
    """A figure in three digits or so."""
    if unit == "MiB":
        return f"{value:,.0f}"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def notes(result: dict[str, Any]) -> list[str]:
    """What ran, at which precision and from which command."""
    machine = result["machine"]
    lines = [
        f"{machine['cpus']} cores ({machine['cpu']}, {machine['architecture']}), {result['date']}; medians and "
        f"ranges of the repeats, from `{result['command']}`:",
        "",
    ]
    own = result["engines"].get(MAINSTEM, {"runs": []})["runs"]
    for engine in result["engines"].values():
        compute = engine["runs"][0].get("compute")
        precision = engine["precision"] + (f"; {compute}" if compute else "")
        lines += [f"- {engine['title']} {engine['version']}: {precision}.{_agreement(engine, own)}"]
        lines += [f"  `{engine['command']}`"]
    return lines


def _agreement(engine: dict[str, Any], own: Sequence[dict[str, Any]]) -> str:
    """How far its first replies are mainstem's, in the repeats that both ran."""
    replies = {run["repeat"]: run["first_reply"] for run in own}
    pairs = [(run["first_reply"], replies.get(run["repeat"])) for run in engine["runs"]]
    same = [
        sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(a, b, strict=False))) for a, b in pairs if a and b
    ]
    if engine["runs"] is own or not same:
        return ""
    length = len(own[0]["first_reply"])
    return f" Its first replies begin with {', '.join(map(str, same))} of the {length} tokens of mainstem's."


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def section(result: dict[str, Any]) -> list[str]:
    """What stands between the marks."""
    return [*table(result), "", *notes(result)]


def with_section(text: str, lines: Sequence[str]) -> str:
    """A page's text with these lines between its marks.

    Raises:
        RaceError: when the page does not have both marks once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise RaceError(f"the page must have '{BEGIN}' and '{END}', once each")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.partition(END)[2]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Check, or write; returns the exit code."""
    from benchmarks.peers.race_picture import picture

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into the page, and draw the picture")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    arguments = parser.parse_args(argv)
    try:
        if not arguments.result.is_file():
            raise RaceError(f"there is no {arguments.result}; make bench-peers makes it")
        result = json.loads(arguments.result.read_text(encoding="utf-8"))
        if result["quick"]:
            raise RaceError("this is the result of --quick, which only shows that everything runs")
        text = arguments.page.read_text(encoding="utf-8")
        right = {arguments.page: with_section(text, section(result)), arguments.picture: picture(result)}
        if not arguments.write:
            for path, content in right.items():
                if not path.is_file() or path.read_text(encoding="utf-8") != content:
                    raise RaceError(f"{path} is not what the result says; python -m benchmarks.peers.race --write")
    except RaceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path, content in right.items():
        path.write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
