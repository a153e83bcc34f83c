"""How much work of later requests may go before a waiting one.

Work is counted in tokens of prompts; a token of a reply counts as several. In order of arrival, a request waits for the
work of those before it. Here later ones may go first, but at any moment their work, since the request began to wait, is
at most `lenience` times the work of earlier ones that went before it. So it waits for at most (1 + lenience) times the
work that lay before it; with a lenience of 1, for twice as much. What a reply will cost is not known when its request
is let in: an estimate is charged, and put right when the request leaves.

It knows places in the queue and amounts of work, no requests.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Fairness:
    """For each waiting place, how much work of later ones it can still bear.

    Args:
        lenience: work of later ones that may go first for each token of work of earlier ones; infinite for no limit.
    """

    def __init__(self, lenience: float = 1.0) -> None:
        if not lenience >= 0:
            raise ValueError(f"lenience must not be negative, got {lenience}")
        self.lenience = lenience
        self._orders: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._credit: npt.NDArray[np.float64] = np.empty(0, np.float64)

    def add(self, order: int) -> None:
        """A request waits at this place."""
        at = int(np.searchsorted(self._orders, order))
        self._orders = np.insert(self._orders, at, order)
        self._credit = np.insert(self._credit, at, 0.0)

    def remove(self, order: int) -> None:
        """It waits no longer."""
        at = int(np.searchsorted(self._orders, order))
        self._orders = np.delete(self._orders, at)
        self._credit = np.delete(self._credit, at)

    def allows(self, order: int, work: float) -> bool:
        """Whether everyone who waits before this place can bear that so much work goes first."""
        if np.isinf(self.lenience):
            return True
        earlier = self._credit[: int(np.searchsorted(self._orders, order))]
        return len(earlier) == 0 or float(earlier.min()) >= work

    def note(self, order: int, work: float, before: int | None = None) -> None:
        """So much work goes first to this place, before all that wait, or only before those at places up to `before`.

        Negative work takes back what has been noted too much.
        """
        if work == 0 or np.isinf(self.lenience):
            return
        at = int(np.searchsorted(self._orders, order))
        end = len(self._orders) if before is None else int(np.searchsorted(self._orders, before))
        self._credit[: min(at, end)] -= work
        self._credit[at:end] += self.lenience * work

    def credit(self, order: int) -> float:
        """How much work of later ones the one at this place can still bear."""
        return float(self._credit[int(np.searchsorted(self._orders, order))])
