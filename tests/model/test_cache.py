"""What is made once is whole or not there, whoever dies or damages it meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from mainstem.errors import ModelLoadError
from mainstem.model.cache import cache_folder, make_once
from mainstem.model.progress import no_progress


class Build:
    """Writes two files and counts how often it was asked to."""

    def __init__(self, *, seconds: float = 0.0) -> None:
        self.times = 0
        self.seconds = seconds

    def __call__(self, folder: Path) -> None:
        self.times += 1
        (folder / "a").write_text("first")
        time.sleep(self.seconds)
        (folder / "b").write_text("second")


def make(folder: Path, build: Build) -> Path:
    return make_once(folder, build, no_progress)


def test_a_folder_is_built_once(tmp_path: Path) -> None:
    build = Build()
    assert make(tmp_path / "x", build) == make(tmp_path / "x", build) == tmp_path / "x"
    assert build.times == 1
    assert (tmp_path / "x" / "b").read_text() == "second"


def test_a_missing_file_is_made_again(tmp_path: Path) -> None:
    build = Build()
    (make(tmp_path / "x", build) / "a").unlink()
    make(tmp_path / "x", build)
    assert build.times == 2
    assert (tmp_path / "x" / "a").read_text() == "first"


def test_a_truncated_file_is_made_again(tmp_path: Path) -> None:
    build = Build()
    (make(tmp_path / "x", build) / "a").write_text("fir")
    make(tmp_path / "x", build)
    assert (tmp_path / "x" / "a").read_text() == "first"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "5", "null", '{"a": 5}', '{"a": 5, "b": null}', '{"a": 5, "b": 6, "c": 1}']
)
def test_a_damaged_list_of_files_means_a_damaged_folder(tmp_path: Path, content: str) -> None:
    build = Build()
    (make(tmp_path / "x", build) / "mainstem.json").write_text(content)
    make(tmp_path / "x", build)
    assert build.times == 2


def test_a_damaged_folder_is_told_of_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make(tmp_path / "x", Build())
    assert caplog.messages == []
    (folder / "mainstem.json").write_text("{}")
    make(folder, Build())
    assert caplog.messages == [f"{folder} is damaged; its files are made again"]


def test_what_a_file_manager_leaves_there_is_no_damage(tmp_path: Path) -> None:
    build = Build()
    (make(tmp_path / "x", build) / ".DS_Store").write_text("")
    make(tmp_path / "x", build)
    assert build.times == 1


def test_a_folder_that_was_put_there_by_hand_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a").write_text("other")
    make(tmp_path / "x", Build())
    assert (tmp_path / "x" / "a").read_text() == "first"


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "a").write_text("first")
        raise ModelLoadError("no luck")

    with pytest.raises(ModelLoadError, match="no luck"):
        make_once(tmp_path / "x", fail, no_progress)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "x.tmp-dead").mkdir()
    make(tmp_path / "x", Build())
    assert not (tmp_path / "x.tmp-dead").exists()


def test_of_two_at_once_one_builds_and_the_other_waits(tmp_path: Path) -> None:
    build = Build(seconds=0.3)
    stages: list[str] = []

    def run() -> None:
        make_once(tmp_path / "x", build, lambda stage, *_: stages.append(stage))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.times == 1
    assert stages == ["waiting for another process that prepares the model"]


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelLoadError, match=r"cannot be written .* set MAINSTEM_CACHE"):
        make(tmp_path / "file" / "x", Build())


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MAINSTEM_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


@pytest.mark.parametrize(
    ("platform", "variable", "value", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "/x", "/x/mainstem"),
        ("linux", "XDG_CACHE_HOME", "", "/home/me/.cache/mainstem"),
        ("darwin", "XDG_CACHE_HOME", "/x", "/home/me/Library/Caches/mainstem"),
        ("win32", "LOCALAPPDATA", "/local", "/local/mainstem"),
    ],
)
def test_by_default_it_lies_where_the_system_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, platform: str, variable: str, value: str, expected: str
) -> None:
    monkeypatch.delenv("MAINSTEM_CACHE", raising=False)
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.setenv(variable, value)
    assert cache_folder() == Path(expected)
