"""The memory budget and the chat template in words."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from mainstem.cli.loading import (
    LoadingDisplay,
    describe_budget,
    describe_findings,
    describe_template,
    format_bytes,
    loading_display,
)
from mainstem.config import EngineConfig
from mainstem.engine.budget import MemoryBudget
from mainstem.engine.checks import check_engine
from mainstem.tokens import Tokenizer
from tests.support.tiny_models import save_tiny_tokenizer

GIB = 2**30


def budget(pool_bytes: int) -> MemoryBudget:
    return MemoryBudget(
        weights_bytes=GIB,
        activations_bytes=GIB // 8,
        pool_bytes=pool_bytes,
        pool_tokens=pool_bytes // 1024,
        kv_bytes_per_token=1024,
        limited_by="--kv-memory",
    )


@pytest.mark.parametrize(
    ("count", "text"), [(GIB * 4, "4.00 GiB"), (GIB, "1.00 GiB"), (GIB - 1, "1024 MiB"), (53 * 2**20, "53 MiB")]
)
def test_bytes_are_told_in_binary_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_the_pool_is_told_in_whole_conversations() -> None:
    told = "\n".join(describe_budget(budget(4 * GIB), 8192))
    assert "4,194,304 tokens of 1,024 bytes: 512 conversations of 8,192 tokens" in told
    assert "(size of the pool: --kv-memory)" in told


def test_a_pool_below_15_percent_of_the_memory_in_use_is_warned_of() -> None:
    (told,) = describe_findings(check_engine(EngineConfig(), budget(GIB // 8), 8192, "native"))
    assert told.startswith("Warning  memory: the KV pool is 10% of the memory in use")


def test_away_from_a_terminal_each_stage_is_one_line() -> None:
    page = io.StringIO()
    with loading_display(Console(file=page)) as display:
        for stage, done, total in (("fetching", 0, 2), ("fetching", 2, 2), ("loading", 0, None)):
            display(stage, done, total)
    assert page.getvalue() == "fetching\nloading\n"


def test_a_new_stage_is_not_finished_when_the_last_one_was() -> None:
    bars = Progress(disable=True)
    display = LoadingDisplay(Console(file=io.StringIO()), bars)
    display("fetching", 2, 2)
    assert bars.tasks[0].finished
    display("loading", 0, None)
    assert not bars.tasks[0].finished


def test_what_a_template_does_to_prefixes_is_told_line_by_line(tmp_path: Path) -> None:
    moves = "{% for m in messages %}{% if loop.last and tools %}{{ tools }}{% endif %}{{ m.content }}\n{% endfor %}"
    lines = describe_template(Tokenizer.load(save_tiny_tokenizer(tmp_path, chat_template=moves)).chat)
    assert [line.partition(":")[0] for line in lines] == [
        "Template breaks prefixes when a tool has answered and when the user speaks again"
    ]
