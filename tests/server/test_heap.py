"""One heap for all threads of a server, in processes of their own: it cannot be undone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNT_HEAPS = """
import ctypes, sys, threading
from mainstem.server.heap import share_one_heap

libc = ctypes.CDLL(None)
if not hasattr(libc, "gnu_get_libc_version"):
    sys.exit("not glibc")
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
{first}
together = threading.Barrier(4)

def allocate():
    together.wait(10)
    libc.malloc(ctypes.c_size_t(5000))
    together.wait(10)

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(open(sys.argv[1]).read().count("<heap "))
"""


def heaps(path: str, first: str, environment: dict[str, str] | None = None) -> int:
    """How many heaps a process has of which four threads have allocated something."""
    command = [sys.executable, "-c", COUNT_HEAPS.format(first=first), path]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | (environment or {}), timeout=60, check=False
    )
    if "not glibc" in done.stderr:
        pytest.skip("the C library is not glibc")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_threads_share_one_heap(tmp_path: Path) -> None:
    assert heaps(f"{tmp_path}/info", "") > 1
    assert heaps(f"{tmp_path}/info", "assert share_one_heap()") == 1


@pytest.mark.parametrize(
    ("variable", "value"), [("MALLOC_ARENA_MAX", "3"), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=3")]
)
def test_what_the_environment_says_holds(tmp_path: Path, variable: str, value: str) -> None:
    assert heaps(f"{tmp_path}/info", "assert not share_one_heap()", {variable: value}) == 3
