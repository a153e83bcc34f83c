"""What could be shared at most: the tokens of running calls that differ, and those of a workload that are new.

Two tokens are the same here if they and everything before them are equal. It knows calls and tokens, and no machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mainstem.bench.machines import Holding
from mainstem.bench.workload import Workload
from mainstem.scheduler import TokenBuffer
from mainstem.tree import RadixCache, TokenArray, common_length


class LiveTokens:
    """The sequences of the calls that run now, and how much each two have in common.

    Common lengths are worked out once for each pair of calls that ever ran together.
    """

    def __init__(self) -> None:
        self._sequences: dict[int, TokenBuffer] = {}
        self._rows: dict[int, int] = {}
        self._free_rows: list[int] = []
        self._common = np.zeros((0, 0), np.int64)
        # Pairs of calls of which one has so far said nothing that the other has not: they may turn out longer.
        self._undecided: set[tuple[int, int]] = set()

    def add(self, call: int, prompt: TokenArray) -> None:
        """A call was sent."""
        self._sequences[call] = TokenBuffer(prompt)

    def append(self, call: int, token: int) -> None:
        """A token came of its reply."""
        self._sequences[call].append(token)

    def extend(self, call: int, tokens: TokenArray) -> None:
        """Several tokens came of its reply."""
        self._sequences[call].extend(tokens)

    def remove(self, call: int) -> None:
        """It has ended."""
        del self._sequences[call]
        row = self._rows.pop(call, None)
        if row is not None:
            self._free_rows.append(row)
            self._undecided = {pair for pair in self._undecided if call not in pair}

    def distinct(self, holdings: Sequence[Holding]) -> int:
        """How many different tokens the given beginnings of calls have."""
        for holding in holdings:
            if holding.call not in self._rows:
                self._compare(holding.call)
        if len(holdings) <= 1:
            return sum(holding.tokens for holding in holdings)
        for pair in list(self._undecided):
            self._extend(*pair)
        rows = [self._rows[call] for call, _ in holdings]
        lengths = np.array([tokens for _, tokens in holdings], np.int64)
        # What each shares with the one before it that it shares most with.
        shared = np.minimum(np.minimum(self._common[np.ix_(rows, rows)], lengths), lengths[:, None])
        return int(lengths.sum() - np.tril(shared, -1).max(axis=1, initial=0).sum())

    def _compare(self, call: int) -> None:
        """Give a call a row of the table of common lengths."""
        if not self._free_rows:
            size = len(self._common)
            self._common = np.pad(self._common, (0, max(8, size)))
            self._free_rows = list(range(size, len(self._common)))
        row = self._free_rows.pop()
        for other, other_row in self._rows.items():
            self._common[row, other_row] = self._common[other_row, row] = 0
            self._undecided.add((call, other))
        self._rows[call] = row
        for other in self._rows:
            if other != call:
                self._extend(call, other)

    def _extend(self, call: int, other: int) -> None:
        """Compare two sequences further, as far as they are known."""
        row, other_row = self._rows[call], self._rows[other]
        a, b = self._sequences[call].array, self._sequences[other].array
        before = int(self._common[row, other_row])
        common = before + common_length(a[before:], b[before:])
        self._common[row, other_row] = self._common[other_row, row] = common
        if common < min(len(a), len(b)):
            self._undecided.discard((call, other))


class EndlessCache(NamedTuple):
    """What a cache without limits would make of a workload.

    Attributes:
        new: int64[calls], tokens of each prompt that no earlier call has put through the model; all others would hit.
        distinct: tokens it holds at the end.
    """

    new: npt.NDArray[np.int64]
    distinct: int

    def hit_ceiling(self, workload: Workload) -> float:
        """Share of all prompt tokens that a cache can hit at most."""
        return 1 - int(self.new.sum()) / sum(workload.prompt_lengths)


def endless_cache(workload: Workload, replies: Sequence[TokenArray]) -> EndlessCache:
    """Run a workload's tokens through a radix tree that never evicts.

    Calls count as running one after the other, in the workload's order. The last token of a reply is not put through
    the model before a later prompt contains it.

    Args:
        workload: any.
        replies: of every call.
    """
    room = sum(len(call.appended) + call.reply_tokens for call in workload.calls)
    endless = RadixCache(max(room, 1))
    contexts: dict[int, TokenArray] = {}
    extended = {call.after for call in workload.calls if call.extends}
    new = np.zeros(len(workload.calls), np.int64)
    for index, call in enumerate(workload.calls):
        prompt = call.appended
        if call.extends and call.after is not None:
            prompt = np.concatenate([contexts[call.after], call.appended])
        stored = endless.insert(prompt)
        new[index] = stored.length - stored.num_cached
        context = np.concatenate([prompt, replies[index]])
        endless.insert(context[:-1])
        if index in extended:
            contexts[index] = context
    return EndlessCache(new, endless.stats().evictable)
