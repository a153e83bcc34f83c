"""Builds the native extension when mainstem is installed; without a C compiler it is left out."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

NATIVE = Path("src/mainstem/native")


class NativeExtension(BuildHookInterface):  # type: ignore[misc]
    """Compiles the extension before the package is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the hook's interface
        """Build the extension and add it to the wheel."""
        reason = runpy.run_path(str(Path(self.root) / NATIVE / "build.py"))["build"]()
        if reason is not None:
            self.app.display_warning(f"mainstem: no native extension, PyTorch's operators are used instead: {reason}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{next(platform_tags())}"
        build_data["artifacts"].append(str(NATIVE / "native.so"))
