"""mainstem: a prefix-caching inference engine for AI agents.

    from mainstem import RadixCache      # the radix tree alone: numpy only
    from mainstem import LLM             # the whole engine: needs the serving extras

Names are imported when they are first used, so that the tree loads without torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainstem.engine import LLM, Branch, Score
    from mainstem.errors import OutOfSlots
    from mainstem.params import SamplingParams
    from mainstem.tree import (
        BlockHashCache,
        CacheHints,
        CacheStats,
        InsertResult,
        Keep,
        MatchResult,
        NoPrefixCache,
        PrefixCache,
        RadixCache,
        Retention,
    )

__version__ = "0.1.0"

# Settled before torch is imported: its threads wait for one another by spinning, for milliseconds if they may. That is
# no faster than spinning for a few microseconds, and many times slower where others want the cores. See docs/log.md.
if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "2000"

__all__ = [
    "LLM",
    "BlockHashCache",
    "Branch",
    "CacheHints",
    "CacheStats",
    "InsertResult",
    "Keep",
    "MatchResult",
    "NoPrefixCache",
    "OutOfSlots",
    "PrefixCache",
    "RadixCache",
    "Retention",
    "SamplingParams",
    "Score",
    "__version__",
]

_HOMES = {
    "LLM": "mainstem.engine",
    "BlockHashCache": "mainstem.tree",
    "Branch": "mainstem.engine",
    "CacheHints": "mainstem.tree",
    "CacheStats": "mainstem.tree",
    "InsertResult": "mainstem.tree",
    "Keep": "mainstem.tree",
    "MatchResult": "mainstem.tree",
    "NoPrefixCache": "mainstem.tree",
    "OutOfSlots": "mainstem.errors",
    "PrefixCache": "mainstem.tree",
    "RadixCache": "mainstem.tree",
    "Retention": "mainstem.tree",
    "SamplingParams": "mainstem.params",
    "Score": "mainstem.engine",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mainstem' has no attribute '{name}'")
    try:
        value = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mainstem"):
            raise
        raise ImportError(
            f"mainstem.{name} needs the serving extras; in a checkout: pip install '.[serve]' (not found: {error.name})"
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
