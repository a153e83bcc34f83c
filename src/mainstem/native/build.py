"""Builds the native extension: at installation, or later with `python -m mainstem.native`.

The extension is a plain shared library without Python's headers, so this is one call of a C compiler. CC names another
compiler, CFLAGS adds flags. It imports nothing of mainstem, for it runs before mainstem is installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("native.c")
LIBRARY = SOURCE.with_suffix(".so")
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-Wall", "-Wextra", "-fPIC", "-shared")
COMPILERS = ("cc", "gcc", "clang")
TIMEOUT = 600.0


def find_compiler() -> list[str]:
    """The command of the C compiler: what CC says, or the first that is there, or nothing."""
    wanted = shlex.split(os.environ.get("CC", ""))
    return wanted or [found for name in COMPILERS if (found := shutil.which(name))][:1]


def build(library: Path = LIBRARY) -> str | None:
    """Compile the extension into `library`; returns why that was not possible, or None. An old one is removed first."""
    library.unlink(missing_ok=True)
    compiler = find_compiler()
    if not compiler:
        return f"there is no C compiler ({', '.join(COMPILERS)})"
    flags = [*FLAGS, *shlex.split(os.environ.get("CFLAGS", ""))]
    command = [*compiler, *flags, str(SOURCE), "-o", str(library), "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        library.unlink(missing_ok=True)
        return f"'{shlex.join(command)}' failed: {done.stderr.strip()[:2000]}"
    sys.stderr.write(done.stderr)
    return None
