"""Says which packages of the `serve` extras a command needs, and complains in one sentence when one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from mainstem.errors import MainstemError

SERVE_EXTRAS = (
    "torch",
    "transformers",
    "tokenizers",
    "jinja2",
    "safetensors",
    "gguf",
    "accelerate",
    "filelock",
    "pip",
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "psutil",
    "httpx",
    "rich",
)


def require_extras(command: str, modules: tuple[str, ...] = SERVE_EXTRAS) -> None:
    """Check that `modules` are installed, without importing them.

    Raises:
        MainstemError: when one is not; the message says how to install it.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise MainstemError(
            f"mainstem {command} needs the serving extras; in a checkout: pip install '.[serve]' "
            f"(not found: {', '.join(missing)})"
        )
