"""How much work of later requests may go before a waiting one.

Work is counted in tokens of prompts; a token of a reply counts as several. In order of arrival, a request waits for the
work of those before it. Here later ones may go first, but at any moment their work, since the request began to wait, is
at most `lenience` times the work of earlier ones that went before it. So it waits for at most (1 + lenience) times the
work that lay before it; with a lenience of 1, for twice as much. What a reply will cost is not known when its request
is let in: an estimate is charged, and put right when the request leaves.

It knows places in the queue and amounts of work, no requests.
"""

from __future__ import annotations

import math

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
        # Sorted by place, in the first `_num` of each; arrivals are mostly last, so that these cost no shift.
        self._all_orders: npt.NDArray[np.int64] = np.empty(64, np.int64)
        self._all_credit: npt.NDArray[np.float64] = np.empty(64, np.float64)
        self._num = 0

    @property
    def _orders(self) -> npt.NDArray[np.int64]:
        return self._all_orders[: self._num]

    @property
    def _credit(self) -> npt.NDArray[np.float64]:
        return self._all_credit[: self._num]

    def add(self, order: int) -> None:
        """A request waits at this place."""
        num = self._num
        if num == len(self._all_orders):
            self._all_orders = np.concatenate([self._all_orders, np.empty_like(self._all_orders)])
            self._all_credit = np.concatenate([self._all_credit, np.empty_like(self._all_credit)])
        at = int(self._orders.searchsorted(order))
        if at < num:
            self._all_orders[at + 1 : num + 1] = self._all_orders[at:num]
            self._all_credit[at + 1 : num + 1] = self._all_credit[at:num]
        self._all_orders[at] = order
        self._all_credit[at] = 0.0
        self._num += 1

    def remove(self, order: int) -> None:
        """It waits no longer."""
        num = self._num
        at = int(self._orders.searchsorted(order))
        self._all_orders[at : num - 1] = self._all_orders[at + 1 : num]
        self._all_credit[at : num - 1] = self._all_credit[at + 1 : num]
        self._num -= 1

    def allows(self, order: int, work: float) -> bool:
        """Whether everyone who waits before this place can bear that so much work goes first."""
        if math.isinf(self.lenience):
            return True
        earlier = self._credit[: int(self._orders.searchsorted(order))]
        return len(earlier) == 0 or float(earlier.min()) >= work

    def note(self, order: int, work: float, before: int | None = None) -> None:
        """So much work goes first to this place, before all that wait, or only before those at places up to `before`.

        Negative work takes back what has been noted too much.
        """
        if work == 0 or math.isinf(self.lenience):
            return
        orders, credit = self._orders, self._credit
        at = int(orders.searchsorted(order))
        end = len(orders) if before is None else int(orders.searchsorted(before))
        credit[: min(at, end)] -= work
        credit[at:end] += self.lenience * work

    def credit(self, order: int) -> float:
        """How much work of later ones the one at this place can still bear."""
        return float(self._credit[int(self._orders.searchsorted(order))])
