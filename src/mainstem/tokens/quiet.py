"""Keeps `transformers` from writing to the terminal while it works for us.

What it would warn of is checked where it matters; its progress bars would run through our own output.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silences its warnings and progress bars inside the block, then restores what was set."""
    import transformers

    output: Any = transformers.utils.logging
    verbosity, bars = output.get_verbosity(), output.is_progress_bar_enabled()
    output.set_verbosity(output.CRITICAL)
    output.disable_progress_bar()
    try:
        yield
    finally:
        output.set_verbosity(verbosity)
        if bars:
            output.enable_progress_bar()
