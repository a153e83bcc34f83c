"""Where commands that talk to a server find it, and with which key: their flags and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from mainstem.errors import ConfigError


def first_key(environment: Mapping[str, str]) -> str | None:
    """The first of the keys with which `mainstem serve` would be started here; None if there is none."""
    return environment.get("MAINSTEM_API_KEY", "").split(",")[0].strip() or None


def server_url(text: str, *, source: str = "--base-url") -> str:
    """The address of a server.

    Args:
        text: as the user gave it.
        source: the flag or variable that has it.

    Raises:
        ConfigError: when it is no address.
    """
    if not text.startswith(("http://", "https://")):
        raise ConfigError(f"{source}: '{text}' does not begin with http:// or https://")
    try:
        parts = urlsplit(text)
        is_address = bool(parts.hostname) and parts.port != 0 and not any(char.isspace() for char in text)
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(f"{source}: '{text}' is not an address such as http://127.0.0.1:8000/v1")
    return text.rstrip("/")
