"""How the C library keeps the memory that a server frees.

glibc gives each thread a heap of its own, up to eight a core, from which nothing moves to another. A server's threads
make texts and arrays for one another, so that each heap keeps room that the others could use: tens of megabytes, and a
little more of it each hour.
"""

from __future__ import annotations

import ctypes
import os

_M_ARENA_MAX = -8  # in glibc's malloc.h


def share_one_heap() -> bool:
    """Have all threads share one heap from now on, unless the environment has settled it (`MALLOC_ARENA_MAX`,
    `GLIBC_TUNABLES`); best before there are threads.

    Returns:
        Whether they do: false with another C library than glibc.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "glibc.malloc.arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  others may have a mallopt that takes other numbers
        return bool(libc.mallopt(_M_ARENA_MAX, 1))
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
