"""Whatever makes a request long, it is read and rendered away from the event loop, which answers others meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from mainstem.server import bodies, conversation_body, system
from mainstem.server.validation import parse_body
from mainstem.tokens import Tokenizer
from mainstem.tokens.chat import read_messages
from mainstem.tokens.history import TokenHistory
from mainstem.tokens.reading import read_on
from mainstem.tokens.rendering import ChatTemplate
from tests.server.conftest import MODEL

WORKER = "mainstem-text"
EMPTY = {"role": "user", "content": ""}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
MARKED = {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}
# They say nothing, or next to nothing.
LONG: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("/v1/chat/completions", {"messages": [EMPTY] * 3000}),
    "parts": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [MARKED] * 1500}]}),
    "calls": ("/v1/chat/completions", {"messages": [EMPTY, {"role": "assistant", "tool_calls": [CALL] * 1500}]}),
    "tools": (
        "/v1/chat/completions",
        {
            "messages": [EMPTY],
            "tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(2000)],
        },
    ),
    "responses": ("/v1/responses", {"input": [EMPTY] * 3000}),
    "anthropic": ("/v1/messages", {"messages": [EMPTY] * 3000, "max_tokens": 1}),
    "blocks": ("/v1/messages", {"messages": [{"role": "user", "content": [MARKED] * 1500}], "max_tokens": 1}),
    "count": ("/v1/messages/count_tokens", {"messages": [EMPTY] * 3000}),
    "prompts": ("/v1/completions", {"prompt": ["a word " * 100] * 100, "max_tokens": 1}),
    "tokenize": ("/tokenize", {"messages": [EMPTY] * 3000}),
}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads that read messages, render them and make tokens of them."""
    seen: set[str] = set()

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.add(threading.current_thread().name.rpartition("_")[0])
            return work(*args, **kwargs)

        return call

    monkeypatch.setattr(bodies, "parse_body", noted(parse_body))
    monkeypatch.setattr(conversation_body, "read_on", noted(read_on))
    monkeypatch.setattr(system, "read_messages", noted(read_messages))
    monkeypatch.setattr(Tokenizer, "encode_prompt", noted(Tokenizer.encode_prompt))
    monkeypatch.setattr(ChatTemplate, "render", noted(ChatTemplate.render))
    monkeypatch.setattr(TokenHistory, "encode", noted(TokenHistory.encode))
    return seen


@pytest.mark.parametrize("kind", LONG)
def test_a_long_request_leaves_the_event_loop_whatever_it_is_long_with(
    http: httpx.Client, threads: set[str], kind: str
) -> None:
    path, body = LONG[kind]
    http.post(path, json={"model": MODEL, **body})
    assert threads == {WORKER}


def test_a_short_request_stays_in_the_event_loop(http: httpx.Client, threads: set[str]) -> None:
    http.post("/v1/chat/completions", json={"model": MODEL, "messages": [EMPTY], "max_tokens": 1})
    assert threads
    assert WORKER not in threads
