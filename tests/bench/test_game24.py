"""Tests of the recorded tree of thoughts: the calls are those that the log tells of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainstem.bench.workload import Workload
from mainstem.bench.workloads.game24 import game24
from mainstem.errors import ConfigError
from mainstem.tokens import Tokenizer

ROOT = Path(__file__).parents[2]
LOG = (
    ROOT.parent
    / "shared/data/branching/tree-of-thought-llm/logs/game24/gpt-4_0.7_propose1_value3_greedy5_start900_end1000.json"
)
FIRST = "1 + 2 = 3 (left: 3 3 4)\n"
SECOND = "3 * 4 = 12 (left: 2 12)\n"
STEPS = [
    {"x": "1 2 3 4", "ys": [""], "new_ys": [FIRST, SECOND, FIRST], "values": [60.0, 21.001, 0]},
    {
        "x": "1 2 3 4",
        "ys": [FIRST, SECOND],
        "new_ys": [f"{FIRST}3 + 3 = 6 (left: 4 6)\n", f"{SECOND}2 * 12 = 24 (left: 24)\n"],
        "values": [1.002, 2.0],
    },
    {
        "x": "1 2 3 4",
        "ys": [f"{SECOND}2 * 12 = 24 (left: 24)\n"],
        "new_ys": [f"{SECOND}2 * 12 = 24 (left: 24)\nAnswer: 2 * (3 * 4) = 24\n"],
        "values": [0.003],
    },
]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model)


@pytest.fixture
def workload(tmp_path: Path, tokenizer: Tokenizer) -> Workload:
    log = tmp_path / "log.json"
    log.write_text(json.dumps([{"steps": STEPS}] * 2))
    return game24(log, tokenizer, problems=2)


def texts(workload: Workload, tokenizer: Tokenizer) -> list[tuple[Any, ...]]:
    """For each call of the first problem: turn, what it waits for, the end of its prompt and its reply."""
    return [
        (
            call.turn,
            call.after,
            "\n".join(tokenizer.decode(call.appended).splitlines()[-3:]),
            None if call.reply is None else tokenizer.decode(call.reply),
        )
        for call in workload.calls
        if call.session == 0
    ]


def test_calls_are_those_of_the_search(workload: Workload, tokenizer: Tokenizer) -> None:
    calls = texts(workload, tokenizer)
    assert calls[0][:2] == (1, None)
    assert "Numbers: 1 2 3 4" in calls[0][2]
    assert calls[0][3] == "\n".join((FIRST + SECOND + FIRST).splitlines())
    values = calls[1:7]  # the third proposal is the first again and is not judged
    assert [call[:2] for call in values] == [(2, 0)] * 6
    assert [call[2].endswith("impossible\n3 3 4") for call in values] == [True] * 3 + [False] * 3
    assert [call[3] for call in values] == ["sure"] * 3 + ["sure", "likely", "impossible"]
    assert [(call[:2], call[3]) for call in calls[7:9]] == [
        ((3, 6), "3 + 3 = 6 (left: 4 6)"),
        ((3, 6), "2 * 12 = 24 (left: 24)"),
    ]
    assert [call[1] for call in calls[9:15]] == [7] * 3 + [8] * 3
    assert [call[3] for call in calls[9:15]] == ["likely", "impossible", "impossible", "likely", "likely", None]


def test_once_24_is_left_the_answer_is_asked_for_and_judged(workload: Workload, tokenizer: Tokenizer) -> None:
    calls = texts(workload, tokenizer)
    assert calls[15][2].endswith("2 * 12 = 24 (left: 24)")
    assert calls[15][3] == "Answer: 2 * (3 * 4) = 24"
    assert all("Answer: 2 * (3 * 4) = 24\nJudge:" in call[2] for call in calls[16:])
    assert [call[3] for call in calls[16:]] == ["impossible"] * 3


def test_problems_run_side_by_side(workload: Workload) -> None:
    assert workload.num_sessions == 2
    half = len(workload.calls) // 2
    one, two = workload.calls[:half], workload.calls[half:]
    assert [call.after is None for call in two] == [call.after is None for call in one]
    assert [call.after for call in two[1:] if call.after is not None] == [
        call.after + half for call in one[1:] if call.after is not None
    ]


def test_what_is_no_log_or_not_in_it_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps([{"steps": STEPS}]))
    with pytest.raises(ConfigError, match="has 1 problems"):
        game24(log, tokenizer, problems=2)
    log.write_text("[1]")
    with pytest.raises(ConfigError, match="no log"):
        game24(log, tokenizer)


@pytest.mark.skipif(not LOG.is_file(), reason="needs the recorded log, which is not part of the project")
def test_the_real_log_gives_ten_searches(tokenizer: Tokenizer) -> None:
    workload = game24(LOG, tokenizer)
    problems = json.loads(LOG.read_text())[:10]
    assert workload.num_sessions == 10
    proposals = [call for call in workload.calls if call.turn % 2]
    assert len(proposals) == sum(len(set(step["ys"])) for problem in problems for step in problem["steps"])
    values = [call for call in workload.calls if call.turn % 2 == 0]
    judged = sum(len(set(step["new_ys"])) for problem in problems for step in problem["steps"])
    assert len(values) == 3 * judged
    assert len(workload.calls) > 2000
    first = json.loads(LOG.read_text())[0]["steps"][0]
    reply = workload.calls[0].reply
    assert reply is not None
    assert tokenizer.decode(reply) == "".join(first["new_ys"]).rstrip("\n")
