"""What clients say about how long a prompt is worth keeping, with the real SDKs where they have a field for it."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai
import pytest

from mainstem.server import BackgroundServer
from mainstem.tree import RadixCache, Retention
from mainstem.tree.fair import FairOrder
from tests.server.conftest import MODEL, metric

LONG = "The harbour master keeps a ledger of every ship, its cargo, its captain and the day it came. "
EPHEMERAL: dict[str, Any] = {"type": "ephemeral"}


@pytest.fixture
def claude(server: BackgroundServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def order_of(server: BackgroundServer) -> FairOrder:
    cache = server._engine._engine.core.cache
    assert isinstance(cache, RadixCache)
    return cache._order


def retained(server: BackgroundServer) -> dict[Retention, int]:
    """Tokens that are retained now, by how."""
    orders = [account.order for account in order_of(server).accounts.values()]
    return {kept: ring.tokens for order in orders for kept, ring in order._retained.items() if ring.tokens}


@pytest.fixture(autouse=True)
def empty_cache(http: httpx.Client) -> None:
    http.post("/cache/reset")


def ask(claude: anthropic.Anthropic, system: Any, said: Any = "Hello there.", **fields: Any) -> anthropic.types.Message:
    message: anthropic.types.Message = claude.messages.create(
        model=MODEL, system=system, messages=[{"role": "user", "content": said}], **{"max_tokens": 2, **fields}
    )
    return message


def test_cache_control_keeps_the_prompt_up_to_its_block(server: BackgroundServer, claude: anthropic.Anthropic) -> None:
    ask(claude, [{"type": "text", "text": LONG * 5, "cache_control": EPHEMERAL}])
    (kept,) = retained(server).items()
    tokens = claude.messages.count_tokens(
        model=MODEL, system=LONG * 5, messages=[{"role": "user", "content": "Hello there."}]
    ).input_tokens
    assert kept[0] == Retention.of(300.0)
    assert tokens - 30 < kept[1] < tokens - 3


def test_creation_is_reported_by_time_to_live(claude: anthropic.Anthropic) -> None:
    system: Any = [
        {"type": "text", "text": LONG * 5, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": LONG * 2, "cache_control": {"type": "ephemeral", "ttl": "5m"}},
    ]
    usage = ask(claude, system).usage
    creation = usage.cache_creation
    assert creation is not None
    assert usage.input_tokens == 0
    assert creation.ephemeral_5m_input_tokens + creation.ephemeral_1h_input_tokens == usage.cache_creation_input_tokens
    assert creation.ephemeral_1h_input_tokens > creation.ephemeral_5m_input_tokens > 0
    again = ask(claude, system).usage
    assert again.cache_creation is not None
    assert again.cache_read_input_tokens
    assert again.cache_creation.ephemeral_1h_input_tokens == 0


MARKED: Any = [
    {"type": "text", "text": "Read this."},
    {"type": "text", "text": LONG, "cache_control": EPHEMERAL},
]
PLAIN: Any = [{"type": "text", "text": "Read this."}, {"type": "text", "text": LONG}]


@pytest.mark.parametrize("tools", [False, True])
def test_markers_never_reach_a_prompt_of_anthropics_api(claude: anthropic.Anthropic, tools: bool) -> None:
    tool: Any = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
    more: dict[str, Any] = {"tools": [tool]} if tools else {}
    marked: dict[str, Any] = {"tools": [{**tool, "cache_control": EPHEMERAL}]} if tools else {}
    plain = ask(claude, PLAIN, PLAIN, **more).usage
    usage = ask(claude, MARKED, MARKED, **marked, cache_control=EPHEMERAL).usage
    # All but the last token is found, so the rendered tokens are the same.
    assert usage.cache_read_input_tokens == plain.cache_creation_input_tokens - 1  # type: ignore[operator]


def test_markers_never_reach_a_prompt_of_openais_apis(sdk: openai.OpenAI) -> None:
    def usage(content: Any, **fields: Any) -> Any:
        reply = sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=2, **fields
        )
        assert reply.usage is not None
        return reply.usage

    plain = usage(PLAIN)
    part: Any = [PLAIN[0], {**PLAIN[1], "prompt_cache_breakpoint": {"mode": "explicit"}}]
    marked = usage(part, prompt_cache_options={"mode": "explicit", "ttl": "12h"}, prompt_cache_key="ledger")
    assert plain.prompt_tokens == marked.prompt_tokens
    assert marked.prompt_tokens_details.cached_tokens == plain.prompt_tokens - 1
    assert marked.prompt_tokens_details.cache_write_tokens == 1


def test_an_explicit_breakpoint_takes_the_requests_time_to_live(server: BackgroundServer, sdk: openai.OpenAI) -> None:
    content: Any = [{**PLAIN[1], "prompt_cache_breakpoint": {"mode": "explicit"}}, PLAIN[0]]
    options: Any = {"mode": "explicit", "ttl": "12h"}  # the SDK knows this time for responses only
    sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=2, prompt_cache_options=options
    )
    assert list(retained(server)) == [Retention.of(12 * 3600.0)]


def test_an_explicit_breakpoint_may_have_a_time_of_its_own(server: BackgroundServer, http: httpx.Client) -> None:
    part = {"type": "text", "text": LONG, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert list(retained(server)) == [Retention.of(12 * 3600.0)]


@pytest.mark.parametrize(
    ("options", "lifetimes"),
    [
        ({}, []),
        ({"comparison_response_id": "resp_1"}, []),
        ({"mode": "implicit"}, [Retention.of(1800.0)]),
        ({"prewarm": True}, [Retention.of(1800.0)]),
    ],
)
def test_only_options_that_ask_for_time_keep_a_prompt(
    server: BackgroundServer, http: httpx.Client, options: dict[str, Any], lifetimes: list[Retention]
) -> None:
    body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2, "prompt_cache_options": options}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert list(retained(server)) == lifetimes


def test_responses_say_what_was_written_for_how_long(sdk: openai.OpenAI) -> None:
    reply = sdk.responses.create(
        model=MODEL, input=LONG, max_output_tokens=2, prompt_cache_options={"ttl": "12h"}, prompt_cache_key="ledger"
    )
    assert reply.usage is not None
    details = reply.usage.input_tokens_details
    assert details.cache_write_tokens_details is not None
    assert details.cache_write_tokens_details.ttl_12h_tokens == details.cache_write_tokens == reply.usage.input_tokens
    assert reply.prompt_cache_options is not None
    assert (reply.prompt_cache_options.mode, reply.prompt_cache_options.ttl) == ("implicit", "12h")


def test_prewarming_a_response_computes_its_prompt_and_generates_nothing(sdk: openai.OpenAI) -> None:
    prewarmed = sdk.responses.create(model=MODEL, input=LONG, prompt_cache_options={"prewarm": True})
    assert prewarmed.status == "completed"
    assert prewarmed.output_text == ""
    assert prewarmed.usage is not None
    assert prewarmed.usage.output_tokens == 0
    reply = sdk.responses.create(model=MODEL, input=LONG, max_output_tokens=2)
    assert reply.usage is not None
    assert reply.usage.input_tokens_details.cached_tokens == reply.usage.input_tokens - 1


def test_a_session_that_its_prompt_cache_key_names_is_ended_by_it(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2, "prompt_cache_key": "ledger"}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert http.post("/cache/end-session", json={"prompt_cache_key": "ledger"}).json() == {"known": True}
    assert http.post("/cache/end-session", json={"session_id": "ledger"}).json() == {"known": False}


@pytest.mark.parametrize("stream", [False, True])
def test_prewarming_a_chat_computes_its_prompt_and_generates_nothing(http: httpx.Client, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5}
    options = {"prompt_cache_options": {"prewarm": True}, "stream": stream}
    before = metric(http, "mainstem_generation_tokens_total")
    assert http.post("/v1/chat/completions", json={**body, **options}).status_code == 200
    assert metric(http, "mainstem_generation_tokens_total") == before
    usage = http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_at_all_prewarm_a_message(claude: anthropic.Anthropic, stream: bool) -> None:
    if stream:
        with claude.messages.stream(model=MODEL, max_tokens=0, messages=[{"role": "user", "content": LONG}]) as opened:
            message: Any = opened.get_final_message()
    else:
        message = claude.messages.create(model=MODEL, max_tokens=0, messages=[{"role": "user", "content": LONG}])
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)
    again = claude.messages.create(model=MODEL, max_tokens=1, messages=[{"role": "user", "content": LONG}])
    assert again.usage.cache_creation_input_tokens == 1


def prewarmed(sdk: openai.OpenAI, claude: anthropic.Anthropic, api: str, text: str) -> Any:
    """The raw reply to a prewarm through an API's SDK."""
    options: Any = {"prompt_cache_options": {"prewarm": True}}
    said: Any = [{"role": "user", "content": text}]
    match api:
        case "completions":
            return sdk.completions.with_raw_response.create(model=MODEL, prompt=text, extra_body=options)
        case "chat":
            return sdk.chat.completions.with_raw_response.create(model=MODEL, messages=said, **options)
        case "responses":
            return sdk.responses.with_raw_response.create(model=MODEL, input=text, **options)
    return claude.messages.with_raw_response.create(model=MODEL, max_tokens=0, messages=said)


