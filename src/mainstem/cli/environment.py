"""What commands that talk to a server read from the environment."""

from __future__ import annotations

from collections.abc import Mapping


def first_key(environment: Mapping[str, str]) -> str | None:
    """The first of the keys with which `mainstem serve` would be started here; None if there is none."""
    return environment.get("MAINSTEM_API_KEY", "").split(",")[0].strip() or None
