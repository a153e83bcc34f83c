"""Tests that the page about branches works as it stands: its code is run in order, with a tiny model."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "branches.md"


def test_the_code_of_the_page_runs(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace('LLM("smollm2")', f'LLM({str(tiny_model)!r}, kv_memory="4MiB")'), names)
        gc.collect()  # a branch that was not dropped would warn
        names["llm"].check_integrity()
        assert names["llm"].stats().cache.protected == 0
    assert capsys.readouterr().out.count("KV memory at its peak") == 2


def test_the_search_takes_thirty_lines() -> None:
    block = next(
        b for b in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL) if "def search" in b
    )
    assert len([line for line in block.splitlines() if line.strip()]) <= 30
