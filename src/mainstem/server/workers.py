"""Threads for work on long texts, so that running streams go on meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

THREAD_CHARACTERS = 20_000  # or ids
# Few: each thread that tokenizes remembers 10,000 words of its own (5 MiB), and Python runs one of them at a time.
NUM_WORKERS = max(2, min(4, os.cpu_count() or 2))
_workers = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="mainstem-text")


async def in_worker(work: Callable[[], T]) -> T:
    """What `work` gives, from a worker thread."""
    return await asyncio.get_running_loop().run_in_executor(_workers, work)


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """What `work` gives; from a worker thread if there are many characters, or ids, to work on."""
    return await in_worker(work) if size > THREAD_CHARACTERS else work()
