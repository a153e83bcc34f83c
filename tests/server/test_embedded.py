"""A conversation with the embedded model, through the real OpenAI client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.model import ModelFiles
from mainstem.server import BackgroundServer

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"


@pytest.fixture(scope="module")
def server(embedded_model: ModelFiles) -> Iterator[BackgroundServer]:
    """Replaces the tiny model's server."""
    engine = AsyncEngine.load(EngineConfig(model=str(embedded_model.folder), kv_memory="256MiB", device="cpu"))
    config = ServerConfig(port=0, drain_seconds=0, served_model_name="smollm2")
    with BackgroundServer(engine, config) as running:
        yield running


def test_ten_turns_of_chat_reuse_prompts_and_replies(sdk: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": "You answer in one short sentence."}]
    known = 0
    for turn in range(10):
        messages.append({"role": "user", "content": f"Say something new about the number {turn + 3}."})
        stream = sdk.chat.completions.create(
            model="smollm2",
            messages=messages,
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        *chunks, last = stream
        assert last.usage is not None
        assert last.usage.prompt_tokens_details is not None
        assert last.usage.prompt_tokens_details.cached_tokens is not None
        assert last.usage.prompt_tokens_details.cached_tokens >= known
        known = last.usage.prompt_tokens + last.usage.completion_tokens - 1
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text
        messages.append({"role": "assistant", "content": text})


def test_same_prompt_warm_gives_the_same_text_as_cold(sdk: openai.OpenAI) -> None:
    kwargs: Any = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Name three rivers in Europe."}],
        "max_tokens": 16,
        "temperature": 0,
    }
    cold, warm = (sdk.chat.completions.create(**kwargs) for _ in range(2))
    assert cold.choices[0].message.content == warm.choices[0].message.content
    assert warm.usage is not None
    assert warm.usage.prompt_tokens_details is not None
    assert warm.usage.prompt_tokens_details.cached_tokens == warm.usage.prompt_tokens - 1


def test_the_samples_of_the_page_about_misses_print_what_it_says(
    server: BackgroundServer, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(samples) == 2
    names: dict[str, Any] = {}
    for code, printed in samples:
        exec(code.replace("http://127.0.0.1:8000", server.url), names)
        assert capsys.readouterr().out == printed