@pytest.mark.parametrize(
    ("api", "part"),
    [
        ("completions", "prompt"),
        ("chat", "messages[0].content"),
        ("responses", "input"),
        ("messages", "messages[0].content"),
    ],
)
def test_a_prewarm_is_explained_by_its_id_and_its_request_id(
    sdk: openai.OpenAI, claude: anthropic.Anthropic, http: httpx.Client, api: str, part: str
) -> None:
    raw = prewarmed(sdk, claude, api, f"{api}: {LONG}")
    reply = raw.parse()
    card = http.get(f"/cache/explain/{reply.id}").json()
    assert card["id"] == reply.id
    assert part in [each["part"] for each in card["parts"]]
    assert {cause["cause"]: cause["tokens"] for cause in card["causes"]} == reply.usage.mainstem["misses"]
    assert http.get(f"/cache/explain/{raw.headers['x-request-id']}").json() == card
    assert http.get("/cache/explain/last").json() == card


@pytest.mark.parametrize("edited", [False, True])
def test_openais_apis_compare_with_a_prewarm(sdk: openai.OpenAI, claude: anthropic.Anthropic, edited: bool) -> None:
    text = f"At 10:00:01. {LONG}"
    warm = {api: prewarmed(sdk, claude, api, text).parse().id for api in ("completions", "chat", "responses")}
    now = text.replace("10:00:01", "10:02:44") if edited else text
    options: Any = {api: {"prompt_cache_options": {"comparison_response_id": name}} for api, name in warm.items()}
    replies: list[Any] = [
        sdk.completions.create(model=MODEL, prompt=now, max_tokens=1, extra_body=options["completions"]),
        sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": now}], max_tokens=1, **options["chat"]
        ),
        sdk.responses.create(model=MODEL, input=now, max_output_tokens=1, **options["responses"]),
    ]
    found = [reply.model_dump()["prompt_cache_diagnostics"]["type"] for reply in replies]
    assert found == ["cache_miss" if edited else "cache_hit"] * 3


