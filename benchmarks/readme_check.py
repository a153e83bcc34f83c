"""Holds the README's table of figures against the result files that are committed beside it.

`readme.toml` says for every row of the table what it reads and where its values lie in the result files. The table in
the README must be exactly what that gives; `--write` puts it there. It knows no benchmark and no figure.

    [[row]]
    label = "first turn of {tokens:,.0f} tokens"
    figure = "{ttft:.1f} s"
    values.tokens.at = ["session.json", "figures", "turn 1 prompt tokens", "median"]
    values.ttft.at = ["session.json", "figures", "turn 1 ttft s", "median"]

`at` is a file and the way to a number in it; `times`, if given, is what the number is multiplied with. Where the way
comes to a list of rows, its next step names rows by their `cache`, and `take` is "least" or "most" of what they have.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
ROWS = Path(__file__).with_name("readme.toml")
RESULTS = Path(__file__).with_name("results")

BEGIN, END = "<!-- figures: see benchmarks/readme.toml -->", "<!-- end of figures -->"
_TAKE: dict[str, Callable[[Iterable[float]], float]] = {"least": min, "most": max}
_HEADER = ("| | |", "|---|--:|")


class CheckFailed(Exception):
    """The README cannot be held against its results; the message says why."""


def expected_table(rows: Path, results: Path) -> list[str]:
    """The lines of the table that the result files give.

    Raises:
        CheckFailed: when a value is not where a row says it is, or a row is not written as it should be.
    """
    described = tomllib.loads(rows.read_text(encoding="utf-8")).get("row", [])
    return [*_HEADER, *(_render(row, results) for row in described)]


def _render(row: dict[str, Any], results: Path) -> str:
    label = row.get("label", "")
    try:
        values = {name: _value(source, results) for name, source in row["values"].items()}
        return f"| {label.format(**values)} | {row['figure'].format(**values)} |"
    except (KeyError, IndexError, ValueError) as error:
        raise CheckFailed(f"the row '{label}': {type(error).__name__}: {error}") from None


def _value(source: dict[str, Any], results: Path) -> float:
    name, *way = source["at"]
    path = results / name
    if not path.is_file():
        raise CheckFailed(f"there is no result file {path}; run the benchmark that writes it")
    found: Any = json.loads(path.read_text(encoding="utf-8"))
    for at, step in enumerate(way):
        try:
            if isinstance(found, list) and isinstance(step, str):
                rows = [row for row in found if row["cache"] == step]
                return _TAKE[source["take"]](float(row[way[at + 1]]) for row in rows)
            found = found[step]
        except (KeyError, IndexError, TypeError):
            raise CheckFailed(f"{name} has no {' / '.join(map(str, way))}: '{step}' is missing") from None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise CheckFailed(f"{name}: {' / '.join(map(str, way))} is no number but {found!r}")
    return float(found) * float(source.get("times", 1))


def table_in(text: str) -> list[str]:
    """The lines between the marks.

    Raises:
        CheckFailed: when they are not there once each, in this order.
    """
    lines = text.splitlines()
    if lines.count(BEGIN) != 1 or lines.count(END) != 1 or lines.index(BEGIN) > lines.index(END):
        raise CheckFailed(f"the README's table must stand between '{BEGIN}' and '{END}', a line each")
    return [line for line in lines[lines.index(BEGIN) + 1 : lines.index(END)] if line.strip()]


def differences(said: Sequence[str], expected: Sequence[str]) -> list[str]:
    """One sentence for each line that is not what the results say."""
    return [
        f"the README says   {there or '(nothing)'}\n  the results say   {right or '(nothing)'}"
        for there, right in zip_longest(said, expected)
        if there != right
    ]


def with_table(text: str, table: Sequence[str]) -> str:
    """The README's text with this table between the marks."""
    table_in(text)
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n" + "\n".join(table) + f"\n\n{END}{after}"


def print_beside(committed: Sequence[str], new: Sequence[str]) -> None:
    """Print the figures of two tables side by side."""
    for old, now in zip(committed[len(_HEADER) :], new[len(_HEADER) :], strict=True):
        label, figure = (cell.strip() for cell in old.strip("|").rsplit("|", 1))
        print(f"{label}\n    committed {figure}, now {now.strip('|').rsplit('|', 1)[1].strip()}")


def main(argv: Sequence[str] | None = None) -> int:
    """Check, or write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into the README")
    parser.add_argument("--new", type=Path, metavar="DIR", help="show the results of a new run beside the README's too")
    parser.add_argument("--readme", type=Path, default=README)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    try:
        expected = expected_table(arguments.rows, arguments.results)
        text = arguments.readme.read_text(encoding="utf-8")
        if arguments.write:
            arguments.readme.write_text(with_table(text, expected), encoding="utf-8")
            return 0
        wrong = differences(table_in(text), expected)
        new = None if arguments.new is None else expected_table(arguments.rows, arguments.new)
    except CheckFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if new is not None:
        print_beside(expected, new)
    for difference in wrong:
        print(difference, file=sys.stderr)
    if wrong:
        print("the README disagrees with its results; python -m benchmarks.readme_check --write", file=sys.stderr)
        return 1
    print(f"{arguments.readme.name} agrees with its results: {len(expected) - len(_HEADER)} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
