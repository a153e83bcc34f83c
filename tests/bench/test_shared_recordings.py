"""Tests on recordings of real agents, where they lie beside the repository."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from mainstem.bench.distinct import endless_cache
from mainstem.bench.drive import drive
from mainstem.bench.recordings import Recording, read_recordings
from mainstem.bench.run import VirtualArms, ample_pool
from mainstem.bench.workloads.trajectories import tokenize, trajectories
from mainstem.config import EngineConfig
from mainstem.tokens import Tokenizer
from tests.support.tiny_models import save_tiny_tokenizer

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "trajectories"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the recordings in ../shared/data/trajectories")


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    return read_recordings([FOLDER]).recordings


def test_all_that_can_be_replayed_is_read(recordings: list[Recording]) -> None:
    turns: Counter[str] = Counter()
    for recording in recordings:
        turns[recording.source] += len(recording.calls)
    assert Counter(recording.source for recording in recordings) == {
        "tau-bench": 60,
        "cassettes": 47,
        "swe-agent": 13,
        "openhands": 2,
        "messages": 2,
        "pi": 1,
    }
    assert turns == {
        "tau-bench": 790,
        "pi": 469,
        "swe-agent": 126,
        "cassettes": 94,
        "messages": 12,
        "openhands": 10,
    }


def test_compactions_shorten_the_prompts_of_pi(recordings: list[Recording]) -> None:
    (session,) = (recording for recording in recordings if recording.source == "pi")
    lengths = [len(call.messages) for call in session.calls]
    assert sum(after < before for before, after in pairwise(lengths)) == 2


def test_a_history_that_was_edited_costs_more_than_the_ceiling_of_one_that_was_not(
    recordings: list[Recording], tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(save_tiny_tokenizer(tmp_path))
    edited = [
        recording
        for recording in recordings
        if any(a.messages != b.messages[: len(a.messages)] for a, b in pairwise(recording.calls))
    ]
    sessions = tokenize([recording for recording in edited if recording.source == "swe-agent"], tokenizer).sessions
    assert len(sessions) == 1
    assert 0 < sum(not turn.extends for turn in sessions[0].turns[1:]) < len(sessions[0].turns) - 1
    made = trajectories(sessions, tokenizer.vocab_size).workload
    config = EngineConfig(max_num_batched_tokens=8192)
    result = drive(made, VirtualArms(config, ample_pool(made), made.vocab_size).machine("radix"), watch_memory=False)
    endless = endless_cache(made, [record.reply for record in result.records])
    prefilled = sum(record.prefilled_tokens for record in result.records)
    assert prefilled == pytest.approx(int(endless.new.sum()), rel=0.01)
