"""Why tokens were not cached, as clients are told: usage, header, the hosted diagnostics, /metrics, /cache/explain."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.engine.support import kv_memory_for
from tests.server.conftest import MODEL, metric

SYSTEM = (
    "You are a coding agent. Now it is {}. Read files before you change them, run the tests after every change, and "
    "answer in short sentences that anybody can follow."
)
QUESTION = "Find the river that runs to the sea, and say where it begins, how long it is and what it carries."
NEXT = "And now the same for another river, please; take one that runs to the north, and be brief."
_MISSES = (
    anthropic.types.CacheMissSystemChanged,
    anthropic.types.CacheMissToolsChanged,
    anthropic.types.CacheMissMessagesChanged,
)
CAUSES = (
    "first_seen",
    "diverged",
    "evicted",
    "expired",
    "reset",
    "other_namespace",
    "rounding",
    "in_flight",
    "never_cached",
)


def told(system: str, *texts: str) -> list[dict[str, Any]]:
    """A conversation whose messages are the user's and the assistant's in turn."""
    roles = ["user", "assistant"] * len(texts)
    said = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return [{"role": "system", "content": system}, *said]


def chat(http: httpx.Client, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": messages, "max_tokens": 6, "temperature": 0, "ignore_eos": True, **fields}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response


def misses(response: httpx.Response) -> dict[str, int]:
    """Uncached tokens by cause; they are all that was not cached."""
    usage = response.json()["usage"]
    by_cause: dict[str, int] = usage["mainstem"]["misses"]
    assert sum(by_cause.values()) == usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    return by_cause


def explained(http: httpx.Client, response: httpx.Response) -> dict[str, Any]:
    """What /cache/explain says of a reply, checked to agree with itself and with the reply."""
    told: dict[str, Any] = http.get(f"/cache/explain/{response.json()['id']}").json()
    assert sum(cause["tokens"] for cause in told["causes"]) == told["uncached_tokens"]
    assert told["prompt_tokens"] == response.json()["usage"]["prompt_tokens"]
    bounds = [part["tokens"] for part in told["parts"]]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds)][:-1], "parts overlap or leave a gap"
    assert [stretch["tokens"][0] for stretch in told["uncached"][1:]] == [
        stretch["tokens"][1] for stretch in told["uncached"][:-1]
    ]
    return told


def counts(http: httpx.Client) -> dict[str, float]:
    return {cause: metric(http, f'mainstem_prefix_cache_misses_total{{cause="{cause}"}}') for cause in CAUSES}


@pytest.fixture
def sdk_anthropic(server: BackgroundServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def small(tiny_model: Path) -> Iterator[httpx.Client]:
    """A server whose pool holds one conversation and not two."""
    config = EngineConfig(
        model=str(tiny_model),
        kv_memory=kv_memory_for(400),
        kv_dtype="float32",
        max_model_len=400,
        device="cpu",
        high_watermark=1.0,  # else room is made between steps, for nobody
    )
    with (
        BackgroundServer(
            AsyncEngine.load(config), ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)
        ) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def two(load_tiny: Callable[[], AsyncEngine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    """A server with two tenants and an operator."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("alice sk-alice\nbob sk-bob\nops sk-ops operator\n", encoding="utf-8")
    config = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL, api_key_file=str(keys))
    with BackgroundServer(load_tiny(), config) as running:
        yield running


def client_of(server: BackgroundServer, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=30, headers={"authorization": f"Bearer {key}"})


# Scenarios, as a user would meet them


def test_a_conversation_that_goes_on(http: httpx.Client) -> None:
    system, question = "Be brief, and say nothing about trees.", "Who was the first to run around the sea, and why?"
    first = chat(http, told(system, question))
    assert misses(first) == {"first_seen": first.json()["usage"]["prompt_tokens"]}
    assert first.headers["x-cache-miss-cause"] == "first_seen"
    again = chat(http, told(system, question))
    assert misses(again) == {"rounding": 1}  # the last token, for its logits
    reply = first.json()["choices"][0]["message"]["content"]
    second = chat(http, told(system, question, reply, NEXT))
    assert set(misses(second)) == {"first_seen"}
    assert explained(http, second)["first_difference"] is None


