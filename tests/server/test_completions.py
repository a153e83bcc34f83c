"""Plain completions: forms of prompts, choices, echo, log-probabilities."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion

from tests.server.conftest import MODEL, metric

LONG = {"ignore_eos": True}


def complete(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post("/v1/completions", json={"temperature": 0, **LONG, **body})
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def test_reply_has_every_field_of_openais_schema(http: httpx.Client) -> None:
    reply = complete(http, prompt="the river", max_tokens=3)
    Completion.model_validate(reply, strict=True)
    assert reply["object"] == "text_completion"
    assert reply["usage"]["completion_tokens"] == 3


def test_sixteen_tokens_are_the_default(http: httpx.Client) -> None:
    assert complete(http, prompt="the river")["usage"]["completion_tokens"] == 16


def test_text_and_its_ids_are_the_same_prompt(http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"prompt": "the quick brown fox"}).json()["tokens"]
    by_text, by_ids = complete(http, prompt="the quick brown fox"), complete(http, prompt=ids)
    assert by_text["choices"][0]["text"] == by_ids["choices"][0]["text"]
    assert by_ids["usage"]["prompt_tokens"] == len(ids)
    assert by_ids["usage"]["prompt_tokens_details"]["cached_tokens"] == len(ids) - 1


@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_has_its_own_group_of_choices(sdk: openai.OpenAI, http: httpx.Client, stream: bool) -> None:
    prompts = ["the river", "def main", "a tree of tokens"]
    alone = [complete(http, prompt=prompt, max_tokens=6)["choices"][0]["text"] for prompt in prompts]
    kwargs: Any = {"model": MODEL, "prompt": prompts, "n": 2, "max_tokens": 6, "temperature": 0, "extra_body": LONG}
    texts = [""] * 6
    if stream:
        for chunk in sdk.completions.create(stream=True, **kwargs):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    else:
        reply = sdk.completions.create(**kwargs)
        assert [choice.index for choice in reply.choices] == list(range(6))
        texts = [choice.text for choice in reply.choices]
    assert texts == [text for text in alone for _ in range(2)]


def test_lists_of_ids_are_several_prompts(http: httpx.Client) -> None:
    reply = complete(http, prompt=[[10, 11, 12], [13, 14]], max_tokens=2)
    assert len(reply["choices"]) == 2
    assert reply["usage"]["prompt_tokens"] == 5
    assert reply["usage"]["completion_tokens"] == 4


def test_stream_gives_the_same_text_as_a_whole_reply(sdk: openai.OpenAI) -> None:
    kwargs: Any = {"model": MODEL, "prompt": "the river", "max_tokens": 20, "temperature": 0, "extra_body": LONG}
    whole = sdk.completions.create(**kwargs).choices[0]
    chunks = list(sdk.completions.create(stream=True, **kwargs))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])


def test_stream_ends_with_usage_when_asked(sdk: openai.OpenAI) -> None:
    *_, last = sdk.completions.create(
        model=MODEL,
        prompt=[5, 6, 7],
        max_tokens=2,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=LONG,
    )
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 2)


@pytest.mark.parametrize("prompt", ["the river", [20, 21, 22]], ids=["text", "ids"])
def test_echo_puts_the_prompt_before_the_text(sdk: openai.OpenAI, http: httpx.Client, prompt: Any) -> None:
    text = prompt
    if not isinstance(prompt, str):
        text = http.post("/detokenize", json={"tokens": prompt}).json()["prompt"]
    plain = complete(http, prompt=prompt, max_tokens=4)["choices"][0]["text"]
    kwargs: Any = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": 4,
        "temperature": 0,
        "echo": True,
        "extra_body": LONG,
    }
    assert sdk.completions.create(**kwargs).choices[0].text == text + plain
    streamed = sdk.completions.create(stream=True, **kwargs)
    assert "".join(chunk.choices[0].text for chunk in streamed) == text + plain


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_parallel_lists(sdk: openai.OpenAI, stream: bool) -> None:
    kwargs: Any = {
        "model": MODEL,
        "prompt": "the river",
        "max_tokens": 5,
        "temperature": 0,
        "logprobs": 2,
        "extra_body": LONG,
    }
    replies = sdk.completions.create(stream=True, **kwargs) if stream else [sdk.completions.create(**kwargs)]
    tokens: list[str] = []
    offsets: list[int] = []
    for reply in replies:
        logprobs = reply.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.tokens is not None
        assert logprobs.token_logprobs is not None
        assert logprobs.top_logprobs is not None
        assert logprobs.text_offset is not None
        for token, chosen, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
            assert top[token] == chosen == max(top.values())
            assert len(top) <= 2
        tokens += logprobs.tokens
        offsets += logprobs.text_offset
    assert len(tokens) == 5
    assert offsets == [len("".join(tokens[:count])) for count in range(5)]


def test_logprobs_zero_reports_the_chosen_token_only(http: httpx.Client) -> None:
    logprobs = complete(http, prompt="the river", max_tokens=2, logprobs=0)["choices"][0]["logprobs"]
    assert [list(top) for top in logprobs["top_logprobs"]] == [[token] for token in logprobs["tokens"]]


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_returned_on_request(sdk: openai.OpenAI, stream: bool) -> None:
    kwargs: Any = {
        "model": MODEL,
        "prompt": [5, 6, 7],
        "max_tokens": 4,
        "temperature": 0,
        "extra_body": {"return_token_ids": True, **LONG},
    }
    replies = list(sdk.completions.create(stream=True, **kwargs)) if stream else [sdk.completions.create(**kwargs)]
    choices: list[Any] = [reply.choices[0] for reply in replies]
    assert choices[0].prompt_token_ids == [5, 6, 7]
    assert len([token for choice in choices for token in choice.token_ids]) == 4


def test_long_id_prompts_are_read_quickly(http: httpx.Client) -> None:
    # 25,000 ids exceed the context: the refusal shows that they were parsed, checked and counted.
    response = http.post("/v1/completions", json={"prompt": [7] * 25_000})
    assert response.status_code == 400
    assert "25000" in response.json()["error"]["message"]
    assert response.elapsed.total_seconds() < 0.5


def test_best_of_returns_the_likeliest_replies_best_first_and_computes_the_prompt_once(http: httpx.Client) -> None:
    http.post("/cache/reset", json={})
    sampled: dict[str, Any] = {"temperature": 1.5, "seed": 3, "max_tokens": 6, "logprobs": 0, "prompt": ["sea", "rain"]}
    every = complete(http, n=5, **sampled)["choices"]
    before = metric(http, "mainstem_prefilled_tokens_total")
    http.post("/cache/reset", json={})
    reply = complete(http, n=2, best_of=5, **sampled)
    means = [sum(choice["logprobs"]["token_logprobs"]) / 6 for choice in every]
    for prompt in range(2):
        ranked = sorted(range(5 * prompt, 5 * prompt + 5), key=lambda index: -means[index])
        expected = [every[index]["text"] for index in ranked[:2]]
        assert [choice["text"] for choice in reply["choices"][2 * prompt : 2 * prompt + 2]] == expected
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["completion_tokens"] == 2 * 5 * 6
    assert metric(http, "mainstem_prefilled_tokens_total") - before == reply["usage"]["prompt_tokens"]


def test_best_of_reports_log_probabilities_only_where_they_are_asked_for(sdk: openai.OpenAI) -> None:
    kwargs: Any = {"model": MODEL, "prompt": "the river", "max_tokens": 3, "best_of": 3}
    (choice,) = sdk.completions.create(**kwargs).choices
    assert choice.logprobs is None
    (choice,) = sdk.completions.create(logprobs=1, **kwargs).choices
    assert choice.logprobs is not None


def test_best_of_as_many_as_are_returned_can_be_streamed(sdk: openai.OpenAI) -> None:
    chunks = sdk.completions.create(model=MODEL, prompt="the river", max_tokens=2, n=2, best_of=2, stream=True)
    assert {chunk.choices[0].index for chunk in chunks} == {0, 1}
