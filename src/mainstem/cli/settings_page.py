"""Writes docs/settings.md from the settings' dataclasses: `python -m mainstem.cli.settings_page`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from mainstem.cli.options import options_by_group
from mainstem.config import EngineConfig, ServerConfig

_INTRODUCTION = """\
# Settings

Every setting is a command-line flag and an environment variable. The flag wins over the variable, the variable over the
default; an empty variable counts as unset. A wrong value is refused in one line, and the exit
code is 2.

PyTorch's threads wait for one another by spinning. mainstem keeps that short (`GOMP_SPINCOUNT=2000`), unless this
variable or `OMP_WAIT_POLICY` is set: it is as fast as spinning for long on an idle machine, and several times faster on
a busy one. For that, import mainstem before torch.

The threads of `mainstem serve` share one heap of glibc, which takes tens of megabytes less than one each;
`MALLOC_ARENA_MAX` sets another number of them.

This page is generated from `mainstem/config.py` by `make docs`; a test checks that it is current.
"""

_SECTIONS = (
    (
        "Engine",
        "`mainstem serve`, `doctor`, `demo`, `chat` and `generate`, and keyword arguments of `mainstem.LLM`.",
        EngineConfig,
    ),
    ("Server", "`mainstem serve`.", ServerConfig),
)


def render() -> str:
    """The page."""
    return "\n".join([_INTRODUCTION, *(line for section in _SECTIONS for line in _section(*section))])


def _section(title: str, where: str, settings: type) -> Iterator[str]:
    yield f"## {title}\n\nFor {where}\n"
    for about, options in options_by_group(settings).items():
        yield f"### {about.capitalize()}\n"
        yield "| flag | variable | default | |\n|---|---|---|---|"
        for option in options:
            flag = f"{option.flag} {option.value}".replace("|", "\\|")
            default = "" if option.default is None else f"`{option.default}`"
            yield f"| `{flag}` | `{option.env}` | {default} | {option.help} |"
        yield ""


if __name__ == "__main__":
    sys.stdout.write(render())
