"""Prompt lookup: what followed the same last tokens earlier in the same context (Saxena 2023, prompt lookup decoding).

It knows token arrays and nothing else. A search reads the context's ids once: tens of microseconds for 25,000 tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mainstem.tree import TokenArray

# Shorter matches say next to nothing about what follows; longer ones than the most say no more.
MIN_MATCH = 2
MAX_MATCH = 16
# Of the places where the last tokens were said before, so many of the latest are looked at.
MAX_ENDS = 512


class Lookup(NamedTuple):
    """A guess.

    Attributes:
        tokens: int32[length], what followed.
        match: how many tokens before it are the same as the context's last, up to MAX_MATCH.
    """

    tokens: TokenArray
    match: int


def look_up(context: TokenArray, length: int, paths: int) -> list[Lookup]:
    """Up to `paths` guesses of `length` tokens that begin differently, those after the longest and latest match first.

    A match that reaches into what it predicts is a loop, and its guess goes round it.
    """
    last = len(context) - 1
    if last < MIN_MATCH:
        return []
    ends = np.flatnonzero(context[:last] == context[last])
    ends = ends[ends > 0]
    ends = ends[context[ends - 1] == context[last - 1]][-MAX_ENDS:]
    if not len(ends):
        return []
    back = np.arange(min(MAX_MATCH, last + 1))
    places = ends[:, None] - back
    same = (context[places] == context[last - back]) & (places >= 0)
    matches = np.where(same.all(axis=1), len(back), same.argmin(axis=1))
    guesses: dict[int, Lookup] = {}
    for index in np.lexsort((ends, matches))[::-1].tolist():
        end = ends.item(index)
        first = context.item(end + 1)
        if first not in guesses:
            guesses[first] = Lookup(_following(context, end, length), matches.item(index))
            if len(guesses) == paths:
                break
    return list(guesses.values())


def _following(context: TokenArray, end: int, length: int) -> TokenArray:
    """The tokens after `end`, and where the context ends, those after `end` again."""
    known = context[end + 1 : end + 1 + length]
    return known if len(known) == length else np.resize(known, length)
