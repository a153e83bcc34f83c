"""`mainstem explain`: cards, from a file of requests and from a server."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.cli.card import WIDTH, card
from mainstem.cli.explain import configure
from mainstem.cli.main import main
from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.explain import MissCause
from mainstem.server import BackgroundServer

SYSTEM = (
    "You are a coding agent. Now it is {}. Read files before you change them, run the tests after every change, and "
    "answer in short sentences that anybody can follow."
)
QUESTION = {"role": "user", "content": "Find the river that runs to the sea, and say where it begins."}
REPLY = {"role": "assistant", "content": "The Danube begins in the Black Forest."}
NEXT = {"role": "user", "content": "And now the same for another river, please."}
Explain = Callable[..., tuple[int, str, str]]


@pytest.fixture
def explain(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Runs the command; its exit code, output and complaints."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["explain", *arguments, "--model", str(tiny_model)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def requests(tmp_path: Path, *bodies: dict[str, Any]) -> str:
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies), encoding="utf-8")
    return str(path)


def chat(clock: str, *messages: dict[str, str]) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "system", "content": SYSTEM.format(clock)}, *messages]}


def test_a_file_gives_a_line_for_each_request_and_a_card_for_what_was_lost(explain: Explain, tmp_path: Path) -> None:
    path = requests(
        tmp_path,
        chat("10:00:01", QUESTION),
        chat("10:00:01", QUESTION, REPLY, NEXT),
        chat("10:07:09", QUESTION, REPLY, NEXT),
    )
    code, out, _ = explain(path)
    lines = out.splitlines()
    assert code == 0
    assert [line[:9] for line in lines[:3]] == ["line    1", "line    2", "line    3"]
    assert "diverged (timestamp)" in lines[2]
    assert "line 3: " in out
    assert "10:00:01" in out
    assert "10:07:09" in out
    assert "fix: leave the clock out" in out
    assert "line 1: " not in out


def test_json_is_what_the_endpoint_says(explain: Explain, tmp_path: Path) -> None:
    path = requests(tmp_path, chat("10:00:01", QUESTION), chat("10:00:01", QUESTION, REPLY, NEXT))
    _, out, _ = explain(path, "--json")
    first, second = map(json.loads, out.splitlines())
    assert (first["line"], second["line"]) == (1, 2)
    assert first["object"] == "cache.explanation"
    # The reply came from the model, so its tokens were cached.
    assert second["cached_tokens"] > first["prompt_tokens"]
    assert [cause["cause"] for cause in second["causes"]] == ["first_seen"]


def test_bodies_of_other_apis_are_read(explain: Explain, tmp_path: Path) -> None:
    system, said = SYSTEM.format("noon"), [{"role": "user", "content": QUESTION["content"]}]
    path = requests(
        tmp_path,
        {"model": "any", "max_tokens": 9, "system": system, "messages": said},
        {"model": "any", "instructions": system, "input": said},
        {"model": "any", "prompt": "Once upon a time"},
    )
    _, out, _ = explain(path, "--json")
    causes = [{cause["cause"] for cause in json.loads(line)["causes"]} for line in out.splitlines()]
    assert causes == [{"first_seen"}, {"rounding"}, {"first_seen"}]


@pytest.mark.parametrize("group", [{"cache_hints": {"session_id": "one"}}, {"prompt_cache_key": "one"}])
def test_requests_are_compared_within_their_session_or_key(
    explain: Explain, tmp_path: Path, group: dict[str, Any]
) -> None:
    turns = (QUESTION, REPLY, NEXT)
    path = requests(
        tmp_path,
        {**chat("10:00:01", *turns), **group},
        chat("10:00:07", *turns),  # the closest, but somebody else's
        {**chat("10:00:08", *turns), **group},
    )
    _, out, _ = explain(path, "--json")
    assert json.loads(out.splitlines()[-1])["compared_with"]["id"] == "line 1"


def test_what_a_session_leaves_when_it_ends_goes_first(explain: Explain, tmp_path: Path) -> None:
    def of(session: str, *, end: bool) -> dict[str, Any]:
        said = {"role": "user", "content": f"{session} b c d e f g h " * 12}
        return {"messages": [said], "cache_hints": {"session_id": session, "end": end}}

    kept, ended = of("kept", end=False), of("ended", end=True)
    path = requests(tmp_path, kept, ended, of("next", end=False), kept)
    _, out, _ = explain(path, "--pool-tokens", "560", "--json")
    assert [cause["cause"] for cause in json.loads(out.splitlines()[-1])["causes"]] == ["rounding"]


def test_a_pool_that_is_too_small_evicts(explain: Explain, tmp_path: Path) -> None:
    others = chat("noon", {"role": "user", "content": "a b c d e f g h " * 20})
    path = requests(
        tmp_path, chat("noon", QUESTION), {**others, "messages": others["messages"][1:]}, chat("noon", QUESTION)
    )
    _, out, _ = explain(path, "--pool-tokens", "420", "--json")
    causes = {cause["cause"]: cause for cause in json.loads(out.splitlines()[-1])["causes"]}
    assert causes["evicted"]["room_for"] == "line 2"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no requests"),
        ("no json\n", "line 1 is no request"),
        ('{"messages": 5}\n', "line 1 is no request"),
        ('{"prompt": "a", "prompt_cache_key": []}\n', "line 1 is no request to explain: 'prompt_cache_key' must"),
        ('{"prompt": "a"}\n{"a": 1,}\n', "line 2 is no request to explain: it is not JSON: "),
        ("[" * 100_000 + "\n", "line 1 is no request to explain: it is nested too deeply"),
        ('{"messages": [{"role": null}]}\n', "function, got null"),
        ('{"prompt": "a", "cache_hints": {"session_id": ""}}\n', "cache_hints.session_id must have 1 to 256"),
    ],
)
def test_files_that_cannot_be_used(explain: Explain, tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text, encoding="utf-8")
    code, _, err = explain(str(path))
    assert code == 2
    assert complaint in err


def test_a_line_that_is_no_json_has_one_number(explain: Explain, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a"}\n{no}\n', encoding="utf-8")
    _, _, err = explain(str(path))
    assert err.startswith("error: line 2 is no request")
    assert err.count("line") == 1
    assert err.endswith("at character 2\n")


def test_a_text_may_have_separators_of_lines(explain: Explain, tmp_path: Path) -> None:
    path = tmp_path / "separators.jsonl"
    path.write_text('{"prompt": "a\u2028b"}\n', encoding="utf-8")
    assert explain(str(path))[0] == 0


def test_a_pool_for_no_prompt_is_a_wrong_flag_that_names_the_line(explain: Explain, tmp_path: Path) -> None:
    path = requests(tmp_path, {"prompt": "a"}, {"prompt": "a b c d e f g h " * 9}, {"prompt": "a b"})
    code, out, err = explain(path, "--pool-tokens", "20")
    assert (code, out) == (2, "")
    needed = int(err.split()[-2])
    assert (
        err == f"error: --pool-tokens 20 is too small for the prompt of line 2, which needs a pool of {needed} tokens\n"
    )
    assert explain(path, "--pool-tokens", str(needed - 1))[0] == 2
    assert explain(path, "--pool-tokens", str(needed))[0] == 0


def test_a_model_that_is_none_is_a_wrong_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", requests(tmp_path, chat("noon", QUESTION)), "--model", "nope"]) == 2
    assert "There is no model 'nope'" in capsys.readouterr().err


def test_a_wrong_address_in_the_environment_is_named(explain: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "notaurl")
    code, _, err = explain("--last")
    assert code == 2
    assert err.startswith("error: OPENAI_BASE_URL: 'notaurl' does not begin with http")


def test_requests_may_come_from_standard_input(explain: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(chat("noon", QUESTION))))
    code, out, _ = explain("-")
    assert code == 0
    assert out.startswith("line    1")


def test_exit_codes_tell_a_wrong_file_from_a_server_that_does_not_answer(explain: Explain, tmp_path: Path) -> None:
    assert explain(str(tmp_path / "none.jsonl"))[0] == 2
    assert explain("--last", "--base-url", "http://127.0.0.1:9/v1")[0] == 1


def test_it_needs_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", requests(tmp_path, chat("noon", QUESTION)), "--model", "none"]) == 2
    assert "needs the tokenizer" in capsys.readouterr().err


def test_usage(explain: Explain) -> None:
    assert explain()[0] == 2
    assert explain("--last", "chatcmpl-1")[0] == 2


def test_a_servers_requests(explain: Explain, tiny_model: Path) -> None:
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory="4MiB", device="cpu"))
    with BackgroundServer(engine, ServerConfig(port=0, drain_seconds=0)) as server:
        body = {"prompt": [5, *range(100, 140)], "max_tokens": 2}
        reply = httpx.post(f"{server.url}/v1/completions", json=body).json()
        for what in (reply["id"], "--last"):
            code, out, _ = explain(what, "--base-url", f"{server.url}/v1")
            assert code == 0
            assert out.startswith(f"{reply['id']}: 0 of 41 prompt tokens were cached")
        code, _, err = explain("never", "--base-url", f"{server.url}/v1")
        assert code == 1
        assert "remembered" in err


@pytest.mark.parametrize("cause", list(MissCause))
def test_every_cause_has_a_card(cause: MissCause) -> None:
    told: dict[str, Any] = {
        "id": "chatcmpl-1",
        "prompt_tokens": 1200,
        "cached_tokens": 200,
        "uncached_tokens": 1000,
        "prefill_seconds": 2.0,
        "compared_with": None,
        "first_difference": None,
        "causes": [
            {
                "cause": cause.value,
                "first_token": 200,
                "tokens": 1000,
                "seconds": 2.0,
                "fix": cause.fix,
                "reason": "lru",
                "at": 0,
                "idle_seconds": 300,
                "computed_by": "chatcmpl-2",
            }
        ],
    }
    text = "\n".join(card(told))
    assert cause.label in text
    assert "1,000" in text
    assert "2.0 s" in text
    assert cause.fix.split()[0] in text if cause.fix else "fix" not in text


@pytest.mark.parametrize(("first", "pages"), [(31, False), (16, True)])
def test_a_card_says_why_known_tokens_were_computed(first: int, pages: bool) -> None:
    """The last token of 32 is no matter of pages; where more than it was computed, they are."""
    rounding = {"cause": "rounding", "first_token": first, "tokens": 32 - first, "seconds": 0, "fix": ""}
    told = {
        "id": "chatcmpl-1",
        "prompt_tokens": 32,
        "cached_tokens": first,
        "uncached_tokens": 32 - first,
        "prefill_seconds": 0,
        "causes": [rounding],
    }
    text = "\n".join(card(told))
    assert "the last token is computed all the same" in text
    assert ("whole pages" in text) == pages


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({}, None),
        ({"MAINSTEM_API_KEY": "ours", "OPENAI_API_KEY": "other", "OPENAI_BASE_URL": "http://x/v1"}, "ours"),
        ({"OPENAI_API_KEY": "set", "OPENAI_BASE_URL": "http://x/v1"}, "set"),
        ({"OPENAI_API_KEY": "for OpenAI alone"}, None),
        ({"MAINSTEM_API_KEY": "first, second"}, "first"),
    ],
)
def test_the_key_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], key: str | None
) -> None:
    for name in ("MAINSTEM_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    configure(parser)
    assert parser.parse_args(["--last"]).api_key == key


def test_an_id_in_a_card_is_not_broken() -> None:
    """It stands where the line ends, and has a hyphen at which it could be."""
    reply_id = "chatcmpl-de9b0b2e3f984770ab6d8d6945955509"
    evicted = {
        "cause": "evicted",
        "tokens": 31,
        "seconds": 0,
        "fix": "",
        "reason": "ended",
        "at": 0,
        "idle_seconds": 30,
        "room_for": reply_id,
    }
    told = {
        "id": "chatcmpl-1",
        "prompt_tokens": 32,
        "cached_tokens": 1,
        "uncached_tokens": 31,
        "prefill_seconds": 0,
        "causes": [evicted],
    }
    lines = list(card(told))
    assert any(reply_id in line for line in lines)
    assert all(len(line) <= WIDTH for line in lines)
