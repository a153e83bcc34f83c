"""Builds the native attention extension when mainstem is installed; without a C compiler it is left out.

The extension is a plain shared library (see src/mainstem/attention/native/library.py), so this is one call of the
compiler. CC names another compiler, CFLAGS adds flags.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/mainstem/attention/native")
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-Wall", "-Wextra", "-fPIC", "-shared"]
COMPILERS = ("cc", "gcc", "clang")


class NativeExtension(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles `segments.c` before the package is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the hook's interface
        """Build the extension and add it to the wheel."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / NATIVE
        reason = build(folder / "segments.c", folder / "segments.so")
        if reason is not None:
            self.app.display_warning(f"mainstem: no native attention, PyTorch's is used instead: {reason}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"
        build_data["artifacts"].append(str(NATIVE / "segments.so"))


def build(source: Path, library: Path) -> str | None:
    """Compile the extension; returns why that was not possible, or None."""
    library.unlink(missing_ok=True)
    wanted = shlex.split(os.environ.get("CC", ""))
    compiler = wanted or [found for name in COMPILERS if (found := shutil.which(name))][:1]
    if not compiler:
        return f"there is no C compiler ({', '.join(COMPILERS)})"
    command = [*compiler, *FLAGS, *shlex.split(os.environ.get("CFLAGS", "")), str(source), "-o", str(library), "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        library.unlink(missing_ok=True)
        return f"'{shlex.join(command)}' failed: {done.stderr.strip()[:2000]}"
    sys.stderr.write(done.stderr)
    return None


def _platform() -> str:
    """The platform part of the wheel's tag."""
    from packaging.tags import platform_tags

    return next(iter(platform_tags()))
