"""The sampling flags that `generate` and `chat` share. Their meaning and limits are `SamplingParams`'s."""

from __future__ import annotations

import argparse
from typing import Any

from mainstem.cli.options import flag_of, told
from mainstem.errors import ConfigError, InvalidRequest
from mainstem.params import SamplingParams

DEFAULT_MAX_TOKENS = 512

_FLAGS: tuple[tuple[str, type, str, str], ...] = (
    ("max_tokens", int, "N", f"most tokens to generate [default: {DEFAULT_MAX_TOKENS}]"),
    ("temperature", float, "T", "0 always takes the most likely token, so that a run can be repeated [default: 0]"),
    ("top_p", float, "P", "sample from the most likely tokens that reach this probability together"),
    ("top_k", int, "K", "sample from the K most likely tokens"),
    ("min_p", float, "P", "leave out tokens less likely than this share of the most likely one"),
    ("seed", int, "N", "makes sampling repeatable"),
    ("repetition_penalty", float, "X", "above 1 makes tokens that were seen less likely"),
)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags under a heading of their own."""
    group = parser.add_argument_group("sampling")
    for name, kind, metavar, text in _FLAGS:
        group.add_argument(
            "--" + name.replace("_", "-"), dest=name, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=text
        )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be given several times"
    )


def read_sampling(arguments: argparse.Namespace) -> SamplingParams:
    """What the flags ask for.

    Raises:
        ConfigError: when a value is out of range; the message begins with its flag.
    """
    fields: dict[str, Any] = {"max_tokens": DEFAULT_MAX_TOKENS, "temperature": 0.0}
    fields |= {name: getattr(arguments, name) for name, *_ in _FLAGS if name in arguments}
    try:
        return SamplingParams(**fields, stop=tuple(arguments.stop or ()))
    except InvalidRequest as error:
        name = error.param or ""
        raise ConfigError(told(str(error), name, {name: flag_of(name)})) from None


def sampling_fields(params: SamplingParams) -> dict[str, Any]:
    """The same as fields of an HTTP request."""
    fields = {name: getattr(params, name) for name, *_ in _FLAGS}
    return {name: value for name, value in fields.items() if value is not None} | {"stop": list(params.stop) or None}