def test_a_history_that_was_rewritten(http: httpx.Client) -> None:
    """With the clock in the system's text."""
    first = chat(http, told(SYSTEM.format("10:00:01"), QUESTION))
    before = counts(http)
    reply = first.json()["choices"][0]["message"]["content"]
    second = chat(http, told(SYSTEM.format("10:02:44"), QUESTION, reply, NEXT))
    by_cause = misses(second)
    assert by_cause["diverged"] > by_cause["first_seen"] > 0
    assert second.headers["x-cache-miss-cause"] == "diverged:timestamp"
    grown = counts(http)
    assert grown["diverged"] - before["diverged"] == by_cause["diverged"]
    card = explained(http, second)
    difference = card["first_difference"]
    assert difference["part"] == "messages[0].content"
    assert "10:00:01" in difference["earlier"]
    assert "10:02:44" in difference["now"]
    assert difference["change"]["class"] == "timestamp"
    assert difference["change"]["fix"]
    assert card["compared_with"]["id"] == first.json()["id"]
    lost = next(cause for cause in card["causes"] if cause["cause"] == "diverged")
    assert 0 < lost["seconds"] <= card["prefill_seconds"]


def test_a_pool_that_thrashes(small: httpx.Client) -> None:
    conversations = [told(SYSTEM.format(name), f"{name}: {QUESTION} {NEXT}") for name in ("one", "two")]
    for conversation in conversations:
        chat(small, conversation)
    returned = chat(small, conversations[0])
    assert set(misses(returned)) == {"evicted", "rounding"} or set(misses(returned)) == {"evicted", "first_seen"}
    assert returned.headers["x-cache-miss-cause"] == "evicted"
    evicted = next(cause for cause in explained(small, returned)["causes"] if cause["cause"] == "evicted")
    assert evicted["reason"] == "lru"
    assert evicted["idle_seconds"] >= 0
    assert evicted["room_for"].startswith("chatcmpl-")
    assert evicted["room_for"] != returned.json()["id"]
    assert evicted["fix"]


def test_a_tenant_over_its_quota_is_told_of_the_quota(tiny_model: Path) -> None:
    config = EngineConfig(
        model=str(tiny_model),
        kv_memory=kv_memory_for(800),
        kv_dtype="float32",
        max_model_len=400,
        device="cpu",
        tenant_quota=0.5,
    )
    server = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)
    conversations = [told(SYSTEM.format(name), f"{name}: {QUESTION} {NEXT}") for name in ("one", "two")]
    with (
        BackgroundServer(AsyncEngine.load(config), server) as running,
        httpx.Client(base_url=running.url, timeout=30) as client,
    ):
        for conversation in conversations:
            chat(client, conversation)
        card = explained(client, chat(client, conversations[0]))
    evicted = next(cause for cause in card["causes"] if cause["cause"] == "evicted")
    assert evicted["reason"] == "quota"
    assert "--tenant-quota" in evicted["fix"]


def test_a_cache_that_was_reset(http: httpx.Client) -> None:
    conversation = told(SYSTEM.format("reset"), QUESTION)
    chat(http, conversation)
    http.post("/cache/reset")
    by_cause = misses(chat(http, conversation))
    assert by_cause.pop("rounding") == 1
    assert set(by_cause) == {"reset"}


def test_two_tenants(two: BackgroundServer) -> None:
    """What a tenant is told in a reply does not depend on others; the operator sees it in the metrics."""
    conversation = told(SYSTEM.format("noon"), QUESTION)
    with client_of(two, "sk-alice") as alice, client_of(two, "sk-bob") as bob, client_of(two, "sk-ops") as operator:
        first = chat(alice, conversation)
        other = chat(bob, conversation)
        assert misses(other) == misses(first) == {"first_seen": first.json()["usage"]["prompt_tokens"]}
        assert other.headers["x-cache-miss-cause"] == "first_seen"
        assert counts(operator)["other_namespace"] == other.json()["usage"]["prompt_tokens"] - 1
        path = f"/cache/explain/{other.json()['id']}"
        assert alice.get(path).status_code == 404
        assert alice.get(path).json()["error"]["code"] == alice.get("/cache/explain/never").json()["error"]["code"]
        assert [cause["cause"] for cause in bob.get(path).json()["causes"]] == ["first_seen"]
        seen = {cause["cause"]: cause["tokens"] for cause in operator.get(path).json()["causes"]}
        assert seen["other_namespace"] == other.json()["usage"]["prompt_tokens"] - 1
        assert alice.get("/cache/explain/last").json()["id"] == first.json()["id"]
        salted = chat(alice, conversation, cache_salt="mine")
        assert set(misses(salted)) == {"first_seen"}
        assert alice.get("/metrics").status_code == 403


