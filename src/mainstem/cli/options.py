"""Command-line flags and environment variables derived from the settings' dataclasses.

Knows how a field becomes a flag, an environment variable and a line of help, and which of them wins: the flag, then
`MAINSTEM_<FIELD>`, then the default. Knows no setting by name and nothing of what a setting does.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from mainstem.errors import ConfigError, ConflictingSettings, InvalidRequest

ENV_PREFIX = "MAINSTEM_"

Settings = TypeVar("Settings")
_WORD = re.compile(r"\w+")


class Option(NamedTuple):
    """One field of a settings dataclass, as a user meets it.

    Attributes:
        field: the field's name.
        flag: such as `--max-model-len`.
        env: such as `MAINSTEM_MAX_MODEL_LEN`.
        convert: text to value; raises ValueError with a reason.
        default: what holds when neither flag nor variable is given, as text; None where `help` says it.
        help: what the setting does, in one sentence.
        group: what it is about, in a word or two.
        value: stands for the value in help, such as `TOKENS` or `{on,off}`.
        choices: the only allowed texts; empty where `convert` decides.
    """

    field: str
    flag: str
    env: str
    convert: Callable[[str], Any]
    default: str | None
    help: str
    group: str
    value: str
    choices: tuple[str, ...]


class _Given(NamedTuple):
    """A value that the user gave, and where."""

    source: str
    value: Any


def options_of(settings: type) -> Iterator[Option]:
    """The options of a settings dataclass, in the order of its fields.

    Raises:
        TypeError: when a field has a type that no flag can carry.
    """
    hints = typing.get_type_hints(settings)
    for declared in fields(settings):
        is_switch = hints[declared.name] is bool
        choices = declared.metadata["choices"]
        yield Option(
            field=declared.name,
            flag=flag_of(declared.name),
            env=ENV_PREFIX + declared.name.upper(),
            convert=_converter(hints[declared.name]),
            default=_default_text(declared.default),
            help=declared.metadata["help"],
            group=declared.metadata["group"],
            value=declared.metadata["metavar"] or "{" + ",".join(("on", "off") if is_switch else choices) + "}",
            choices=choices,
        )


def options_by_group(settings: type, leave_out: Collection[str] = ()) -> dict[str, list[Option]]:
    """The options of a settings dataclass but for fields left out, by group, in the order in which groups begin."""
    groups: dict[str, list[Option]] = {}
    for option in options_of(settings):
        if option.field not in leave_out:
            groups.setdefault(option.group, []).append(option)
    return groups


def add_options(
    parser: argparse.ArgumentParser, settings: type, *, title: str, leave_out: Collection[str] = ()
) -> None:
    """Add one flag per field of `settings` to the parser, under a heading for each group; none for fields left out."""
    for about, options in options_by_group(settings, leave_out).items():
        group = parser.add_argument_group(f"{title}: {about}")
        for option in options:
            default = "" if option.default is None else f"default: {option.default}; "
            group.add_argument(
                option.flag,
                dest=option.field,
                metavar=option.value,
                default=argparse.SUPPRESS,
                help=f"{option.help} [{default}env: {option.env}]".replace("%", "%%"),
            )


def read_settings(
    settings: type[Settings], arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ
) -> Settings:
    """The settings that flags, environment and defaults add up to.

    An empty variable counts as unset.

    Raises:
        ConfigError: when a value is wrong; the message begins with the flag or variable that holds it.
        ConflictingSettings: when values do not go together; the message names the flags or variables.
    """
    given = dict(_given(settings, arguments, environ))
    for name, (source, value) in given.items():
        # Each value is tried alone first, so that the complaint can name the one at fault.
        try:
            settings(**{name: value})
        except ConflictingSettings:
            continue  # it may go well with the others
        except (ConfigError, InvalidRequest) as error:
            raise ConfigError(told(str(error), name, {name: source})) from None
    try:
        return settings(**{name: value for name, (_, value) in given.items()})
    except ConflictingSettings as error:
        sources = {option.field: option.flag for option in options_of(settings)}
        sources |= {name: source for name, (source, _) in given.items()}
        raise ConflictingSettings(_as_given(str(error), sources)) from None


def naming_source(
    error: ConfigError, arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ
) -> ConfigError:
    """The same complaint, beginning with the flag or variable that holds the value at fault, if it knows which."""
    if error.setting is None:
        return error
    env = ENV_PREFIX + error.setting.upper()
    source = env if error.setting not in arguments and environ.get(env) else flag_of(error.setting)
    return ConfigError(told(str(error), error.setting, {error.setting: source}))


def told(complaint: str, field: str, sources: Mapping[str, str]) -> str:
    """A complaint about a field, beginning with the flag or variable that holds its value."""
    named = _as_given(complaint, sources)
    return named if named.startswith(sources[field]) else f"{sources[field]}: {named}"


def _as_given(complaint: str, sources: Mapping[str, str]) -> str:
    """A complaint with flags and variables instead of the names of fields.

    Only at its beginning, or with an underscore, is a word surely meant as such a name, and not as a word.
    """
    return _WORD.sub(
        lambda word: sources.get(word[0], word[0]) if "_" in word[0] or not word.start() else word[0], complaint
    )


def flag_of(field: str) -> str:
    """The flag of a field."""
    return "--" + field.replace("_", "-")


def _given(settings: type, arguments: argparse.Namespace, environ: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for option in options_of(settings):
        if option.field in arguments:
            text, source = getattr(arguments, option.field), option.flag
        elif environ.get(option.env):
            text, source = environ[option.env], option.env
        else:
            continue
        yield option.field, _Given(source, _parse(option, text, source))


def _parse(option: Option, text: str, source: str) -> Any:
    if option.choices and text not in option.choices:
        raise ConfigError(f"{source}: '{text}' is not one of {', '.join(option.choices)}")
    try:
        return option.convert(text)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None


def _default_text(default: Any) -> str | None:
    if isinstance(default, bool):
        return "on" if default else "off"
    return None if default is None else str(default)


def _converter(hint: Any) -> Callable[[str], Any]:
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    try:
        return _CONVERTERS[hint]
    except KeyError:
        raise TypeError(f"no command-line form for a setting of type {hint}") from None


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a whole number") from None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"'{text}' is not a number")
    return value


def _switch(text: str) -> bool:
    for value, names in ((True, ("on", "true", "yes", "1")), (False, ("off", "false", "no", "0"))):
        if text.lower() in names:
            return value
    raise ValueError(f"'{text}' is not one of on, off")


_CONVERTERS: dict[Any, Callable[[str], Any]] = {str: str, int: _whole_number, float: _number, bool: _switch}
