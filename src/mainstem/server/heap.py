"""Gives memory that was freed back to the operating system, which glibc seldom does by itself.

A server makes and frees arrays and texts of all sizes in several threads. What is free between those that stay is kept
for later, a little more of it each hour. `malloc_trim` finds the pages of which nothing is in use; it takes
milliseconds, in which only other allocations wait.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

INTERVAL_S = 60.0


def malloc_trim() -> Callable[[int], int] | None:
    """The C library's function; None where it has none (macOS, musl, Windows)."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found


async def give_back(interval_s: float = INTERVAL_S) -> None:
    """Give back what is free, again and again, until cancelled."""
    trim = malloc_trim()
    while trim is not None:
        await asyncio.sleep(interval_s)
        await asyncio.to_thread(trim, 0)
