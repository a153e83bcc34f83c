"""How often guesses come true: by where they came from, for one request and for all before it.

A guess is counted whether or not a step checked it, since the next tokens of the reply tell. So a request whose guesses
have become good or bad is noticed without trying them. It knows kinds of guesses by name and nothing of tokens.
"""

from __future__ import annotations

# How far one more guess moves a request's rate, and the rate that new requests begin with.
REQUEST_WEIGHT = 0.15
SHARED_WEIGHT = 0.02
# Of a kind never seen.
FIRST_RATE = 0.5


class Rates:
    """Shares of guesses that came true; those of a request begin as the shared ones are then.

    Args:
        shared: what all requests have in common; None makes the shared ones.
    """

    def __init__(self, shared: Rates | None = None) -> None:
        self._shared = shared
        self._weight = SHARED_WEIGHT if shared is None else REQUEST_WEIGHT
        self._rates: dict[str, float] = {}

    def of(self, kind: str) -> float:
        """The share of a kind's guesses that will come true, by all that is known."""
        rate = self._rates.get(kind)
        if rate is None:
            rate = self._rates[kind] = FIRST_RATE if self._shared is None else self._shared.of(kind)
        return rate

    def count(self, kind: str, came_true: bool) -> None:
        """Take one more guess into account."""
        rate = self.of(kind)
        self._rates[kind] = rate + self._weight * (came_true - rate)
        if self._shared is not None:
            self._shared.count(kind, came_true)
