"""A hold on a computed prefix that lasts as long as anyone refers to it.

Branches that share a prefix share its lease: a fork is one more reference, and costs no word with the engine. It knows
nothing of branches.
"""

from __future__ import annotations

from collections.abc import Callable

from mainstem.scheduler import Hold


class Lease:
    """What a request is asked to leave locked when it ends well, until the last reference to the lease is gone.

    Python's own reference count does the counting: it cannot lose a release, whatever interrupts its user.

    Args:
        release: called with the hold at the end, from whichever thread lets go last; it must not wait for anything.
    """

    def __init__(self, release: Callable[[Hold], None]) -> None:
        self._release = release
        self._hold: Hold | None = None

    @property
    def length(self) -> int:
        """How many tokens are held: none before the request has ended, or if it failed."""
        return 0 if self._hold is None else len(self._hold.slots)

    def begin(self, hold: Hold) -> None:
        """Take over what the request held. Called once, in the engine's thread."""
        self._hold = hold

    def __del__(self) -> None:
        if self._hold is not None:
            self._release(self._hold)
