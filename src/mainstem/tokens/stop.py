"""Stop strings in text that arrives in pieces.

It knows text only: stop *tokens* are the engine's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopUpdate(NamedTuple):
    """Text that may be shown, and the stop string that ended it, if one did."""

    text: str
    matched: str | None


class StopStrings:
    """Ends a text before the first of its stop strings, and never shows a part of one.

    The match that begins earliest in the whole text wins; of two that begin at the same place, the shorter one, which
    is complete first. Text that may turn out to be the beginning of a stop string is held back until that is decided.
    How the text was cut into pieces makes no difference to what comes out.

    Args:
        stops: non-empty strings.

    Attributes:
        matched: the stop string that ended the text; None as long as none did.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        # A stop string that begins with another one can never be the first to match.
        self._stops = tuple(s for s in set(stops) if not any(s != t and s.startswith(t) for t in stops))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> StopUpdate:
        """Takes the next piece. After a match nothing more comes out."""
        if self.matched is not None:
            return StopUpdate("", self.matched)
        if not self._stops:
            return StopUpdate(text, None)
        self._held += text
        return self._settle(final=False)

    def flush(self) -> str:
        """The text is over: what was held back, up to a stop string in it if there is one (then `matched` is set)."""
        return "" if self.matched is not None else self._settle(final=True).text

    def _settle(self, *, final: bool) -> StopUpdate:
        undecided = len(self._held) if final else self._undecided_from()
        found = [(at, i) for i, stop in enumerate(self._stops) if 0 <= (at := self._held.find(stop)) < undecided]
        if found:
            end, which = min(found)
            self.matched = self._stops[which]
        else:
            end = undecided
        shown, self._held = self._held[:end], "" if found else self._held[end:]
        return StopUpdate(shown, self.matched)

    def _undecided_from(self) -> int:
        """The first place where a stop string may begin that only further text can confirm."""
        held = self._held
        for at in range(max(0, len(held) - self._longest + 1), len(held)):
            tail = held[at:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return at
        return len(held)
