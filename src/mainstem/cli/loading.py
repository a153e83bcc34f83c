"""Loads an engine while showing how far that is, and puts its memory budget into words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from mainstem.config import EngineConfig
    from mainstem.engine import AsyncEngine
    from mainstem.engine.budget import MemoryBudget
    from mainstem.engine.checks import Check
    from mainstem.tokens.rendering import ChatTemplate


class LoadingDisplay:
    """Shows stages of loading: one live line in a terminal, one printed line a stage elsewhere."""

    def __init__(self, console: Console, bars: Progress) -> None:
        self._console = console
        self._bars = bars
        self._task = bars.add_task("starting", total=None, amount="")
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """See `mainstem.model.progress.Progress`."""
        if stage != self._stage:
            self._stage = stage
            self._bars.reset(self._task)
            if not self._console.is_terminal:
                self._console.print(stage, markup=False)
        amount = f"{done / 2**20:.0f} of {format_bytes(total)}" if total and total > 2**20 else ""
        self._bars.update(self._task, description=stage, completed=done, total=total, amount=amount)


@contextmanager
def loading_display(console: Console) -> Iterator[LoadingDisplay]:
    """A display that vanishes when loading is over."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield LoadingDisplay(console, bars)


def load_engine(config: EngineConfig, console: Console) -> AsyncEngine:
    """Load the model and allocate the pool; what takes long is shown on `console`.

    Raises:
        ConfigError: when the settings do not fit this machine.
        ModelLoadError: when the model cannot be fetched, read or run.
    """
    with loading_display(console) as display:
        display("starting", 0, None)
        from mainstem.engine import AsyncEngine

        return AsyncEngine.load(config, progress=display)


def format_bytes(count: int) -> str:
    """Such as `512 MiB` or `3.98 GiB`."""
    if count >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    return f"{count / 2**20:.0f} MiB"


def describe_budget(budget: MemoryBudget, max_model_len: int) -> list[str]:
    """The memory budget in lines fit to print."""
    longest = min(max_model_len, budget.pool_tokens)  # no request is longer than the pool
    whole = budget.pool_tokens // longest
    return [
        f"Memory   weights {format_bytes(budget.weights_bytes)}, activations {format_bytes(budget.activations_bytes)}, "
        f"KV pool {format_bytes(budget.pool_bytes)}",
        f"         (size of the pool: {budget.limited_by})",
        f"KV pool  {budget.pool_tokens:,} tokens of {budget.kv_bytes_per_token:,} bytes: "
        f"{whole:,} conversation{'' if whole == 1 else 's'} of {longest:,} tokens,",
        "         more where they share a beginning",
    ]


def describe_findings(checks: Sequence[Check]) -> list[str]:
    """What is not in order, one line each; `mainstem doctor` says more."""
    return [f"{check.level.capitalize():<8} {check.about}: {check.text}" for check in checks if check.level != "ok"]


def describe_template(chat: ChatTemplate) -> list[str]:
    """What is to be known of a model's chat template, one line each; docs/templates.md says more."""
    from mainstem.tokens.hygiene import findings

    return [f"Template {finding.text}" for finding in findings(chat)]
