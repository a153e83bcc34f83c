"""Flags and variables come from the settings' dataclasses, and complaints name the one at fault."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields

import pytest

from mainstem.cli.options import add_options, naming_source, options_of, read_settings
from mainstem.config import EngineConfig, ServerConfig, setting
from mainstem.errors import ConfigError, ConflictingSettings


def parse(settings: type, *argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser, settings, title="settings")
    return parser.parse_args(argv)


@pytest.mark.parametrize("settings", [EngineConfig, ServerConfig])
def test_every_field_has_a_flag_and_a_variable(settings: type) -> None:
    options = list(options_of(settings))
    names = [declared.name for declared in fields(settings)]
    assert [option.flag for option in options] == ["--" + name.replace("_", "-") for name in names]
    assert [option.env for option in options] == ["MAINSTEM_" + name.upper() for name in names]
    assert all(option.help for option in options)


def test_help_has_the_flags_of_a_group_together() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, EngineConfig, title="engine")
    _, _, memory = parser.format_help().partition("\nengine: memory:\n")
    assert "--kv-memory" in memory.partition("\nengine: ")[0]
    assert "--history-memory" in memory.partition("\nengine: ")[0]


def test_defaults_hold_when_nothing_is_given() -> None:
    assert read_settings(ServerConfig, parse(ServerConfig), {}) == ServerConfig()


def test_the_variable_wins_over_the_default() -> None:
    assert read_settings(ServerConfig, parse(ServerConfig), {"MAINSTEM_PORT": "81"}).port == 81


def test_the_flag_wins_over_the_variable() -> None:
    arguments = parse(ServerConfig, "--port", "82")
    assert read_settings(ServerConfig, arguments, {"MAINSTEM_PORT": "81"}).port == 82


def test_a_flag_given_its_default_still_wins_over_the_variable() -> None:
    arguments = parse(ServerConfig, "--port", "8000")
    assert read_settings(ServerConfig, arguments, {"MAINSTEM_PORT": "81"}).port == 8000


def test_a_wrong_variable_does_not_matter_when_the_flag_is_given() -> None:
    arguments = parse(ServerConfig, "--port", "82")
    assert read_settings(ServerConfig, arguments, {"MAINSTEM_PORT": "many"}).port == 82


def test_an_empty_variable_counts_as_unset() -> None:
    assert read_settings(ServerConfig, parse(ServerConfig), {"MAINSTEM_API_KEY": ""}).api_key is None


@pytest.mark.parametrize(
    ("argv", "environ", "source"),
    [
        (["--max-model-len", "9"], {"MAINSTEM_MAX_MODEL_LEN": "8"}, "--max-model-len"),
        ([], {"MAINSTEM_MAX_MODEL_LEN": "8"}, "MAINSTEM_MAX_MODEL_LEN"),
        ([], {}, "--max-model-len"),
    ],
)
def test_a_complaint_of_the_model_names_flag_or_variable(argv: list[str], environ: dict[str, str], source: str) -> None:
    error = ConfigError("max_model_len 9 is more than the model's context of 4", setting="max_model_len")
    named = naming_source(error, parse(EngineConfig, *argv), environ)
    assert str(named) == f"{source} 9 is more than the model's context of 4"
    assert naming_source(named, parse(EngineConfig, *argv), environ) is named


def test_values_get_the_types_of_their_fields() -> None:
    arguments = parse(EngineConfig, "--memory-utilization", "0.5", "--max-model-len", "512", "--kv-memory", "1GiB")
    config = read_settings(EngineConfig, arguments, {})
    assert (config.memory_utilization, config.max_model_len, config.kv_memory) == (0.5, 512, "1GiB")


@pytest.mark.parametrize(
    ("text", "value"), [("on", True), ("off", False), ("TRUE", True), ("0", False), ("yes", True), ("no", False)]
)
def test_a_switch_is_on_or_off(text: str, value: bool) -> None:
    @dataclass(frozen=True)
    class Switches:
        cascade: bool = setting(True, "a switch", group="speed")

    assert read_settings(Switches, parse(Switches, "--cascade", text), {}).cascade is value


@pytest.mark.parametrize(
    ("argv", "environ", "complaint"),
    [
        (["--port", "many"], {}, "--port: 'many' is not a whole number"),
        (["--port", "70000"], {}, "--port must be between 0 and 65535, got 70000"),
        ([], {"MAINSTEM_PORT": "1.5"}, "MAINSTEM_PORT: '1.5' is not a whole number"),
        ([], {"MAINSTEM_PORT": "-1"}, "MAINSTEM_PORT must be between 0 and 65535, got -1"),
        (["--drain-seconds", "nan"], {}, "--drain-seconds: 'nan' is not a number"),
        (["--drain-seconds", "soon"], {}, "--drain-seconds: 'soon' is not a number"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_source(
    argv: list[str], environ: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(ServerConfig, parse(ServerConfig, *argv), environ)
    assert str(caught.value) == complaint


def test_a_value_outside_the_choices_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"^MAINSTEM_DTYPE: 'int4' is not one of auto, float32, bfloat16, float16$"):
        read_settings(EngineConfig, parse(EngineConfig), {"MAINSTEM_DTYPE": "int4"})


def test_settings_that_go_together_are_taken_together() -> None:
    arguments = parse(EngineConfig, "--prefix-cache", "block-hash", "--block-size", "32")
    assert read_settings(EngineConfig, arguments, {}).page_size == 32


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConflictingSettings, match="--block-size is for --prefix-cache block-hash, but that is radix"):
        read_settings(EngineConfig, parse(EngineConfig, "--block-size", "32"), {})


@pytest.mark.parametrize(
    ("argv", "environ", "complaint"),
    [
        (["--low-watermark", "0.99"], {"MAINSTEM_HIGH_WATERMARK": "0.9"}, "0.99 is above MAINSTEM_HIGH_WATERMARK 0.9;"),
        (["--prefix-cache", "none", "--schedule", "lpm"], {}, "lpm follows the radix tree, but --prefix-cache is none"),
        (["--prefix-cache", "none", "--share-after", "3"], {}, "is for --prefix-cache radix, but that is none"),
    ],
)
def test_a_conflict_names_flags_and_variables(argv: list[str], environ: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConflictingSettings) as caught:
        read_settings(EngineConfig, parse(EngineConfig, *argv), environ)
    assert str(caught.value).startswith(f"{argv[-2]} {complaint}")


def test_a_complaint_that_names_no_field_begins_with_its_source() -> None:
    with pytest.raises(ConfigError, match=r"^MAINSTEM_KV_MEMORY: 'much' is not a size"):
        read_settings(EngineConfig, parse(EngineConfig), {"MAINSTEM_KV_MEMORY": "much"})


def test_a_wrong_value_is_named_before_a_conflict() -> None:
    arguments = parse(EngineConfig, "--block-size", "32", "--max-num-seqs", "0")
    with pytest.raises(ConfigError, match=r"^--max-num-seqs must be"):
        read_settings(EngineConfig, arguments, {})


def test_a_wrong_switch_is_refused() -> None:
    @dataclass(frozen=True)
    class Switches:
        cascade: bool = setting(True, "a switch", group="speed")

    with pytest.raises(ConfigError, match=r"^--cascade: 'maybe' is not one of on, off$"):
        read_settings(Switches, parse(Switches, "--cascade", "maybe"), {})


def test_a_field_that_no_flag_can_carry_is_a_programming_error() -> None:
    @dataclass(frozen=True)
    class Odd:
        table: dict[str, int] | None = field(
            default=None, metadata={"help": "a table", "group": "speed", "metavar": "T", "choices": ()}
        )

    with pytest.raises(TypeError, match="no command-line form"):
        list(options_of(Odd))


def test_longest_prefix_first_is_for_the_radix_tree() -> None:
    assert EngineConfig().order == "lpm"
    assert EngineConfig(prefix_cache="block-hash").order == "fcfs"
    assert EngineConfig(schedule="dfs", prefix_cache="none").order == "dfs"
    with pytest.raises(ConflictingSettings, match="schedule lpm follows the radix tree, but prefix_cache is none"):
        EngineConfig(schedule="lpm", prefix_cache="none")
