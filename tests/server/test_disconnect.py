"""A client that goes away takes its request with it, and nothing else."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from mainstem.server import BackgroundServer, workers
from mainstem.server.workers import Workers
from tests.server.conftest import MODEL, assert_pool_at_rest, metric, wait_until

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
ENDLESS: dict[str, Any] = {"max_tokens": 1900, "ignore_eos": True}


def running(http: httpx.Client) -> float:
    return metric(http, "mainstem_num_requests_running") + metric(http, "mainstem_num_requests_waiting")


def generated(http: httpx.Client) -> float:
    return metric(http, "mainstem_generation_tokens_total")


@contextlib.contextmanager
def raw_request(server: BackgroundServer, body: bytes) -> Iterator[socket.socket]:
    """A connection on which a request has been sent whose reply nobody reads."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        yield connection


def assert_given_up(http: httpx.Client, aborted_before: float, count: int = 1) -> None:
    wait_until(lambda: running(http) == 0, seconds=2)
    assert metric(http, "mainstem_requests_aborted_total") == aborted_before + count
    assert_pool_at_rest(http)
    still = generated(http)
    time.sleep(0.05)
    assert generated(http) == still


def test_closing_a_stream_aborts_it(sdk: openai.OpenAI, http: httpx.Client) -> None:
    aborted = metric(http, "mainstem_requests_aborted_total")
    stream = sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True, max_tokens=1900, extra_body=ENDLESS
    )
    for _ in range(5):
        next(stream)
    assert running(http) == 1
    stream.close()
    assert_given_up(http, aborted)


def test_leaving_before_a_whole_reply_aborts_it(server: BackgroundServer, http: httpx.Client) -> None:
    aborted = metric(http, "mainstem_requests_aborted_total")
    with raw_request(server, b'{"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": true}'):
        wait_until(lambda: running(http) == 1)
    assert_given_up(http, aborted)


def test_leaving_before_the_first_token_of_a_stream_aborts_it(server: BackgroundServer, http: httpx.Client) -> None:
    before = running(http) + metric(http, "mainstem_requests_aborted_total")
    prompt = b"[" + b",".join(b"%d" % (3 + i % 400) for i in range(1900)) + b"]"
    with raw_request(server, b'{"stream": true, "ignore_eos": true, "max_tokens": 100, "prompt": ' + prompt + b"}"):
        wait_until(lambda: running(http) == 1)
    assert_given_up(http, before)


def test_leaving_takes_long_text_that_waits_to_be_tokenized_out_of_the_queue(
    server: BackgroundServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, go_on = Workers(1), threading.Event()
    monkeypatch.setattr(workers, "_workers", few)
    busy = few.submit("another", lambda: go_on.wait(30))
    try:
        with raw_request(server, b'{"prompt": "%s"}' % (b"x" * (workers.THREAD_CHARACTERS + 1))):
            wait_until(lambda: few.num_waiting == 1)
        wait_until(lambda: few.num_waiting == 0)
        assert not busy.done()
    finally:
        go_on.set()


def test_every_choice_of_every_prompt_is_given_up(server: BackgroundServer, http: httpx.Client) -> None:
    aborted = metric(http, "mainstem_requests_aborted_total")
    body = b'{"prompt": [[5, 6], [7, 8], [9]], "n": 2, "max_tokens": 1900, "ignore_eos": true, "stream": true}'
    with raw_request(server, body):
        wait_until(lambda: running(http) == 6)
    assert_given_up(http, aborted, 6)


def test_leaving_in_the_middle_of_a_body_is_no_error(
    server: BackgroundServer, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(HEAD + b'content-length: 100\r\n\r\n{"prompt"')
    time.sleep(0.1)
    assert http.get("/health").status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_what_was_computed_stays_cached(server: BackgroundServer, http: httpx.Client) -> None:
    prompt = [70, *range(100, 200)]
    with raw_request(server, b'{"max_tokens": 1900, "ignore_eos": true, "prompt": %s}' % str(prompt).encode()):
        wait_until(lambda: running(http) == 1)
        before = generated(http)
        wait_until(lambda: generated(http) > before + 3)
    wait_until(lambda: running(http) == 0)
    reply = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).json()
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 100


def test_others_are_not_disturbed(server: BackgroundServer, sdk: openai.OpenAI, http: httpx.Client) -> None:
    kwargs: Any = {"model": MODEL, "prompt": [71, 72, 73], "max_tokens": 80, "temperature": 0}
    alone = sdk.completions.create(**kwargs, extra_body={"ignore_eos": True}).choices[0].text
    texts: list[str] = []

    def stay() -> None:
        stream = sdk.completions.create(stream=True, **kwargs, extra_body={"ignore_eos": True})
        texts.append("".join(chunk.choices[0].text for chunk in stream))

    staying = [threading.Thread(target=stay) for _ in range(3)]
    for thread in staying:
        thread.start()
    for _ in range(5):
        with raw_request(
            server, b'{"prompt": [71, 72, 73, 74], "max_tokens": 1900, "ignore_eos": true, "stream": true}'
        ):
            time.sleep(0.02)
    for thread in staying:
        thread.join()
    assert texts == [alone] * 3
    wait_until(lambda: running(http) == 0)
    assert_pool_at_rest(http)


def test_a_client_that_does_not_read_can_still_be_noticed_leaving(server: BackgroundServer, http: httpx.Client) -> None:
    aborted = metric(http, "mainstem_requests_aborted_total")
    body = b'{"prompt": [5], "n": 64, "max_tokens": 2000, "ignore_eos": true, "stream": true, "logprobs": 20}'
    with raw_request(server, body) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wait_until(lambda: running(http) == 64)
        time.sleep(0.3)
    wait_until(lambda: running(http) == 0)
    assert metric(http, "mainstem_requests_aborted_total") == aborted + 64
    assert_pool_at_rest(http)
