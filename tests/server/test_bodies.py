"""What is wrong with a request is said in OpenAI's shape, with a 4xx, and disturbs nobody."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import httpx
import openai
import pytest

from mainstem.server import BackgroundServer
from tests.server.conftest import MODEL, assert_pool_at_rest

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
JSON = {"content-type": "application/json"}

FORCED = {"tool_choice": "required"}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": value}}


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


# Route, what to add to a good body (or leave out, with ...), status, param.
WRONG_FIELDS: list[tuple[str, dict[str, Any], int, str | None]] = [
    (CHAT, {"messages": ...}, 400, "messages"),
    (CHAT, {"messages": None}, 400, "messages"),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": "hello"}, 400, "messages"),
    (CHAT, {"messages": ["hello"]}, 400, "messages[0]"),
    (CHAT, {"messages": [*HELLO, {}]}, 400, "messages[1].role"),
    (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role"),
    (CHAT, {"messages": [{"role": 3, "content": "x"}]}, 400, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": 3}]}, 400, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": {"text": "x"}}]}, 400, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content[0]"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages[0].content[0].text"),
    (CHAT, {"model": "gpt-9"}, 404, "model"),
    (CHAT, {"model": 7}, 400, "model"),
    (CHAT, {"max_tokens": 0}, 400, "max_tokens"),
    (CHAT, {"max_tokens": -1}, 400, "max_tokens"),
    (CHAT, {"max_tokens": True}, 400, "max_tokens"),
    (CHAT, {"max_tokens": "10"}, 400, "max_tokens"),
    (CHAT, {"max_tokens": 1.5}, 400, "max_tokens"),
    (CHAT, {"max_completion_tokens": 0}, 400, "max_completion_tokens"),
    (CHAT, {"temperature": -0.1}, 400, "temperature"),
    (CHAT, {"temperature": "hot"}, 400, "temperature"),
    (CHAT, {"temperature": True}, 400, "temperature"),
    (CHAT, {"temperature": 10**400}, 400, "temperature"),
    (CHAT, {"top_p": 0}, 400, "top_p"),
    (CHAT, {"top_p": 1.01}, 400, "top_p"),
    (CHAT, {"top_k": -2}, 400, "top_k"),
    (CHAT, {"min_p": 2}, 400, "min_p"),
    (CHAT, {"repetition_penalty": 0}, 400, "repetition_penalty"),
    (CHAT, {"presence_penalty": 3}, 400, "presence_penalty"),
    (CHAT, {"frequency_penalty": -3}, 400, "frequency_penalty"),
    (CHAT, {"seed": 2**64}, 400, "seed"),
    (CHAT, {"seed": "x"}, 400, "seed"),
    (CHAT, {"n": 0}, 400, "n"),
    (CHAT, {"n": 129}, 400, "n"),
    (CHAT, {"n": 10**30}, 400, "n"),
    (CHAT, {"stop": 5}, 400, "stop"),
    (CHAT, {"stop": ["a", 5]}, 400, "stop"),
    (CHAT, {"stop": ""}, 400, "stop"),
    (CHAT, {"stop": ["x"] * 17}, 400, "stop"),
    (CHAT, {"stop": "x" * 1001}, 400, "stop"),
    (CHAT, {"stop_token_ids": [-1]}, 400, "stop_token_ids[0]"),
    (CHAT, {"stop_token_ids": [1, 448]}, 400, "stop_token_ids[1]"),
    (CHAT, {"stop_token_ids": ["a"]}, 400, "stop_token_ids[0]"),
    (CHAT, {"logprobs": 3}, 400, "logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs"),
    (CHAT, {"top_logprobs": 3}, 400, "top_logprobs"),
    (CHAT, {"logit_bias": {"5": 10}}, 400, "logit_bias"),
    (CHAT, {"tool_choice": "required"}, 400, "tool_choice"),
    (CHAT, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, 400, "tool_choice"),
    (CHAT, {"tool_choice": "maybe"}, 400, "tool_choice"),
    (CHAT, {"tool_choice": {"type": "function"}}, 400, "tool_choice"),
    (
        CHAT,
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [1]}}},
        400,
        "tool_choice",
    ),
    (CHAT, {"parallel_tool_calls": "no"}, 400, "parallel_tool_calls"),
    (CHAT, {"tools": [{}]}, 400, "tools[0]"),
    (CHAT, {"tools": [{"type": "function", "function": {}}]}, 400, "tools[0].function.name"),
    (CHAT, {"tools": "f"}, 400, "tools"),
    (CHAT, {"functions": [{"name": "f"}]}, 400, "functions"),
    (CHAT, {"response_format": {"type": "yaml"}}, 400, "response_format"),
    (CHAT, {"response_format": "json"}, 400, "response_format"),
    (CHAT, {"response_format": {"type": "json_schema"}}, 400, "response_format"),
    (CHAT, {"response_format": schema({"type": "wish"})}, 400, "response_format"),
    (CHAT, {"response_format": schema({"not": {"type": "string"}})}, 400, "response_format"),
    (CHAT, {"response_format": schema({"type": "object", "properties": 5})}, 400, "response_format"),
    (CHAT, {"response_format": schema({"$ref": "#/nowhere"})}, 400, "response_format"),
    (CHAT, {"tools": [tool({"type": "object", "properties": {"a": {"$ref": "#/x"}}})], **FORCED}, 400, "tools"),
    (CHAT, {"tools": [tool(5)]}, 400, "tools[0].function.parameters"),
    (CHAT, {"tools": [tool({})], "tool_choice": {"type": "function", "function": {"name": "g"}}}, 400, "tool_choice"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": 5}]}, 400, "messages[0].tool_calls"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [5]}]}, 400, "messages[0].tool_calls[0]"),
    (CHAT, {"messages": [{"role": "tool", "content": "x", "tool_call_id": 5}]}, 400, "messages[0].tool_call_id"),
    (CHAT, {"modalities": ["text", "audio"]}, 400, "modalities"),
    (CHAT, {"audio": {"voice": "x"}}, 400, "audio"),
    (CHAT, {"stream": "yes"}, 400, "stream"),
    (CHAT, {"stream_options": {"include_usage": 1}}, 400, "stream_options.include_usage"),
    (CHAT, {"stream_options": []}, 400, "stream_options"),
    (CHAT, {"cache_salt": ""}, 400, "cache_salt"),
    (CHAT, {"cache_salt": "x" * 257}, 400, "cache_salt"),
    (CHAT, {"cache_salt": 5}, 400, "cache_salt"),
    (TEXT, {"prompt": ...}, 400, "prompt"),
    (TEXT, {"prompt": None}, 400, "prompt"),
    (TEXT, {"prompt": ""}, 400, "prompt"),
    (TEXT, {"prompt": []}, 400, "prompt"),
    (TEXT, {"prompt": [[]]}, 400, "prompt[0]"),
    (TEXT, {"prompt": [[1], []]}, 400, "prompt[1]"),
    (TEXT, {"prompt": ["a", ""]}, 400, "prompt[1]"),
    (TEXT, {"prompt": ["a", 1]}, 400, "prompt[1]"),
    (TEXT, {"prompt": [1, "a"]}, 400, "prompt"),
    (TEXT, {"prompt": [1, True]}, 400, "prompt"),
    (TEXT, {"prompt": [1.0]}, 400, "prompt"),
    (TEXT, {"prompt": [-1]}, 400, "prompt"),
    (TEXT, {"prompt": [448]}, 400, "prompt"),
    (TEXT, {"prompt": [10**40]}, 400, "prompt"),
    (TEXT, {"prompt": [[[1]]]}, 400, "prompt[0]"),
    (TEXT, {"prompt": {"text": "a"}}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 129}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 65, "n": 2}, 400, "prompt"),
    (TEXT, {"max_tokens": 0}, 400, "max_tokens"),
    (TEXT, {"logprobs": True}, 400, "logprobs"),
    (TEXT, {"logprobs": 21}, 400, "logprobs"),
    (TEXT, {"logprobs": 1, "echo": True}, 400, "echo"),
    (TEXT, {"suffix": "end"}, 400, "suffix"),
    (TEXT, {"best_of": 2, "stream": True}, 400, "best_of"),
    (TEXT, {"best_of": 1, "n": 2}, 400, "best_of"),
    (TEXT, {"best_of": 0}, 400, "best_of"),
    (TEXT, {"best_of": 129}, 400, "best_of"),
    (TEXT, {"best_of": "2"}, 400, "best_of"),
    (TEXT, {"prompt": ["a"] * 65, "best_of": 2}, 400, "prompt"),
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": HELLO}, 400, "prompt"),
    ("/tokenize", {"prompt": 5}, 400, "prompt"),
    ("/detokenize", {}, 400, "tokens"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
    ("/detokenize", {"tokens": ["a"]}, 400, "tokens"),
]
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 1},
    TEXT: {"prompt": "hello", "max_tokens": 1},
    "/tokenize": {},
    "/detokenize": {},
}
MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "cut off": b'{"messages": [',
    "no object": b"[1, 2]",
    "no JSON": b"messages=hello",
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "too large a number": b'{"temperature": 1e999, "messages": [{"role": "user", "content": "x"}]}',
    "too long a number": b'{"seed": ' + b"1" * 10_000 + b"}",
    "too deep": b'{"messages": ' + b"[" * 100_000,
    "deep but closed": b'{"a": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "raw NUL": b'{"prompt": "a\x00b"}',
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "encoded surrogate": b'{"prompt": "\xed\xa0\x80"}',
    "trailing text": b'{"prompt": "a"} x',
    "comment": b'{"prompt": "a" /* hm */}',
}


def check_error(response: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert 10 < len(error["message"]) < 300
    assert "pydantic" not in error["message"]
    assert "Traceback" not in error["message"]
    return error


def test_good_bodies_of_the_table_are_good(http: httpx.Client) -> None:
    assert http.post(CHAT, json=GOOD[CHAT]).status_code == 200
    assert http.post(TEXT, json=GOOD[TEXT]).status_code == 200


@pytest.mark.parametrize(("route", "fields", "status", "param"), WRONG_FIELDS, ids=lambda value: str(value)[:60])
def test_wrong_field_is_named(
    http: httpx.Client, route: str, fields: dict[str, Any], status: int, param: str | None
) -> None:
    body = {name: value for name, value in {**GOOD[route], **fields}.items() if value is not ...}
    check_error(http.post(route, json=body), status, param)


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_malformed_body_is_refused(http: httpx.Client, route: str, content: bytes) -> None:
    response = http.post(route, content=content, headers=JSON)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("text", ["a\x00b", "\U0010ffff", "\u202e\ufeff", "<|im_end|>" * 50, " " * 3000])
def test_strange_text_is_no_error_of_the_server(http: httpx.Client, text: str) -> None:
    for route, body in (
        (TEXT, {"prompt": text, "max_tokens": 1}),
        (CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 1}),
    ):
        assert http.post(route, json=body).status_code in (200, 400)


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_body_that_is_not_declared_as_json_is_refused(http: httpx.Client, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    check_error(http.post(TEXT, content=json.dumps(GOOD[TEXT]), headers=headers), 415)


def test_json_with_a_charset_is_accepted(http: httpx.Client) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert http.post(TEXT, content=json.dumps(GOOD[TEXT]), headers=headers).status_code == 200


def test_too_large_body_is_refused_unread(http: httpx.Client) -> None:
    check_error(http.post(TEXT, content=b" " * (16 * 2**20 + 1), headers=JSON), 413)


def test_too_large_body_without_a_declared_length_is_refused(http: httpx.Client) -> None:
    check_error(http.post(TEXT, content=(b" " * 2**20 for _ in range(32)), headers=JSON), 413)


def test_the_reason_reaches_a_client_that_reads_only_once_it_has_sent_everything(server: BackgroundServer) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        size = 20 * 2**20
        connection.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\n" % TEXT.encode())
        connection.sendall(b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(20):
            connection.sendall(b" " * 2**20)
        time.sleep(0.1)
        answer = b""
        while more := connection.recv(65536):
            answer += more
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"body_too_large" in answer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "prompt", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "river " * 3000}]}, "messages"),
        (TEXT, {"prompt": [7] * 2048}, "prompt"),
        (TEXT, {"prompt": [[7], [7] * 2048]}, "prompt[1]"),
    ],
    ids=["chat", "ids", "second prompt"],
)
def test_over_long_prompt_is_refused_saying_both_lengths(
    http: httpx.Client, route: str, prompt: dict[str, Any], param: str, stream: bool
) -> None:
    error = check_error(http.post(route, json={**prompt, "stream": stream}), 400, param)
    assert error["code"] == "context_length_exceeded"
    assert "2048" in error["message"]
    if route == TEXT:
        assert error["message"].count("2048") == 2
    assert_pool_at_rest(http)


def test_absurdly_long_text_is_refused_without_tokenizing(http: httpx.Client) -> None:
    response = http.post(TEXT, json={"prompt": "a" * 1_500_000})
    assert check_error(response, 400, "prompt")["code"] == "context_length_exceeded"
    assert response.elapsed.total_seconds() < 2


@pytest.mark.parametrize("field", ["stop_token_ids", "messages", "tools"])
def test_very_many_wrong_entries_are_one_error(http: httpx.Client, field: str) -> None:
    response = http.post(CHAT, json={**GOOD[CHAT], field: ["x"] * 300_000})
    check_error(response, 400, f"{field}[0]")
    assert response.elapsed.total_seconds() < 2


def test_longest_prompt_that_fits_gets_one_token(http: httpx.Client) -> None:
    reply = http.post(TEXT, json={"prompt": [7] * 2047, "max_tokens": 100, "ignore_eos": True}).json()
    assert reply["usage"]["completion_tokens"] == 1
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("huge", [{"max_tokens": 10**30, "stop": "\n"}, {"top_k": 10**30, "max_tokens": 2}])
def test_larger_than_needed_is_as_large_as_possible(http: httpx.Client, huge: dict[str, Any]) -> None:
    assert http.post(TEXT, json={"prompt": [7] * 2040, **huge}).status_code == 200


def test_sdk_raises_its_own_exceptions(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        sdk.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
    assert unknown.value.code == "model_not_found"
    assert MODEL in str(unknown.value)
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.completions.create(model=MODEL, prompt="x", temperature=-1)
    assert bad.value.param == "temperature"


def test_nothing_is_left_behind(http: httpx.Client) -> None:
    assert_pool_at_rest(http)