@pytest.mark.parametrize("edited", [False, True])
def test_anthropics_api_compares_with_a_prewarm(claude: anthropic.Anthropic, sdk: openai.OpenAI, edited: bool) -> None:
    text = f"At 10:00:01. {LONG}"
    before = prewarmed(sdk, claude, "messages", text).parse()
    now = text.replace("10:00:01", "10:02:44") if edited else text
    said: Any = [{"role": "user", "content": now}]
    after = claude.messages.create(
        model=MODEL, max_tokens=1, messages=said, diagnostics={"previous_message_id": before.id}
    )
    if not edited:
        assert after.diagnostics is None
        return
    assert after.diagnostics is not None
    assert after.diagnostics.cache_miss_reason is not None
    assert after.diagnostics.cache_miss_reason.type == "messages_changed"


@pytest.mark.parametrize("said", ["body", "headers"])
def test_an_ended_session_is_given_up(server: BackgroundServer, http: httpx.Client, said: str) -> None:
    hints: dict[str, Any] = {"cache_hints": {"session_id": "s", "end": True}} if said == "body" else {}
    headers = {"x-session-id": "s", "x-session-end": "true"} if said == "headers" else {}
    http.post("/v1/completions", json={"prompt": [*range(70, 170)], "max_tokens": 1, **hints}, headers=headers)
    assert order_of(server).given_up_tokens == 100


