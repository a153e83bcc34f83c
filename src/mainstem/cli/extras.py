"""Says which packages of the extras a command needs, and complains in one sentence when one is missing."""

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
    "llguidance",
    "pip",
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "psutil",
    "httpx",
    "rich",
)


BENCH_EXTRAS = ("matplotlib", "httpx", "rich", "yaml")


def require_extras(command: str, modules: tuple[str, ...] = SERVE_EXTRAS) -> None:
    """Check that `modules` are installed, without importing them.

    Raises:
        MainstemError: when one is not; the message says how to install it.
    """
    _require(command, modules, "the serving extras; in a checkout: pip install '.[serve]'")


def require_bench_extras(command: str) -> None:
    """Check that what the benchmarks' clients, tables and plots need is installed, without importing it.

    Raises:
        MainstemError: when it is not; the message says how to install it.
    """
    _require(command, BENCH_EXTRAS, "the bench extras; pip install 'mainstem[bench]', in a checkout '.[bench]'")


def _require(command: str, modules: tuple[str, ...], extras: str) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise MainstemError(f"mainstem {command} needs {extras} (not found: {', '.join(missing)})")
