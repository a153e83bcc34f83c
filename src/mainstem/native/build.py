"""Builds the native extension: at installation, or later with `python -m mainstem.native`.

The extension is a plain shared library without Python's headers, so this is one call of a C compiler. CC names another
compiler, CFLAGS adds flags. The library carries a hash of its sources, by which one of other sources is known. It
imports nothing of mainstem, for it runs before mainstem is installed.
"""

from __future__ import annotations

import hashlib
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


def source_mark() -> str:
    """What a library that is built from the sources as they are carries."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.parent.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"mainstem source {digest.hexdigest()}"


def is_current(library: Path = LIBRARY) -> bool:
    """Whether a library was built from the sources that lie beside this file; one without sources is taken as it is.

    Raises:
        OSError: when it cannot be read.
    """
    return not SOURCE.exists() or source_mark().encode() in library.read_bytes()


def build(library: Path = LIBRARY) -> str | None:
    """Compile the extension into `library`; returns why that was not possible, or None. An old one is removed first."""
    library.unlink(missing_ok=True)
    compiler = find_compiler()
    if not compiler:
        return f"there is no C compiler ({', '.join(COMPILERS)})"
    flags = [*FLAGS, f'-DSOURCE_MARK="{source_mark()}"', *shlex.split(os.environ.get("CFLAGS", ""))]
    # Other processes may look for the library meanwhile: it appears when it is whole.
    draft = library.with_name(f"{library.name}.{os.getpid()}")
    command = [*compiler, *flags, str(SOURCE), "-o", str(draft), "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode:
            return f"'{shlex.join(command)}' failed: {done.stderr.strip()[:2000]}"
        draft.replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        draft.unlink(missing_ok=True)
    sys.stderr.write(done.stderr)
    return None
