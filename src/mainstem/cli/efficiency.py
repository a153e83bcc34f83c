"""`--efficiency`: which shares of a machine's peaks the user states instead of the given ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mainstem.bench.hardware import Efficiency
from mainstem.cli.workload import positive_number
from mainstem.errors import ConfigError

_SHARES = ("gemm", "attention", "memory", "link", "step_overhead_s")


def read_efficiency(text: str, base: Efficiency) -> Efficiency:
    """The stated efficiency, with what the flag says instead; the reasons then say so too."""
    changes: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if name not in _SHARES:
            raise ConfigError(f"--efficiency: there is no '{name}'; the shares are {', '.join(_SHARES)}")
        changes[name] = positive_number(f"--efficiency {name}", value)
    reasons = tuple(f"{name} {value:g}: given on the command line" for name, value in changes.items())
    kept = tuple(reason for reason in base.reasons if reason.split()[0] not in {_first_word(name) for name in changes})
    return replace(base, **changes, reasons=(*kept, *reasons))


def _first_word(name: str) -> str:
    return "overhead" if name == "step_overhead_s" else name
