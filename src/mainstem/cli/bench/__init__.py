"""`mainstem bench`: measures one workload, chosen by the subcommand.

Every module of this package is one workload, under its own file name: it has a `SUMMARY`, a `DESCRIPTION` with
examples, `configure(parser)` and `run(arguments)`, as the commands themselves do. Imports nothing heavy.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

SUMMARY = "measure what caching is worth, on one of several workloads"
DESCRIPTION = """\
Runs one workload and says what each kind of prefix cache makes of it: a table
in the terminal; every figure as JSON, and plots, in the folder given by --out.
Each workload has examples in its own help: mainstem bench WORKLOAD --help
"""

USAGE = 2


def workloads() -> dict[str, ModuleType]:
    """The modules of all workloads, by name."""
    return {found.name: import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add one subcommand per workload."""
    commands = parser.add_subparsers(title="workloads", metavar="WORKLOAD", dest="workload")
    for name, module in workloads().items():
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )
        module.configure(command)
        command.set_defaults(run=module.run)
    parser.set_defaults(print_help=parser.print_help)


def run(arguments: argparse.Namespace) -> int:
    """Say which workloads there are: none was chosen."""
    arguments.print_help()
    return USAGE
