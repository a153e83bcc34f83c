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
        # In order of their places, `_num` from `_begin` on, with room after them; who leaves near the beginning, or
        # comes last, shifts next to nothing.
        self._all_orders: npt.NDArray[np.int64] = np.empty(8, np.int64)
        self._all_credit: npt.NDArray[np.float64] = np.empty(8, np.float64)
        self._begin = self._num = 0

    @property
    def _orders(self) -> npt.NDArray[np.int64]:
        return self._all_orders[self._begin : self._begin + self._num]

    @property
    def _credit(self) -> npt.NDArray[np.float64]:
        return self._all_credit[self._begin : self._begin + self._num]

    def add(self, order: int) -> None:
        """A request waits at this place."""
        if self._begin + self._num == len(self._all_orders):
            self._make_room()
        at, end = self._begin + int(self._orders.searchsorted(order)), self._begin + self._num
        for values, value in ((self._all_orders, order), (self._all_credit, 0.0)):
            if at < end:
                values[at + 1 : end + 1] = values[at:end]
            values[at] = value
        self._num += 1

    def remove(self, order: int) -> None:
        """It waits no longer."""
        begin, end = self._begin, self._begin + self._num
        at = begin + int(self._orders.searchsorted(order))
        is_early = at - begin < end - at
        for values in (self._all_orders, self._all_credit):
            if is_early:
                values[begin + 1 : at + 1] = values[begin:at]
            else:
                values[at : end - 1] = values[at + 1 : end]
        self._begin += is_early
        self._num -= 1

    def _make_room(self) -> None:
        """Begin at the front again, in arrays of at least twice the size of what is in them."""
        size = max(8, 2 * self._num)
        orders, credit = np.empty(size, np.int64), np.empty(size, np.float64)
        orders[: self._num], credit[: self._num] = self._orders, self._credit
        self._all_orders, self._all_credit, self._begin = orders, credit, 0

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
