"""A server inside this process, on a free local port, for commands that want to speak HTTP to a model of their own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from mainstem.cli.loading import load_engine
from mainstem.config import ServerConfig
from mainstem.server import BackgroundServer

if TYPE_CHECKING:
    from rich.console import Console

    from mainstem.config import EngineConfig
    from mainstem.engine import AsyncEngine


class LocalServer(NamedTuple):
    """A running server; only who knows the key may use it."""

    engine: AsyncEngine
    base_url: str
    api_key: str


@contextmanager
def local_server(config: EngineConfig, console: Console) -> Iterator[LocalServer]:
    """Load a model, serve it in a thread, and stop both at the end.

    Raises:
        ConfigError, ModelLoadError: as `load_engine`.
    """
    engine = load_engine(config, console)
    # Other users of this machine can reach the port too.
    api_key = secrets.token_urlsafe(16)
    with BackgroundServer(engine, ServerConfig(port=0, api_key=api_key, drain_seconds=0)) as server:
        yield LocalServer(engine, server.url + "/v1", api_key)
