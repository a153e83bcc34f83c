"""The `mainstem` command: finds the subcommand, runs it, and turns every error into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted. Imports nothing heavy, so that `--help`
answers at once; the subcommands import what they need when they run.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mainstem import __version__
from mainstem.cli import bench, chat, demo, doctor, explain, generate, lint, serve
from mainstem.cli.options import naming_source
from mainstem.errors import ConfigError, MainstemError, NoSuchModel

FAILED, USAGE, INTERRUPTED = 1, 2, 130

_ABOUT = """\
mainstem runs a language model for AI agents and computes each token once:
every prompt and reply stays in a radix tree over KV memory, so the next turn
prefills only what is new, and branches share what they have in common.
"""

_EPILOG = """\
start here:
  mainstem demo                      watch what the cache does for an agent
  mainstem serve                     an API on http://127.0.0.1:8000/v1
  mainstem generate "Name a river."  one reply, straight to the terminal
  mainstem lint requests.jsonl       what keeps an agent's prompts from hitting

Every setting is a flag and an environment variable; the flag wins. They are
listed by 'mainstem serve --help' and in docs/settings.md. How it all works is
in docs/architecture.md.
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are raised, so that they print like every other error.

    It may get its arguments only when it is used, so that no command pays for the imports of another.
    """

    configure: Callable[[argparse.ArgumentParser], None] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        configure, self.configure = self.configure, None
        if configure is not None:
            configure(self)
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:  # told here, while it is known which command's they are
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; try '{self.prog} --help'")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(
        prog="mainstem",
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"mainstem {__version__}", help="print the version and exit"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for module in (demo, serve, doctor, chat, generate, lint, explain, bench):
        name = module.__name__.rpartition(".")[2]
        command = commands.add_parser(
            name, help=module.SUMMARY, description=module.DESCRIPTION, formatter_class=_CommandHelp, allow_abbrev=False
        )
        command.configure = module.configure
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character of a reply or a chart gets a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    try:
        return _run(argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left, as in `mainstem generate ... | head -1`. Python would complain again at exit,
        # when it flushes, unless output goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (ConfigError, NoSuchModel) as error:
        return _complain(error, USAGE)
    except MainstemError as error:
        return _complain(error, FAILED)


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return USAGE
    try:
        code: int = arguments.run(arguments)
    except ConfigError as error:
        # What only the model or the machine could say of a setting names its field.
        raise naming_source(error, arguments) from error
    return code


def _complain(error: MainstemError, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


class _CommandHelp(argparse.RawDescriptionHelpFormatter):
    """Help with the flags in a narrow column, since the sentences beside them are long."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)
