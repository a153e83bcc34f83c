"""How long work tells how far it is. The command line draws it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called again and again while something long goes on."""

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Tells how far it is.

        Args:
            stage: what is being done, fit to show; a new text is a new stage.
            done: units done so far (bytes, or 0 where they cannot be counted).
            total: units in all; None when it is not known.
        """


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Tells nobody."""
