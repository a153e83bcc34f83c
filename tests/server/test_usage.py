"""What is told of a prompt's tokens adds up, however its replies were scheduled: one story, wherever it is told."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.engine.support import kv_memory_for
from tests.server.conftest import MODEL, metric
from tests.server.test_explain import counts

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")
TEXT = "the river runs to the sea and back again under a tree of tokens where nobody sleeps before noon"


class Told(NamedTuple):
    """What one HTTP reply says of its prompts, whichever API it is of."""

    prompt: int
    cached: int
    written: int
    misses: dict[str, int]


class Asked(NamedTuple):
    """A request, how many replies it has to how many prompts, and what it got: the last object that has a usage."""

    num_replies: int
    num_prompts: int
    headers: httpx.Headers
    body: dict[str, Any]


@contextmanager
def serving(tiny_model: Path, **settings: Any) -> Iterator[httpx.Client]:
    config = EngineConfig(
        model=str(tiny_model), **{"kv_memory": "4MiB", "kv_dtype": "float32", "device": "cpu", **settings}
    )
    server = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)
    with (
        BackgroundServer(AsyncEngine.load(config), server) as running,
        httpx.Client(base_url=running.url, timeout=60) as client,
    ):
        yield client


def told(body: dict[str, Any]) -> Told:
    usage = body["usage"]
    misses = usage["mainstem"]["misses"]
    if "cache_read_input_tokens" in usage:
        cached, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        return Told(usage["input_tokens"] + written + cached, cached, written, misses)
    kind = "prompt" if "prompt_tokens" in usage else "input"
    details = usage[f"{kind}_tokens_details"]
    return Told(usage[f"{kind}_tokens"], details["cached_tokens"], details["cache_write_tokens"], misses)


def check(asked: Asked) -> Told:
    """A reply agrees with itself, with its headers, and with its record."""
    found = told(asked.body)
    assert sum(found.misses.values()) == found.prompt - found.cached
    assert found.written == (0 if "never_cached" in found.misses else found.prompt - found.cached)
    header = asked.headers.get("x-cached-tokens")
    assert header in ({f"{found.cached}/{found.prompt}"} if asked.num_prompts == 1 else {header, None})
    cause = asked.headers.get("x-cache-miss-cause")
    assert (cause is None) == (header is None)
    if cause is not None:
        most = max(found.misses.values(), default=0)
        assert found.misses.get(cause.partition(":")[0], 0) == most
        assert (cause == "none") == (most == 0)
    return found


def ask(http: httpx.Client, random: random.Random) -> Asked:
    """A random request through a random API."""
    path = random.choice(PATHS)
    texts = [TEXT[: random.randrange(3, len(TEXT))] for _ in range(random.choice((1, 1, 2)))]
    many = path in PATHS[:2]
    n = random.choice((1, 2, 5)) if many else 1
    stream = random.random() < 0.4
    replies = n
    body: dict[str, Any] = {"model": MODEL, "stream": stream, "ignore_eos": True, "temperature": 0}
    body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = random.randrange(1, 40)
    if many:
        body |= {"n": n, **({"stream_options": {"include_usage": True}} if stream else {})}
    if path == "/v1/completions":
        body["prompt"] = texts
        if not stream:
            replies = body["best_of"] = n + random.randrange(3)
    elif path == "/v1/responses":
        body["input"] = texts[0]
    else:
        body["messages"] = [{"role": "user", "content": texts[0]}]
    headers, last = send(http, path, body)
    return Asked(replies, len(texts) if path == "/v1/completions" else 1, headers, last)


def send(http: httpx.Client, path: str, body: dict[str, Any]) -> tuple[httpx.Headers, dict[str, Any]]:
    """The headers of a reply, and its body; of a stream the events that tell its id and its usage, as one."""
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    if not body["stream"]:
        return response.headers, response.json()
    joined: dict[str, Any] = {}
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            for part in (event, event.get("message"), event.get("response")):
                joined |= {name: part[name] for name in ("id", "usage") if part and part.get(name)}
    # Anthropic's last usage says all that its first does.
    return response.headers, joined


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 2, "max_num_batched_tokens": 16},
        {"max_num_seqs": 3, "prefix_cache": "block-hash"},
        {"prefix_cache": "none", "max_num_seqs": 2},
        {"kv_memory": kv_memory_for(160), "max_model_len": 150, "schedule": "fcfs"},
        {"kv_memory": kv_memory_for(200), "max_model_len": 150, "max_num_batched_tokens": 24},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "default",
)
def test_causes_sum_to_what_was_not_cached_wherever_they_are_told(tiny_model: Path, settings: dict[str, Any]) -> None:
    with serving(tiny_model, **settings) as http, ThreadPoolExecutor(4) as clients:
        asked = list(clients.map(lambda seed: ask(http, random.Random(seed)), range(30)))
        replies = [check(each) for each in asked]
        for each, reply in zip(asked, replies, strict=True):
            if each.num_prompts == 1:
                card = http.get(f"/cache/explain/{each.body['id']}").json()
                assert (card["prompt_tokens"], card["cached_tokens"]) == (reply.prompt, reply.cached)
                assert {cause["cause"]: cause["tokens"] for cause in card["causes"]} == reply.misses
        queries = metric(http, "mainstem_prefix_cache_queries_total")
        hits = metric(http, "mainstem_prefix_cache_hits_total")
        missed = counts(http)
        assert queries == sum(each.num_replies * reply.prompt for each, reply in zip(asked, replies, strict=True))
        assert sum(missed.values()) == queries - hits
        assert all(missed[cause] >= sum(reply.misses.get(cause, 0) for reply in replies) for cause in missed)
        computed = metric(http, "mainstem_prefilled_tokens_total")
        assert computed >= queries - hits
        preempted = metric(http, "mainstem_num_preemptions_total") > 0
        assert preempted == ("kv_memory" in settings)
        assert preempted or computed == queries - hits


@pytest.mark.parametrize("stream", [False, True])
def test_replies_that_begin_one_after_the_other_count_their_prompt_once(tiny_model: Path, stream: bool) -> None:
    """What each of them computes again is in the metrics, which count work, and not in what a client is told."""
    body = {"prompt": [*range(20, 28)], "max_tokens": 2, "n": 8, "temperature": 0, "stream": stream}
    with serving(tiny_model, max_num_seqs=1) as http:
        send(http, "/v1/completions", {**body, "n": 1, "stream": False})
        before = counts(http)
        headers, reply = send(http, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
        assert check(Asked(8, 1, headers, reply)) == Told(prompt=8, cached=7, written=1, misses={"rounding": 1})
        assert headers["x-cached-tokens"] == "7/8"
        assert counts(http)["rounding"] - before["rounding"] == 8


def test_the_cause_in_the_header_is_that_of_all_prompts_together(tiny_model: Path) -> None:
    with serving(tiny_model) as http:
        known = [*range(20, 30)]
        send(http, "/v1/completions", {"prompt": known, "max_tokens": 1, "stream": False})
        body = {"prompt": [known, [*range(30, 60)]], "max_tokens": 1, "stream": False}
        headers, reply = send(http, "/v1/completions", body)
        assert told(reply).misses == {"rounding": 1, "first_seen": 30}
        assert headers["x-cache-miss-cause"] == "first_seen"
