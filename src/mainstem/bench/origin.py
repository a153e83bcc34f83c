"""Where figures come from: the command, the machine and the versions, to be kept beside them. It measures nothing."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mainstem import __version__

_PACKAGES = ("torch", "transformers", "numpy")


def origin(command: Sequence[str]) -> dict[str, Any]:
    """Command, date, machine and versions, fit for JSON."""
    return {
        "command": shlex.join(command),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": {"cpus": cores(), "architecture": platform.machine(), "cpu": cpu_name()},
        "versions": {
            "python": platform.python_version(),
            "mainstem": __version__,
            **({} if (commit := _commit()) is None else {"commit": commit}),
            **{name: found for name in _PACKAGES if (found := _version(name)) is not None},
        },
    }


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str | None:
    """The commit that this runs from, and whether it was changed; None where it is not a checkout."""
    here = Path(__file__).parent
    try:
        asked = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude=*"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
        inside = subprocess.run(
            ["git", "-C", str(here), "ls-files", "--error-unmatch", __file__],
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == inside.returncode == 0 else None


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
