"""What errors say: their codes are all in docs/api.md, and values of requests are told as JSON spells them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from mainstem.server.errors import Code

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "mainstem"
RAISING = ("ApiError", "InvalidRequest", "refuse")


def calls(*folders: str) -> Iterator[tuple[Path, ast.Call]]:
    """Calls in the source that make an error for a client."""
    for path in sorted(file for folder in folders for file in (SOURCE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISING:
                yield path, node


def codes_in_the_table() -> list[str]:
    """The second column of the table of errors."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    _, _, section = page.partition("\n## Errors\n")
    rows = [line.split("|") for line in section.partition("\n## ")[0].splitlines() if re.match(r"\| \d{3}", line)]
    return [code for row in rows for code in re.findall(r"`(\w+)`", row[2])]


def test_the_page_lists_every_code_once() -> None:
    assert sorted(codes_in_the_table()) == sorted(get_args(Code))


def test_every_code_is_sent_somewhere() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (SOURCE / "server").glob("*.py")]
    assert [code for code in get_args(Code) if sum(text.count(f'"{code}"') for text in texts) < 2] == []


@pytest.mark.parametrize("folder", ["server", "tokens", "tools"])
def test_no_refusal_shows_a_value_as_python_spells_it(folder: str) -> None:
    shown = [
        f"{path.name}:{part.lineno}"
        for path, call in calls(folder)
        for part in ast.walk(call)
        if isinstance(part, ast.FormattedValue) and part.conversion == ord("r")
    ]
    assert shown == []
