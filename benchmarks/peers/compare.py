"""Puts the results of `benchmarks/peers/run.sh` side by side, as Markdown.

python -m benchmarks.peers.compare OUT
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

UNKNOWN = "–"
AGENT_TURNS = (1, 5, 10)


def rows(out: Path, workload: str) -> dict[str, dict[str, Any]]:
    """The result of every engine that has one, by its name."""
    found = {path.parents[1].name: path for path in sorted(out.glob(f"*/{workload}/result.json"))}
    return {engine: json.loads(path.read_text(encoding="utf-8")) for engine, path in found.items()}


def agent_table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Time to the first token at some turns, and what was computed."""
    heads = [f"turn {turn}" for turn in AGENT_TURNS]
    lines = ["| engine | " + " | ".join(heads) + " | p99 | a token | A | a run |", "|---|" + "--:|" * (len(heads) + 4)]
    for engine, result in results.items():
        by_turn = {turn["turn"]: turn["times"]["ttft"] for turn in result["turns"]}
        ttft = [seconds(by_turn[turn]["median"]) if turn in by_turn else UNKNOWN for turn in AGENT_TURNS]
        cells = [*ttft, seconds(result["times"]["ttft"]["p99"]), *_rest(result)]
        lines.append(f"| {engine} | " + " | ".join(cells) + " |")
    return lines


def branch_table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Time to the first token at the first level, where the root is cold, and at all others."""
    lines = ["| engine | cold root | all | p99 | a token | A | a run |", "|---|" + "--:|" * 6]
    for engine, result in results.items():
        first, every = result["turns"][0]["times"]["ttft"], result["times"]["ttft"]
        cells = [seconds(first["median"]), seconds(every["median"]), seconds(every["p99"]), *_rest(result)]
        lines.append(f"| {engine} | " + " | ".join(cells) + " |")
    return lines


def _rest(result: dict[str, Any]) -> list[str]:
    amplification, itl = result["counts"]["amplification"], result["times"]["itl"]
    return [
        UNKNOWN if itl is None else f"{1e3 * itl['median']['median']:.1f} ms",
        UNKNOWN if amplification is None else f"{amplification:.3f}",
        f"{result['rates']['seconds']['median']:.1f} s",
    ]


def seconds(figure: dict[str, float]) -> str:
    """A figure with its range."""
    if figure["repeats"] == 1:
        return f"{figure['median']:.2f} s"
    return f"{figure['median']:.2f} s ({figure['min']:.2f}–{figure['max']:.2f})"


def main() -> None:
    """Print the tables of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=Path)
    out = parser.parse_args().out
    for name, make in (("agent", agent_table), ("branch", branch_table)):
        results = rows(out, name)
        if results:
            print(f"\n{name}: time to the first token, median of runs and their range\n")
            print("\n".join(make(results)))


if __name__ == "__main__":
    main()
