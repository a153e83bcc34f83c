"""Recordings of real agents, replayed with replies that no tokenizer would cut that way: nothing is lost of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay_history import MOST_AMPLIFICATION, Replayed, replay
from mainstem.bench.recordings import Recording, read_recordings
from mainstem.model import ModelFiles
from mainstem.tokens import Tokenizer

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "trajectories"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the recordings in ../shared/data/trajectories")
MOST_TURNS = 40


@pytest.fixture(scope="module")
def some() -> list[Recording]:
    """One recording of each agent that calls tools, and one of each that writes; the longest ones are cut."""
    found: dict[tuple[str, bool], Recording] = {}
    for recording in read_recordings(
        [FOLDER / "tau-bench", FOLDER / "swe-agent", FOLDER / "mini-swe-agent"]
    ).recordings:
        calls = any(call.reply.get("tool_calls") for call in recording.calls)
        found.setdefault((recording.source, calls), recording._replace(calls=recording.calls[:MOST_TURNS]))
    return list(found.values())


def test_there_is_no_break(some: list[Recording], embedded_model: ModelFiles) -> None:
    tokenizer = Tokenizer.load(embedded_model.folder)
    result = replay(some, tokenizer)
    assert result.breaks == 0
    assert result.continuing > 20
    assert result.kept > 0
    assert result.amplification <= MOST_AMPLIFICATION


def test_without_a_history_there_would_be_breaks(some: list[Recording], embedded_model: ModelFiles) -> None:
    result: Replayed = replay(some[:1], Tokenizer.load(embedded_model.folder), remembers=False)
    assert result.breaks == result.continuing > 0
    assert result.amplification > MOST_AMPLIFICATION
