"""The port a server listens on: opening it, and what clients call it."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from mainstem.errors import ConfigError

if TYPE_CHECKING:
    from mainstem.config import ServerConfig

# What a client on this machine connects to when the server listens on every address.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def listen(config: ServerConfig) -> socket.socket:
    """A socket bound to the configured address and port; connections are taken once a server runs on it.

    Raises:
        ConfigError: when the port is taken or not allowed, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # The protocol is named because asyncio sends without delay only on sockets that are known to be TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(_reason(config, error)) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The base URL of a server on this socket, such as `http://127.0.0.1:8000`."""
    host, port = listener.getsockname()[:2]
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _reason(config: ServerConfig, error: OSError) -> str:
    where = f"port {config.port} on {config.host}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use; stop what runs there, or choose another with --port (0 picks a free one)"
    if error.errno == errno.EACCES:
        return f"{where} is not allowed to this user; choose one above 1023 with --port"
    return f"cannot listen on {where}: {error.strerror or error}; check --host"
