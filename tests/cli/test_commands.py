"""`generate`, `chat`, `demo` and `serve` at work, on a tiny model."""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from mainstem.cli.main import main
from tests.cli.commands import environment, mainstem
from tests.support.tiny_models import make_tiny_model

POOL = ("--kv-memory", "64MiB")


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAINSTEM_API_KEY", raising=False)


# -- generate --------------------------------------------------------------------------------------------------------


def generate(model: Path, *arguments: str) -> int:
    return main(["generate", "--model", str(model), *POOL, "--max-tokens", "8", *arguments])


def test_generate_prints_the_reply_and_counts_tokens_elsewhere(
    roomy_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(roomy_model, "The river runs") == 0
    told = capsys.readouterr()
    assert told.out.endswith("\n")
    assert re.search(r"\d+ prompt tokens, [1-8] generated; first token after \d+\.\d\d s", told.err)


def test_generate_is_the_same_every_time(roomy_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replies = []
    for _ in range(2):
        generate(roomy_model, "The river runs")
        replies.append(capsys.readouterr().out)
    assert replies[0] == replies[1]


def test_a_dash_reads_the_prompt_from_standard_input(
    roomy_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(roomy_model, "The river runs")
    given = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The river runs\n")))
    generate(roomy_model, "-")
    assert capsys.readouterr().out == given


def test_raw_text_is_shorter_than_the_same_text_in_a_chat(
    roomy_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = []
    for flags in ([], ["--raw"]):
        generate(roomy_model, "The river runs", *flags)
        found = re.search(r"(\d+) prompt tokens", capsys.readouterr().err)
        assert found is not None
        lengths.append(int(found[1]))
    assert lengths[1] < lengths[0]


@pytest.mark.parametrize("prompt", ["\udcff", "-"])
def test_a_prompt_that_is_no_text_is_refused(
    prompt: str, roomy_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    assert generate(roomy_model, prompt) == 2
    assert capsys.readouterr().err == "error: the prompt is not UTF-8 text\n"


def test_a_prompt_too_long_is_one_line_with_both_lengths(roomy_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(roomy_model, "--max-model-len", "32", "river " * 100) == 1
    assert re.search(r"^error: .*at most 32 tokens.*has \d{3} tokens", capsys.readouterr().err, re.MULTILINE)


def test_a_setting_that_does_not_fit_the_model_is_named_by_its_flag(
    roomy_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(roomy_model, "--max-model-len", "999999", "hi") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: --max-model-len 999999 is more")


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert generate(tmp_path / "nothing", "hi") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert str(tmp_path / "nothing") in last


def test_a_model_without_a_chat_template_needs_raw_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_tiny_model(tmp_path / "plain")
    (model / "chat_template.jinja").unlink()
    vocabulary = (model / "tokenizer.json").read_text(encoding="utf-8")
    (model / "tokenizer.json").write_text(vocabulary.replace("<|im_start|>", "<|unused|>"), encoding="utf-8")
    assert generate(model, "hi") == 2
    assert "error: this model has no chat template; add --raw" in capsys.readouterr().err
    assert generate(model, "hi", "--raw") == 0


# -- chat ------------------------------------------------------------------------------------------------------------


def chat(model: Path, lines: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return main(["chat", "--model", str(model), *POOL, "--max-tokens", "6", *arguments])


COST = re.compile(r"\[(\d+) prompt tokens: (\d+) cached, (\d+) prefilled; first token after")


def test_chat_counts_cached_tokens_after_each_reply(
    roomy_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chat(roomy_model, "The river\nruns to the sea\n", monkeypatch, "--system", "You are a river.") == 0
    first, second = ([int(number) for number in found] for found in COST.findall(capsys.readouterr().out))
    assert first[1] == 0
    assert second[0] > first[0]
    assert second[1] >= first[0] - 1
    assert second[1] + second[2] == second[0]


def test_reset_begins_the_conversation_anew(
    roomy_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat(roomy_model, "The river\n/reset\nThe river\n", monkeypatch)
    first, second = ([int(number) for number in found] for found in COST.findall(capsys.readouterr().out))
    assert second[0] == first[0]
    assert second[2] == 1


def test_quit_leaves_the_rest_unread(
    roomy_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat(roomy_model, "/quit\nThe river\n", monkeypatch)
    assert not COST.search(capsys.readouterr().out)


def test_stats_add_up_the_replies(
    roomy_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat(roomy_model, "/stats\nThe river\n/stats\n/nonsense\n", monkeypatch)
    told = capsys.readouterr().out
    assert "Nothing yet." in told
    assert "1 reply: " in told
    assert "There is no /nonsense" in told


def test_chat_tells_when_no_server_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert main(["chat", "--base-url", f"http://127.0.0.1:{port}/v1"]) == 1
    assert f"error: no answer from http://127.0.0.1:{port}/v1" in capsys.readouterr().err


# -- demo ------------------------------------------------------------------------------------------------------------


def test_the_demo_plays_ten_turns_and_writes_what_it_measured(
    roomy_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "demo.json", tmp_path / "demo.svg"
    flags = ["--tokens", "2000", "--json", str(files[0]), "--svg", str(files[1])]
    assert main(["demo", "--model", str(roomy_model), *POOL, *flags]) == 0
    told = capsys.readouterr().out
    turns = json.loads(files[0].read_text(encoding="utf-8"))["turns"]
    assert [turn["turn"] for turn in turns] == list(range(1, 11))
    assert turns[0]["cached_tokens"] == 0
    for before, turn in pairwise(turns):
        assert turn["cached_tokens"] == before["prompt_tokens"] + before["completion_tokens"] - 1
        assert before["tool_calls"], "every reply but the last calls a tool"
    assert all(f"{turn['prompt_tokens']:,}" in told for turn in turns)
    assert "prefill amplification" in told
    assert "OPENAI_BASE_URL" in told
    assert ElementTree.parse(files[1]).getroot().tag.endswith("svg")


def test_the_demo_needs_no_more_than_80_columns(
    roomy_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main(["demo", "--model", str(roomy_model), *POOL, "--tokens", "2000"])
    # The lines after these are to be copied, so they are never broken.
    lines = capsys.readouterr().out.partition("Connect your own agent")[0].splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.endswith("×") for line in lines) == 10


def test_a_demo_longer_than_the_model_serves_is_refused(roomy_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", str(roomy_model), *POOL, "--max-model-len", "3000"]) == 2
    assert "error: --tokens must be at most 2808 here" in capsys.readouterr().err


# -- serve -----------------------------------------------------------------------------------------------------------


@contextmanager
def serving(model: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A running `mainstem serve`, its base URL, and the lines it printed until then."""
    command = [sys.executable, "-m", "mainstem", "serve", "--port", "0", "--model", str(model), *POOL, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(PYTHONUNBUFFERED="1")
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line)
                if found := re.search(r"Serving .* on (http://\S+)", line):
                    yield process, found[1], lines
                    break
            else:
                raise AssertionError(process.stderr.read() if process.stderr else "")
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_tells_its_memory_answers_and_stops_cleanly(roomy_model: Path, number: signal.Signals) -> None:
    with serving(roomy_model, "--served-model-name", "brook") as (process, base_url, lines):
        told = "".join(lines)
        assert re.search(r"KV pool  [\d,]+ tokens of (256|512) bytes: \d+ conversations of 16,384 tokens", told)
        assert "(size of the pool: --kv-memory)" in told
        listed = httpx.get(base_url + "/models").json()
        assert [model["id"] for model in listed["data"]] == ["brook"]
        process.send_signal(number)
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_port_in_use_is_told_before_the_model_loads(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = mainstem("serve", "--port", port, "--model", str(tmp_path / "no-model-here"))
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: port {port} on 127.0.0.1 is in use")
    assert ended.stderr.count("\n") == 1


# -- doctor ----------------------------------------------------------------------------------------------------------


def doctor(model: Path, *arguments: str) -> int:
    return main(["doctor", "--model", str(model), *arguments])


def test_doctor_finds_nothing_wrong_with_a_roomy_pool(roomy_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(roomy_model, *POOL) == 0
    told, progress = capsys.readouterr()
    assert told.startswith("ok")
    assert progress.splitlines() == ["starting", "loading the model", "timing a step"]
    assert "conversations that fit" in told
    assert re.search(r"a step of \d+ prompt tokens takes [\d,]+ ms", told)
    assert "WARN" not in told


def test_doctor_says_what_to_change_and_fails(roomy_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(roomy_model, *POOL, "--max-num-batched-tokens", "64", "--prefix-cache", "none") == 1
    told = capsys.readouterr().out
    assert "--prefix-cache radix keeps it" in told
    assert "--max-num-batched-tokens 256" in told
