"""Progress bars over counted work, where reports go, how tables look. It knows the terminal, not what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from mainstem.model import Progress as Tell

_FILE_WIDTH = 160


def report_console() -> Console:
    """Where a benchmark reports: the terminal as it is, and a file wide enough that no figure of a table is cut."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_FILE_WIDTH)


def report_table() -> Table:
    """An empty table without lines between its columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def progress_bar(console: Console, unit: str) -> Progress:
    """A bar with what is counted and the time left, gone at the end; nothing at all where there is no terminal.

    Args:
        console: to draw on.
        unit: what is counted, in the plural.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def bars(console: Console, unit: str) -> Iterator[Tell]:
    """A `progress_bar` that begins again with every stage."""
    with progress_bar(console, unit) as shown:
        bar = shown.add_task("starting", total=None)
        current = ""

        def tell(stage: str, done: int, total: int | None) -> None:
            nonlocal current
            if stage != current:
                current = stage
                shown.reset(bar)
            shown.update(bar, description=stage, completed=done, total=total)

        yield tell