def test_a_session_can_be_ended_by_itself(server: BackgroundServer, http: httpx.Client) -> None:
    body = {"prompt": [*range(70, 170)], "max_tokens": 1, "cache_hints": {"session_id": "t"}}
    http.post("/v1/completions", json=body)
    assert http.post("/cache/end-session", json={"session_id": "t"}).json() == {"known": True}
    assert http.post("/cache/end-session", json={"session_id": "nobody"}).json() == {"known": False}
    assert http.post("/cache/end-session", json={}).status_code == 400
    assert http.post("/cache/end-session", json={"session_id": "t", "cache_salt": "x"}).json() == {"known": False}
    assert order_of(server).given_up_tokens == 100


@pytest.mark.parametrize(
    ("hints", "kept"),
    [
        ({"ttl": "15m", "priority": 2}, Retention.of(900.0, 2)),
        ({"session_id": "u", "expected_return_s": 20}, Retention.of(40.0, 0)),
    ],
)
def test_our_own_hints_retain_the_whole_prompt(
    server: BackgroundServer, http: httpx.Client, hints: dict[str, Any], kept: Retention
) -> None:
    http.post("/v1/completions", json={"prompt": [*range(70, 170)], "max_tokens": 1, "cache_hints": hints})
    assert retained(server) == {kept: 100}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"cache_hints": {"ttl": "soon"}}, "cache_hints.ttl"),
        ({"cache_hints": {"ttl": "25h"}}, "cache_hints.ttl"),
        ({"cache_hints": {"ttl": "-5m"}}, "cache_hints.ttl"),
        ({"cache_hints": {"sesion_id": "a"}}, "cache_hints.sesion_id"),
        ({"prompt_cache_options": {"ttl": "2d"}}, "prompt_cache_options.ttl"),
        ({"cache_control": {"type": "ephemeral", "ttl": "100h"}}, "cache_control.ttl"),
        ({"cache_hints": {"priority": 3}}, "cache_hints.priority"),
        ({"cache_hints": {"priority": "high"}}, "cache_hints.priority"),
        ({"cache_hints": {"expected_return_s": -1}}, "cache_hints.expected_return_s"),
        ({"cache_hints": {"end": "yes"}}, "cache_hints.end"),
        ({"cache_hints": {"session_id": ""}}, "cache_hints.session_id"),
        ({"prompt_cache_key": "k" * 300}, "prompt_cache_key"),
        ({"prompt_cache_options": {"mode": "other"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"ttl": "a while"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"comparison_response_id": 5}}, "prompt_cache_options.comparison_response_id"),
        ({"prompt_cache_options": {"ttl": "5m"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
        ({"cache_control": {"type": "ephemeral", "ttl": 5}}, "cache_control.ttl"),
        ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl"),
        ({"cache_control": {"type": "x"}}, "cache_control.type"),
        ({"cache_control": {}}, "cache_control.type"),
        ({"cache_control": "ephemeral"}, "cache_control"),
    ],
)
def test_a_wish_that_is_none_is_refused_by_name(http: httpx.Client, fields: dict[str, Any], named: str) -> None:
    response = http.post("/v1/completions", json={"prompt": [70], "max_tokens": 1, **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == named
    assert named in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_control": {"type": "ephemeral", "ttl": None, "of tomorrow": 1}},
        {"cache_control": None},
        {"prompt_cache_options": {"ttl": "12h", "comparison_response_id": None, "of tomorrow": 1}},
        *({"prompt_cache_retention": value} for value in ("in_memory", "in-memory", "24h")),
    ],
)
def test_what_the_hosted_apis_take_is_taken(http: httpx.Client, fields: dict[str, Any]) -> None:
    assert http.post("/v1/completions", json={"prompt": [70], "max_tokens": 1, **fields}).status_code == 200


def test_a_time_that_is_none_is_refused_with_the_limit_that_holds(http: httpx.Client) -> None:
    hints = {"cache_hints": {"ttl": "-5m"}}
    message = http.post("/v1/completions", json={"prompt": [70], **hints}).json()["error"]["message"]
    assert message.startswith("cache_hints.ttl must be a time of at most 24h, such as 90s, 15m or 1h, got '-5m'")


def test_the_bodys_session_wins_over_the_headers(http: httpx.Client) -> None:
    body = {"prompt": [70], "max_tokens": 1, "cache_hints": {"session_id": "of the body"}}
    http.post("/v1/completions", json=body, headers={"x-session-id": "of the header"})
    assert http.post("/cache/end-session", json={"session_id": "of the header"}).json() == {"known": False}
    assert http.post("/cache/end-session", json={"session_id": "of the body"}).json() == {"known": True}


def test_one_session_is_ended_at_a_time(http: httpx.Client) -> None:
    response = http.post("/cache/end-session", json={"session_id": "t", "prompt_cache_key": "ledger"})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "give session_id or prompt_cache_key, not both"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-session-end", "yes"),
        ("x-session-end", "2"),
        ("x-session-end", ""),
        ("x-expected-return-s", "soon"),
        ("x-expected-return-s", "-1"),
        ("x-session-id", ""),
    ],
)
def test_a_header_that_says_nothing_is_refused_by_name(http: httpx.Client, header: str, value: str) -> None:
    response = http.post("/v1/completions", json={"prompt": [70], "max_tokens": 1}, headers={header: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == header
    assert header in error["message"]


@pytest.mark.parametrize("said", ["cache_hints.end", "x-session-end"])
def test_an_end_of_no_session_is_refused_by_name(http: httpx.Client, said: str) -> None:
    body: dict[str, Any] = {"prompt": [70], "max_tokens": 1}
    headers = {"x-session-end": "true"}
    if said == "cache_hints.end":
        body["cache_hints"], headers = {"end": True}, {}
    response = http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == said
    assert "x-session-id" in error["message"]


@pytest.mark.parametrize(("value", "given_up"), [("true", 100), ("1", 100), ("False", 0), ("0", 0)])
def test_the_header_says_whether_a_session_ends(
    server: BackgroundServer, http: httpx.Client, value: str, given_up: int
) -> None:
    body = {"prompt": [*range(70, 170)], "max_tokens": 1}
    http.post("/v1/completions", json=body, headers={"x-session-id": f"says {value}", "x-session-end": value})
    assert order_of(server).given_up_tokens == given_up


@pytest.mark.parametrize(
    ("marker", "field", "why"),
    [
        (
            {"cache_control": {"type": "ephemeral", "ttl": "2h"}},
            ".ttl",
            "must be '5m' or '1h', got '2h'; cache_hints.ttl",
        ),
        ({"cache_control": {"type": "ephemeral", "ttl": True}}, ".ttl", "must be '5m' or '1h', got true"),
        ({"cache_control": {"type": "x"}}, ".type", "must be 'ephemeral', got 'x'"),
        ({"cache_control": {}}, ".type", "is required: 'ephemeral'"),
        ({"cache_control": "ephemeral"}, "", "must be an object, got 'ephemeral'"),
        ({"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "7m"}}, ".ttl", "must be '30m' or '12h', got '7m'"),
        ({"prompt_cache_breakpoint": {"mode": "implicit"}}, ".mode", "must be 'explicit', got 'implicit'"),
        ({"prompt_cache_breakpoint": {}}, ".mode", "is required: 'explicit'"),
        ({"prompt_cache_breakpoint": True}, "", "must be an object, got true"),
    ],
)
@pytest.mark.parametrize(
    "route", ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"]
)
def test_a_breakpoint_that_is_none_is_refused_by_name(
    http: httpx.Client, route: str, marker: dict[str, Any], field: str, why: str
) -> None:
    items = "input" if route == "/v1/responses" else "messages"
    body = {"model": MODEL, items: [{"role": "user", "content": [{"type": "text", "text": "x", **marker}]}]}
    response = http.post(route, json={**body, "max_tokens": 1})
    assert response.status_code == 400
    assert f"{items}[0].content[0].{next(iter(marker))}{field} {why}" in response.json()["error"]["message"]


@pytest.mark.parametrize("where", ["the request", "a tool", "a call"])
def test_a_wrong_cache_control_is_refused_wherever_it_stands(http: httpx.Client, where: str) -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "2h"}}
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    match where:
        case "the request":
            body |= mark
        case "a tool":
            body["tools"] = [{"name": "look", "input_schema": {"type": "object"}, **mark}]
        case _:
            body["messages"].append({"role": "assistant", "content": [{**call, **mark}]})
    for route in ("/v1/messages", "/v1/messages/count_tokens"):
        response = http.post(route, json=body)
        assert response.status_code == 400
        assert "cache_control.ttl must be '5m' or '1h', got '2h'" in response.json()["error"]["message"]
