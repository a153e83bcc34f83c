"""The user's cache folder: things made once and used by every later run.

A folder in it is either whole or not there: it is built beside its place and moved there at the end, under a lock, and
a list of its files with their sizes says later whether it is still whole. It knows nothing of what is built.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from mainstem.errors import ModelLoadError
from mainstem.model.progress import Progress

logger = logging.getLogger(__name__)

_MANIFEST = "mainstem.json"


def cache_folder() -> Path:
    """Where this user's models are kept: `MAINSTEM_CACHE`, else the place that the system has for caches."""
    chosen = os.environ.get("MAINSTEM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return _system_cache() / "mainstem"


def _system_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def make_once(folder: Path, build: Callable[[Path], None], progress: Progress) -> Path:
    """Returns `folder`, building it first if it is missing or damaged. Other processes wait meanwhile.

    Args:
        folder: where it lies, or will.
        build: fills the empty folder that it is given.
        progress: told when another process is waited for.

    Raises:
        ModelLoadError: when the folder cannot be written.
        Whatever `build` raises; nothing is left behind then.
    """
    if is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _build_locked(folder, build, progress)
    except OSError as error:
        raise ModelLoadError(
            f"The cache folder {folder.parent} cannot be written ({error.strerror or error}). "
            "Make room there, or set MAINSTEM_CACHE to another folder."
        ) from error
    return folder


def _build_locked(folder: Path, build: Callable[[Path], None], progress: Progress) -> None:
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("waiting for another process that prepares the model", 0, None)
        lock.acquire()
    try:
        if is_whole(folder):
            return
        if folder.exists():
            logger.warning("%s is damaged; its files are made again", folder)
        for leftover in folder.parent.glob(f"{folder.name}.tmp-*"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
        try:
            build(draft)
            _write_manifest(draft)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    finally:
        lock.release()


def is_whole(folder: Path) -> bool:
    """Whether every file that was built is there at its full size."""
    try:
        sizes = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(sizes, dict) or not sizes:
            return False
        # A list that has lost some of its files proves nothing. Files with a dot are the system's own.
        there = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        listed = there <= {*sizes, _MANIFEST}
        return listed and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _write_manifest(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    (folder / _MANIFEST).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
