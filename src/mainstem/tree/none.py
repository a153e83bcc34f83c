"""A prefix cache that keeps nothing: every request is computed from its first token.

It is the baseline that the radix tree is measured against, behind the same interface and over the same pool.
"""

from __future__ import annotations

import numpy as np

from mainstem.pages import SlotArray
from mainstem.tree.interface import InsertResult, MatchResult, PeekResult, PrefixCache, PrefixHandle, Reuse
from mainstem.tree.keys import Namespace, Tokens, as_tokens, namespace_key


class _Nothing(PrefixHandle):
    """The empty prefix, the only one there is."""

    __slots__ = ("locks",)

    def __init__(self) -> None:
        self.locks = 0


class NoPrefixCache(PrefixCache):
    """Never holds or hits; slots that are offered to it stay their owner's."""

    reuse = Reuse.NEVER

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        super().__init__(capacity, page_size)
        self._nothing = _Nothing()

    def match_prefix(self, tokens: Tokens, namespace: Namespace = ()) -> MatchResult:
        namespace_key(namespace)
        self._count_query(len(as_tokens(tokens)), 0)
        return MatchResult(0, np.empty(0, np.int32), self._nothing)

    def peek(self, tokens: Tokens, namespace: Namespace = ()) -> PeekResult:
        namespace_key(namespace)
        as_tokens(tokens)
        return PeekResult(0, 0)

    def lock(self, handle: PrefixHandle) -> None:
        self._require_own(handle)
        self._nothing.locks += 1

    def unlock(self, handle: PrefixHandle) -> None:
        self._require_own(handle)
        if self._nothing.locks == 0:
            raise ValueError("this prefix is not locked: it was unlocked more often than it was locked")
        self._nothing.locks -= 1

    def insert(self, tokens: Tokens, namespace: Namespace = (), *, slots: SlotArray | None = None) -> InsertResult:
        namespace_key(namespace)
        tokens = as_tokens(tokens)
        if slots is not None and np.shape(slots) != tokens.shape:
            raise ValueError(f"slots must have shape {tokens.shape}, one slot a token, but have {np.shape(slots)}")
        return InsertResult(0, 0, np.empty(0, np.int32), self._nothing)

    def evict(self, n: int) -> int:
        if n < 0:
            raise ValueError(f"cannot evict {n} tokens")
        return 0

    def check_integrity(self) -> None:
        self.allocator.check_integrity()
        assert 0 <= self.held <= self.capacity, "more slots are free than there are"

    def _require_own(self, handle: PrefixHandle) -> None:
        if handle is not self._nothing:
            raise ValueError("this handle is not of this cache")
