"""docs/settings.md says what the settings say."""

from __future__ import annotations

from pathlib import Path

from mainstem.cli.settings_page import render

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: make docs"
