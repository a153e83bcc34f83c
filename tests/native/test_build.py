"""Tests of building the native extension: with any compiler, with none, and under the address sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.native import NativeLibrary, library
from mainstem.native import build as build_module
from mainstem.native.build import build, find_compiler, is_current, source_mark

# The library is named by assignment, as in the tests of a missing one.
RUN_TESTS_WITH = """
import sys, pathlib, pytest
from mainstem.native import library
library.LIBRARY = pathlib.Path(sys.argv[1])
sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[2:]]))
"""

TESTS = ("tests/attention/test_native_attention.py", "tests/model/test_linear.py")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_builds_without_a_warning(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("CFLAGS", "-Werror")
    assert build(tmp_path / "native.so") is None
    assert NativeLibrary(tmp_path / "native.so").instruction_sets


def test_without_a_compiler_the_old_library_goes_and_the_reason_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    library = tmp_path / "native.so"
    library.write_text("of another machine")
    reason = build(library)
    assert reason is not None
    assert "no C compiler" in reason
    assert not library.exists()


def test_a_library_knows_the_sources_it_was_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not find_compiler():
        pytest.skip("no C compiler is installed")
    monkeypatch.setenv("CFLAGS", "-O0")
    library = tmp_path / "native.so"
    assert build(library) is None
    assert is_current(library)
    library.write_bytes(library.read_bytes().replace(source_mark().encode(), b"mainstem source of another day" * 2))
    assert not is_current(library)


@pytest.mark.parametrize("works", [True, False], ids=["with a compiler", "without"])
def test_a_library_of_other_sources_is_built_again_or_left_out(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if works and not find_compiler():
        pytest.skip("no C compiler is installed")
    path = tmp_path / "native.so"
    path.write_text("of another day")
    monkeypatch.setattr(library, "LIBRARY", path)
    monkeypatch.setattr(build_module, "LIBRARY", path)
    monkeypatch.setattr(build, "__defaults__", (path,))
    monkeypatch.setattr(is_current, "__defaults__", (path,))
    monkeypatch.setenv("CFLAGS", "-O0")
    if not works:
        monkeypatch.setenv("CC", "false")
    library.native_library.cache_clear()
    try:
        assert (library.native_library() is not None) == works
    finally:
        library.native_library.cache_clear()
    assert "built from other sources" in caplog.text
    assert works or "PyTorch's operators are used instead" in caplog.text


@pytest.mark.parametrize(("compiler", "reason"), [("false", "failed"), ("no-such-compiler", "No such file")])
def test_a_compiler_that_fails_is_named(
    compiler: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert reason in (build(tmp_path / "native.so") or "")


def test_no_access_outside_of_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sanitizer = _sanitizer()
    if sanitizer is None:
        pytest.skip("gcc's address sanitizer is not installed")
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setenv("CFLAGS", "-O0 -g -fsanitize=address")  # optimising takes longer than the tests
    library = tmp_path / "native.so"
    assert build(library) is None
    environment = os.environ | {
        "LD_PRELOAD": sanitizer,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "PYTHONMALLOC": "malloc",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN_TESTS_WITH, str(library), *TESTS],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "passed" in done.stdout


def _sanitizer() -> str | None:
    """Where gcc's address sanitizer is."""
    if shutil.which("gcc") is None:
        return None
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    path = Path(found.stdout.strip())
    return str(path.resolve()) if path.is_absolute() else None
