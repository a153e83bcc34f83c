"""Who is told what the scheduler does, as it does it.

The calls come from within a step, so whoever observes must be quick, and must change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.scheduler.request import Request


class SchedulerObserver:
    """Is told and does nothing; observers override what they want to hear."""

    def needs_room(self, request: Request) -> None:
        """The slots that are asked for next are for this request."""

    def admitted(self, request: Request, running: Sequence[Request]) -> None:
        """A request begins for the first time; its cached tokens are counted, none of the others is computed.

        Args:
            request: that begins.
            running: those that run already.
        """

    def preempted(self, request: Request) -> None:
        """A running request goes back to the queue. What it computed is given up, or left to the cache, after this."""

    def finished(self, request: Request) -> None:
        """A request leaves, done or not. Its slots are released after this."""
