"""Tests that the examples run to their end, on a tiny model, and say what they shared."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from examples import best_of_n, mcts, sub_agents, tree_of_thoughts

Main = Callable[[Sequence[str]], None]
RUNS: dict[str, tuple[Main, list[str]]] = {
    "tree_of_thoughts": (tree_of_thoughts.main, ["--breadth", "2", "--samples", "2", "--moves", "2"]),
    "mcts": (mcts.main, ["--rounds", "6", "--rollouts", "2", "--phrase", "2", "--length", "3", "--children", "2"]),
    "best_of_n": (best_of_n.main, ["--n", "3", "--max-tokens", "4"]),
    "sub_agents": (sub_agents.main, ["--max-tokens", "3", "--document", "{document}"]),
}


@pytest.mark.parametrize("name", sorted(RUNS))
def test_an_example_runs_and_reports_what_it_shared(
    name: str, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "document.txt"
    document.write_text("The river runs to the sea. The sea gives it back as rain.")
    main, arguments = RUNS[name]
    main(["--model", str(tiny_model), *(argument.format(document=document) for argument in arguments)])
    gc.collect()  # a branch that was not dropped would warn
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("prompt tokens computed")
    assert lines[-1].startswith("KV memory at its peak")
    for line in (lines[-3], lines[-1]):
        assert float(line.rpartition(", ")[2].removesuffix(" times as much")) > 1.5


@pytest.mark.parametrize("name", sorted(RUNS))
def test_an_example_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        RUNS[name][0](["--help"])
    assert end.value.code == 0
    assert f"python examples/{name}.py" in capsys.readouterr().out


def test_the_moves_of_the_game_are_exact() -> None:
    legal = tree_of_thoughts.moves([Fraction(3), Fraction(8)])
    assert legal["3 * 8"] == ("3 * 8 = 24 (left: 24)", (Fraction(24),))
    assert legal["3 / 8"] == ("3 / 8 = 3/8 (left: 3/8)", (Fraction(3, 8),))
    assert len(legal) == 8
    assert "5 / 0" not in tree_of_thoughts.moves([Fraction(0), Fraction(5)])