def test_a_clock_stays_a_clock_where_another_tenant_has_the_same_prompt(two: BackgroundServer) -> None:
    """What clients are told adds up to the metrics, and the operator's card names the tenant's own fault."""
    before, after = (told(SYSTEM.format(clock), "Where?", "There.", QUESTION) for clock in ("10:00:01", "10:02:44"))
    with client_of(two, "sk-alice") as alice, client_of(two, "sk-bob") as bob, client_of(two, "sk-ops") as operator:
        start = counts(operator)
        replies = [chat(bob, before), chat(alice, after), chat(bob, after)]
        counted = {cause: tokens - start[cause] for cause, tokens in counts(operator).items()}
        card = operator.get(f"/cache/explain/{replies[-1].json()['id']}").json()
    assert replies[-1].headers["x-cache-miss-cause"] == "diverged:timestamp"
    sums = {cause: sum(misses(reply).get(cause, 0) for reply in replies) for cause in CAUSES}
    assert sums["diverged"] > 0
    assert sums["other_namespace"] == 0
    assert counted["other_namespace"] > 0
    counted["first_seen"] += counted.pop("other_namespace")
    assert counted == {cause: tokens for cause, tokens in sums.items() if cause != "other_namespace"}
    assert (card["causes"][0]["cause"], card["causes"][0]["change"]) == ("diverged", "timestamp")
    assert card["causes"][0]["tokens"] == misses(replies[-1])["diverged"]


# The hosted forms


def test_openai_responses_say_what_changed(sdk: openai.OpenAI) -> None:
    def respond(clock: str, question: str, compare_with: str | None) -> Any:
        return sdk.responses.create(
            model=MODEL,
            instructions=SYSTEM.format(clock),
            input=question,
            max_output_tokens=4,
            temperature=0,
            prompt_cache_options={"comparison_response_id": compare_with} if compare_with else {"mode": "implicit"},
        )

    first = respond("08:15:00", QUESTION, None)
    assert first.prompt_cache_diagnostics is None
    same = respond("08:15:00", QUESTION, first.id)
    assert same.prompt_cache_diagnostics.type == "cache_hit"
    changed = respond("08:16:30", QUESTION, first.id)
    found = changed.prompt_cache_diagnostics
    assert (found.type, found.reason) == ("cache_miss", "input_changed")
    assert 0 < found.cache_missed_tokens <= changed.usage.input_tokens
    assert 0 < found.comparison_reusable_tokens < changed.usage.input_tokens
    assert respond("08:15:00", QUESTION, "resp_none").prompt_cache_diagnostics.type == "comparison_response_not_found"
    assert sum(changed.usage.mainstem["misses"].values()) == (
        changed.usage.input_tokens - changed.usage.input_tokens_details.cached_tokens
    )


def test_openai_streams_say_it_at_their_end(sdk: openai.OpenAI) -> None:
    create: Any = sdk.responses.create
    first = create(model=MODEL, instructions=SYSTEM.format("1"), input=QUESTION, max_output_tokens=4)
    options = {"comparison_response_id": first.id}
    events = list(
        create(
            model=MODEL,
            instructions=SYSTEM.format("2"),
            input=QUESTION,
            max_output_tokens=4,
            stream=True,
            prompt_cache_options=options,
        )
    )
    assert events[-1].response.prompt_cache_diagnostics.type == "cache_miss"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, None),
        ({"system": SYSTEM.format("09:02:00")}, "system_changed"),
        ({"tools": [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}]}, "tools_changed"),
    ],
)
def test_anthropic_messages_say_what_changed(
    sdk_anthropic: anthropic.Anthropic, change: dict[str, Any], kind: str | None
) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 4,
        "system": SYSTEM.format("09:01:00"),
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [],
    }
    first = sdk_anthropic.messages.create(**asked, diagnostics={"previous_message_id": None})
    assert first.diagnostics is None
    asked["messages"] = [
        *asked["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": NEXT},
    ]
    asked |= change
    second = sdk_anthropic.messages.create(**asked, diagnostics={"previous_message_id": first.id})
    if kind is None:
        assert second.diagnostics is None
        return
    assert second.diagnostics is not None
    reason: Any = second.diagnostics.cache_miss_reason
    assert reason.type == kind
    assert 0 < reason.cache_missed_input_tokens <= second.usage.cache_creation_input_tokens
    assert isinstance(reason, tuple(_MISSES))
    with sdk_anthropic.messages.stream(**asked, diagnostics={"previous_message_id": first.id}) as stream:
        streamed = stream.get_final_message()
    assert streamed.diagnostics is not None
    assert streamed.diagnostics.cache_miss_reason is not None
    assert streamed.diagnostics.cache_miss_reason.type == kind


