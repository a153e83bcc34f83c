"""Help, complaints and exit codes of the command."""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import mainstem as package
from mainstem.cli import generate
from mainstem.cli.extras import SERVE_EXTRAS
from mainstem.cli.main import build_parser, main
from mainstem.errors import ConfigError, ModelLoadError, NoSuchModel
from tests.cli.commands import environment, mainstem, without

ROOT = Path(__file__).parents[2]


def test_help_answers_within_half_a_second() -> None:
    best = min(_seconds_for_help() for _ in range(5))
    assert best < 0.5


def _seconds_for_help() -> float:
    started = time.perf_counter()
    assert mainstem("--help").returncode == 0
    return time.perf_counter() - started


def test_help_shows_what_to_type_first() -> None:
    text = mainstem("--help").stdout
    for command in ("mainstem demo", "mainstem serve", "mainstem generate"):
        assert command in text


@pytest.mark.parametrize("command", ["demo", "serve", "doctor", "chat", "generate", "lint"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert "MAINSTEM_MODEL" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_the_examples_in_help_are_commands_that_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    _, _, examples = capsys.readouterr().out.partition("\nexamples:\n")
    commands = [line.split() for line in examples.splitlines() if line.startswith("  mainstem ")]
    assert len(commands) == 3
    for program, *argv in commands:
        assert program == "mainstem"
        assert build_parser().parse_args(argv).command == command


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"mainstem {package.__version__}\n"


def test_no_command_shows_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "mainstem demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["fly"], "error: argument COMMAND: invalid choice: 'fly'"),
        (["serve", "--bogus"], "error: unrecognized arguments: --bogus; try 'mainstem serve --help'"),
        (["doctor", "--port", "1"], "error: unrecognized arguments: --port 1; try 'mainstem doctor --help'"),
        (["--bogus", "demo"], "error: unrecognized arguments: --bogus; try 'mainstem --help'"),
        (["serve", "--port", "many"], "error: --port: 'many' is not a whole number"),
        (["generate"], "error: the following arguments are required: prompt"),
        (
            ["generate", "hi", "--temperature", "-1"],
            "error: --temperature must be between 0 and 100, got -1",
        ),
        (["generate", "hi", "--top-p", "x"], "error: argument --top-p: invalid float value: 'x'"),
        (["generate", "hi", "--raw", "--system", "x"], "error: --system has no place in --raw text"),
        (["chat", "--base-url", "localhost:8000"], "error: --base-url: 'localhost:8000' does not begin with http"),
        (["explain", "--last", "--base-url", "x"], "error: --base-url: 'x' does not begin with http"),
        (["explain", "--last", "--base-url", "http://"], "error: --base-url: 'http://' is not an address"),
        (["explain", "--last", "--base-url", "http://x:y"], "error: --base-url: 'http://x:y' is not an address"),
        (["chat", "--base-url", ""], "error: --base-url: '' does not begin with http"),
        (["bench", "any", "--base-url", "https:// x"], "error: --base-url: 'https:// x' is not an address"),
        (["serve", "--tenant-quota", "0"], "error: --tenant-quota must be above 0 and at most 1, got 0"),
        (["serve", "--low-watermark", "0.999"], "error: --low-watermark 0.999 is above --high-watermark 0.99; lower"),
        (["demo", "--tokens", "9"], "error: --tokens must be between 2000 and 8000, got 9"),
        (["demo", "--tokens", "long"], "error: --tokens: 'long' is not a whole number"),
        (["demo", "--svg", "/no/such/folder/a.svg"], "error: cannot write /no/such/folder/a.svg"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    told = capsys.readouterr()
    assert told.err.startswith(complaint)
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_a_wrong_variable_is_one_line_and_exit_code_2() -> None:
    ended = mainstem("serve", env={"MAINSTEM_PORT": "99999"})
    assert ended.returncode == 2
    assert ended.stderr == "error: MAINSTEM_PORT must be between 0 and 65535, got 99999\n"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ConfigError("too big"), 2, "error: too big\n"),
        (ModelLoadError("no model there"), 1, "error: no model there\n"),
        (NoSuchModel("no such model"), 2, "error: no such model\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors_become_one_line_and_an_exit_code(
    error: BaseException, code: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(generate, "run", fail)
    assert main(["generate", "hi"]) == code
    assert capsys.readouterr().err == told


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    code = (
        "import sys; from mainstem.cli import generate; from mainstem.cli.main import main\n"
        "generate.run = lambda _: [print('river') for _ in range(100_000)] and 0\n"
        "sys.exit(main(['generate', 'hi']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_a_terminal_without_the_characters_gets_question_marks() -> None:
    code = (
        "import sys; from mainstem.cli import generate; from mainstem.cli.main import main\n"
        "generate.run = lambda _: print('2.0×') or 0\n"
        "sys.exit(main(['generate', 'hi']))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment(PYTHONIOENCODING="ascii"),
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "2.0?\n", "")


@pytest.mark.parametrize("command", ["serve", "doctor", "demo", "chat", "generate hi"])
def test_missing_extras_say_how_to_install_them(command: str) -> None:
    code = without("torch", "rich") + f"from mainstem.cli.main import main; sys.exit(main({command.split()!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment(), timeout=60
    )
    name = command.split()[0]
    assert ended.stderr == (
        f"error: mainstem {name} needs the serving extras; in a checkout: pip install '.[serve]' "
        "(not found: torch, rich)\n"
    )
    assert ended.returncode == 1


def test_the_checked_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [requirement.split(">")[0].replace("-", "_") for requirement in project["optional-dependencies"]["serve"]]
    assert sorted(names) == sorted(SERVE_EXTRAS)


def test_the_base_install_needs_no_torch() -> None:
    code = without("torch", "transformers", "fastapi", "uvicorn", "httpx", "rich", "psutil") + (
        "import mainstem, mainstem.tree, mainstem.pages, mainstem.scheduler, mainstem.cli.main\n"
        "from mainstem import RadixCache\n"
        "cache = RadixCache(capacity=8)\n"
        "cache.insert([1, 2, 3])\n"
        "print(cache.match_prefix([1, 2, 4]).length)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment(), timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("2\n", "")


def test_the_engine_without_the_extras_says_what_to_install() -> None:
    code = without("torch") + "import mainstem; mainstem.LLM"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(
        "mainstem.LLM needs the serving extras; in a checkout: pip install '.[serve]' (not found: torch)"
    )
