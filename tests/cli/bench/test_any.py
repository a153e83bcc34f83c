"""`mainstem bench any` as a user types it, against a server with a tiny model and against odd ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.cli.main import main
from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.bench.fake_server import Habits, fake_server

SMALL = ("--vocab-size", "250", "--scale", "0.02", "--turns", "2", "--branches", "3", "--depth", "2", "--repeats", "2")


@pytest.fixture(scope="module")
def url(tiny_model: Path) -> Iterator[str]:
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="4MiB", device="cpu"))
    with BackgroundServer(engine, ServerConfig(port=0, drain_seconds=0)) as running:
        yield f"{running.url}/v1"


def test_both_workloads_run_and_are_written(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "any", "--base-url", url, "--out", str(tmp_path), *SMALL]) == 0
    shown = capsys.readouterr().out
    assert "prompts are token ids" in " ".join(shown.split())
    assert "agent, run 2 times" in shown
    for name in ("agent", "branch"):
        document = json.loads((tmp_path / name / "result.json").read_text(encoding="utf-8"))
        assert document["workload"]["name"] == name
        assert document["counts"]["amplification"] == 1.0
        assert not document["was_warm"]
        assert (tmp_path / name / "ttft.svg").exists()
        assert (tmp_path / name / "prefill.svg").exists()


def test_the_same_tokens_again_are_said_to_be_warm(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for expected in (False, True):
        assert main(["bench", "any", "--base-url", url, "--workload", "branch", "--seed", "7", *SMALL]) == 0
        assert ("Not cold" in capsys.readouterr().out) == expected


def test_a_server_that_takes_text_alone_is_given_text(capsys: pytest.CaptureFixture[str]) -> None:
    habits = Habits(takes_ids=False, takes_extensions=False)
    with fake_server(habits) as url:
        assert main(["bench", "any", "--base-url", url, *SMALL]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "prompts are text, a word a token" in shown
    assert "takes OpenAI's fields only" in shown
    assert isinstance(habits.asked[-1]["prompt"], str)


def test_a_workload_that_the_server_has_no_room_for_is_refused_before_it_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    habits = Habits(context=600)
    with fake_server(habits) as url:
        assert main(["bench", "any", "--base-url", url, "--scale", "0.1"]) == 2
    assert "there is room for 600" in capsys.readouterr().err
    assert len(habits.asked) == 1


def test_a_server_that_fails_ends_the_run_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(Habits(fails_at=5)) as url:
        assert main(["bench", "any", "--base-url", url, *SMALL]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: call ")
    assert told.endswith("gave up: out of memory\n")


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "any", "--base-url", "http://127.0.0.1:9/v1"]) == 1
    assert "is the server running?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "the following arguments are required: --base-url"),
        (["--base-url", "127.0.0.1:8000"], "--base-url: '127.0.0.1:8000' does not begin with http"),
        (["--base-url", "http://x", "--workload", "chat"], "--workload: there is no 'chat' here; choose from agent,"),
        (["--base-url", "http://x", "--timeout", "0"], "--timeout must be a number above 0, got '0'"),
        (["--base-url", "http://x", "--repeats", "0"], "--repeats must be at least 1, got 0"),
    ],
)
def test_wrong_flags_are_one_line_and_exit_code_2(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "any", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"error: {complaint}")