def test_what_was_lost_before_the_request_compared_with_is_no_matter(
    http: httpx.Client, sdk_anthropic: anthropic.Anthropic
) -> None:
    """The end of the first reply, and all after it, were cached once, and then reset."""
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "extra_body": {"temperature": 0}}
    question: Any = {"role": "user", "content": "What is reset, and what is not?"}
    for turn in range(2):
        http.post("/cache/reset", json={})
        first = sdk_anthropic.messages.create(**asked, messages=[question], diagnostics={"previous_message_id": None})
        history = [question, {"role": "assistant", "content": first.content}, {"role": "user", "content": NEXT}]
        second = sdk_anthropic.messages.create(**asked, messages=history, diagnostics={"previous_message_id": first.id})
        assert second.usage.cache_read_input_tokens
        assert second.diagnostics is None
        assert ("reset" in second.usage.mainstem["misses"]) == bool(turn)


def test_anthropic_is_told_where_nothing_changed_and_nothing_is_cached(
    sdk_anthropic: anthropic.Anthropic, http: httpx.Client
) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": f"{NEXT} {QUESTION}"}]}
    first = sdk_anthropic.messages.create(**asked)
    http.post("/cache/reset")
    second = sdk_anthropic.messages.create(**asked, diagnostics={"previous_message_id": first.id})
    assert second.diagnostics is not None
    assert second.diagnostics.cache_miss_reason is not None
    assert second.diagnostics.cache_miss_reason.type == "unavailable"
    usage: Any = second.usage
    assert "reset" in usage.mainstem["misses"]
    unknown = sdk_anthropic.messages.create(**asked, diagnostics={"previous_message_id": "msg_none"})
    assert unknown.diagnostics is not None
    assert unknown.diagnostics.cache_miss_reason is not None
    assert unknown.diagnostics.cache_miss_reason.type == "previous_message_not_found"


def test_a_stream_of_chunks_says_it_in_its_usage(sdk: openai.OpenAI) -> None:
    create: Any = sdk.chat.completions.create
    chunks = list(
        create(
            model=MODEL,
            messages=told(SYSTEM.format("chunks"), QUESTION),
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    usage = chunks[-1].usage
    assert sum(usage.mainstem["misses"].values()) == (usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens)


# The endpoint


def test_a_request_is_found_by_its_header_too(http: httpx.Client) -> None:
    body = {"model": MODEL, "prompt": [5, *range(100, 140)], "max_tokens": 2}
    response = http.post("/v1/completions", json=body, headers={"x-request-id": "my-request"})
    for name in ("my-request", response.json()["id"], "last"):
        assert http.get(f"/cache/explain/{name}").json()["id"] == response.json()["id"]


@pytest.mark.parametrize(("route", "work"), [("explain", "parts_of"), ("render", "token_ends")])
def test_others_are_answered_while_a_long_prompt_is_taken_apart(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, route: str, work: str
) -> None:
    module = import_module(f"mainstem.server.{route}")
    real, begun, answered = getattr(module, work), threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        begun.set()
        assert answered.wait(10), "nobody else was answered meanwhile"
        return real(*args)

    conversation = told(SYSTEM.format(route), QUESTION)
    record = chat(http, conversation).json()["id"]
    monkeypatch.setattr(module, work, slow)
    with ThreadPoolExecutor(1) as pool:
        if route == "explain":
            asked = pool.submit(http.get, f"/cache/explain/{record}")
        else:
            asked = pool.submit(
                http.post, "/v1/chat/completions/render", json={"model": MODEL, "messages": conversation}
            )
        assert begun.wait(10)
        assert http.get("/health").status_code == 200
        answered.set()
        assert asked.result().json()["parts"]


def test_what_is_not_remembered_is_a_404_that_says_so(http: httpx.Client) -> None:
    response = http.get("/cache/explain/chatcmpl-never")
    assert response.status_code == 404
    assert "remembered" in response.json()["error"]["message"]


def test_without_records_nothing_is_said(tiny_model: Path) -> None:
    config = EngineConfig(model=str(tiny_model), kv_memory="4MiB", device="cpu", explain_records=0)
    served = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)
    with BackgroundServer(AsyncEngine.load(config), served) as server, httpx.Client(base_url=server.url) as client:
        response = chat(client, told(SYSTEM.format("none"), QUESTION))
        assert "x-cache-miss-cause" not in response.headers
        assert "mainstem" not in response.json()["usage"]
        assert client.get("/cache/explain/last").status_code == 404
        assert "prefix_cache_misses" not in client.get("/metrics").text


@pytest.mark.parametrize(("kind", "expected"), [("none", {"never_cached"}), ("block-hash", {"rounding"})])
def test_other_caches(tiny_model: Path, kind: str, expected: set[str]) -> None:
    config = EngineConfig(model=str(tiny_model), kv_memory="4MiB", device="cpu", prefix_cache=kind)
    served = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL)
    with BackgroundServer(AsyncEngine.load(config), served) as server, httpx.Client(base_url=server.url) as client:
        chat(client, told(SYSTEM.format("kinds"), QUESTION))
        assert set(misses(chat(client, told(SYSTEM.format("kinds"), QUESTION)))) == expected


