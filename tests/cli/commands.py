"""Runs the `mainstem` command as a user does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without its own mainstem settings, on one thread."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAINSTEM_")}
    return {**kept, "OMP_NUM_THREADS": "1", **variables}


def mainstem(*arguments: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """The finished command."""
    return subprocess.run(
        [sys.executable, "-m", "mainstem", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(**(env or {})),
        **options,
    )


def without(*modules: str) -> str:
    """Python code that makes the modules look as if they were not installed."""
    return f"import sys; sys.modules.update(dict.fromkeys({modules!r}));"
