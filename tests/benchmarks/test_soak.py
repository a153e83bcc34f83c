"""The soak, for a few seconds: everything but the growth of memory, which needs minutes to mean anything."""

from __future__ import annotations

from pathlib import Path

from benchmarks.soak import Sample, Soaked, faults, soak

SECONDS = 12


def test_random_clients_leave_an_intact_tree_and_are_all_answered(tmp_path: Path) -> None:
    soaked = soak(tmp_path, seconds=SECONDS, seed=1, check_every_s=1)
    assert faults(soaked, memory=False) == []
    assert soaked.engine["evicted"] > 5 * soaked.engine["capacity"]
    assert soaked.checks > 3
    outcomes = soaked.clients["outcomes"]
    for kind in ("chat: streamed", "messages: whole", "responses: streamed", "completions: whole", "leave: left"):
        assert outcomes[kind] > 0
    assert 0 < soaked.clients["cached_tokens"] < soaked.clients["prompt_tokens"]


def test_growth_after_the_warm_up_is_a_fault() -> None:
    def growing(bytes_a_minute: int) -> Soaked:
        samples = [Sample(60.0 * minute, 2**29 + bytes_a_minute * max(minute, 5), 0) for minute in range(20)]
        return Soaked({"num_faults": 0}, samples, 20, {}, [])

    assert faults(growing(2**10)) == []
    assert faults(growing(2**20)) == ["memory grew by 1.00 MiB a minute after the warm-up"]


def test_a_wrong_answer_is_a_fault() -> None:
    soaked = Soaked({"num_faults": 1, "faults": [{"status": 500}]}, [Sample(0.0, 0, 0)], 1, {}, ["a leak"])
    assert faults(soaked) == ["a leak", "answer: {'status': 500}"]