# Parts have the names that the caller knows them by


def parts_named(http: httpx.Client, response: httpx.Response) -> tuple[list[str], str, str]:
    """The parts of a prompt, and where it first differs from the closest earlier one: in tokens, and in texts."""
    told = http.get(f"/cache/explain/{response.json()['id']}").json()
    difference = told["first_difference"]
    names = [part["part"] for part in told["parts"] if part["part"] not in ("template", "reply")]
    return names, difference["part"], difference["change"]["part"]


@pytest.mark.parametrize(
    ("path", "bodies", "names", "part"),
    [
        (
            "/v1/chat/completions",
            [
                {
                    "messages": [
                        {"role": "system", "content": SYSTEM.format("noon")},
                        {
                            "role": "user",
                            "content": [{"type": "text", "text": text}, {"type": "text", "text": f"{QUESTION} {NEXT}"}],
                        },
                    ]
                }
                for text in ("chat: run 1", "chat: run 2")
            ],
            ["messages[0].content", "messages[1].content[0].text", "messages[1].content[1].text"],
            "messages[1].content[0].text",
        ),
        (
            "/v1/responses",
            [
                {
                    "instructions": f"Responses. {SYSTEM.format('noon')}",
                    "input": [
                        {"role": "user", "content": text},
                        {"type": "function_call_output", "call_id": "c", "output": f"{QUESTION} {NEXT}"},
                    ],
                }
                for text in ("responses: run 1", "responses: run 2")
            ],
            ["instructions", "input[0].content", "input[1].output"],
            "input[0].content",
        ),
        (
            "/v1/messages",
            [
                {
                    "system": [{"type": "text", "text": f"Messages. {text}"}, {"type": "text", "text": QUESTION}],
                    "messages": [{"role": "user", "content": [{"type": "text", "text": NEXT}]}],
                    "max_tokens": 4,
                }
                for text in ("run 1", "run 2")
            ],
            ["system[0].text", "system[1].text", "messages[0].content[0].text"],
            "system[0].text",
        ),
    ],
    ids=["chat", "responses", "messages"],
)
def test_parts_have_the_names_of_the_callers_api(
    http: httpx.Client, path: str, bodies: list[dict[str, Any]], names: list[str], part: str
) -> None:
    responses = [http.post(path, json={"model": MODEL, "temperature": 0, **body}) for body in bodies]
    assert parts_named(http, responses[-1]) == (names, part, part)


def test_what_is_before_a_response_that_goes_on(http: httpx.Client) -> None:
    """It is not in the body; its name says so."""
    body = {"model": MODEL, "instructions": SYSTEM.format("7:30"), "input": QUESTION, "max_output_tokens": 4}
    first = http.post("/v1/responses", json=body).json()
    body |= {"instructions": SYSTEM.format("7:31"), "input": NEXT, "previous_response_id": first["id"]}
    names, *parts = parts_named(http, http.post("/v1/responses", json=body))
    assert names[:2] == ["instructions", "previous_response.messages[0].content"]
    assert names[-1] == "input"
    assert parts == ["instructions", "instructions"]


@pytest.mark.parametrize(
    "said",
    [{"headers": {"x-session-id": "mine"}}, {"body": {"cache_hints": {"session_id": "mine"}}}],
    ids=["header", "body"],
)
def test_a_prompt_is_compared_within_its_session(http: httpx.Client, said: dict[str, Any]) -> None:
    """Not with another's that has more in common with it."""

    def ask(name: str, text: str, extra: dict[str, Any]) -> httpx.Response:
        messages = told(f"{name}. {SYSTEM.format('noon')}", text)
        body = {"model": MODEL, "messages": messages, "max_tokens": 4, **extra.get("body", {})}
        return http.post("/v1/chat/completions", json=body, headers=extra.get("headers"))

    kind = next(iter(said))
    mine = ask(f"{kind} 1", QUESTION, said)
    ask(f"{kind} 2", f"{QUESTION} {NEXT}", {})
    found = http.get(f"/cache/explain/{ask(f'{kind} 3', f'{QUESTION} {NEXT}', said).json()['id']}").json()
    assert found["compared_with"]["id"] == mine.json()["id"]
