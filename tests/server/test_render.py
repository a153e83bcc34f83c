"""The prompt of a chat request, without a reply."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import numpy as np
import pytest

from mainstem.server.render import pieces
from mainstem.tokens import Conversation, Message
from tests.server.conftest import MODEL, metric
from tests.server.tools import CHAT_TOOLS

ROUTE = "/v1/chat/completions/render"
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Straße, 東京 🌊?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "now", "arguments": '{"a":  1}'}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "noon"},
]


@pytest.fixture
def rendered(http: httpx.Client) -> dict[str, Any]:
    body = {"model": MODEL, "messages": MESSAGES, "tools": CHAT_TOOLS, "max_tokens": 1}
    response: dict[str, Any] = http.post(ROUTE, json=body).json()
    return response


def test_it_is_the_prompt_that_a_reply_has(http: httpx.Client, rendered: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, "tools": CHAT_TOOLS, "max_tokens": 1}
    usage = http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["prompt_tokens"] == rendered["count"] == len(rendered["token_ids"])
    tokens = http.post("/tokenize", json={"messages": MESSAGES, "tools": CHAT_TOOLS}).json()["tokens"]
    assert tokens == rendered["token_ids"]
    assert http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == rendered["prompt"]


def test_nothing_is_generated(http: httpx.Client) -> None:
    before = metric(http, "mainstem_generation_tokens_total")
    assert http.post(ROUTE, json={"messages": MESSAGES}).status_code == 200
    assert metric(http, "mainstem_generation_tokens_total") == before


def test_the_parts_make_the_prompt_and_name_their_fields(rendered: dict[str, Any]) -> None:
    parts = rendered["parts"]
    assert "".join(part["text"] for part in parts) == rendered["prompt"]
    said = {part["source"]: part["text"] for part in parts if part["source"] != "template"}
    assert said == {
        "messages[0].content": "Be brief.",
        "messages[1].content": "Straße, 東京 🌊?",
        "messages[2].tool_calls[0].function.name": "now",
        "messages[2].tool_calls[0].function.arguments": '{"a":  1}',
        "messages[3].content": "noon",
    }


def test_the_parts_cover_the_tokens_without_a_gap(http: httpx.Client, rendered: dict[str, Any]) -> None:
    bounds = [part["tokens"] for part in rendered["parts"]]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == rendered["count"]
    assert all(one[1] == other[0] for one, other in itertools.pairwise(bounds))
    # The last message's tokens say its text; the template's neighbours are special tokens or line breaks.
    part = next(part for part in rendered["parts"] if part["source"] == "messages[3].content")
    first, last = part["tokens"]
    text = http.post("/detokenize", json={"tokens": rendered["token_ids"][first:last]}).json()["prompt"]
    assert "noon" in text


def test_a_forced_reply_says_its_grammar(http: httpx.Client) -> None:
    body = {"messages": MESSAGES[:2], "tools": CHAT_TOOLS}
    assert http.post(ROUTE, json=body).json()["grammar"] is None
    assert "forecast" in http.post(ROUTE, json={**body, "tool_choice": "required"}).json()["grammar"]


def test_what_is_wrong_is_refused_as_by_the_reply(http: httpx.Client) -> None:
    response = http.post(ROUTE, json={"messages": []})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


def test_a_text_that_the_template_changed_counts_as_the_templates() -> None:
    conversation = Conversation((Message(role="user", parts=("hello",)), Message(role="user", parts=("",))))
    assert list(pieces(conversation, "<HELLO>")) == [("template", 0, 7)]
    assert np.array_equal(
        [piece.source for piece in pieces(conversation, "a hello b")], ["template", "messages[0].content", "template"]
    )
