"""How many tokens are computed again that had been computed before: what the prefix cache gave up too early.

It remembers computed sequences by the hashes of their beginnings, at every 64th token, in a table of fixed size where
newer ones replace older ones. So it counts a little too few, and never more than there were. What left the cache though
there was room, or because somebody wanted it so, was not given up too early.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainstem.scheduler.wanted import tokens_to
from mainstem.tree import EvictionReason, Namespace, PrefixCache, RadixCache, TokenArray, namespace_key
from mainstem.tree.keys import NamespaceKey
from mainstem.tree.node import Node
from mainstem.tree.tails import depth_of
from mainstem.tree.tenancy import is_public, public_part, tenant_key

MARK = 64
"""Tokens from one remembered beginning to the next."""
TABLE_BITS = 17
NOT_TOO_EARLY = frozenset({EvictionReason.EXPIRED, EvictionReason.ENDED})
"""Why tokens leave that do not count when they are computed again; of a reset, `forget` tells."""
_BASE = 0x9E3779B97F4A7C15
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_IS_MISSED = np.uint64(1)  # of an entry: what it stands for counts

Hashes = npt.NDArray[np.uint64]


class Recomputed:
    """Remembers what was computed.

    Args:
        cache: whose loss it is. From one of block hashes nothing leaves but for room, or by a reset.

    Attributes:
        total: tokens that were computed again.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.total = 0
        self._table: Hashes = np.zeros(1 << TABLE_BITS, np.uint64)
        self._powers: Hashes = np.ones(1, np.uint64)
        # By public namespace: those that read it. What is public is remembered in theirs.
        self._readers: dict[NamespaceKey, set[NamespaceKey]] = {}
        self._resets: dict[NamespaceKey, int] = {}  # by tenant
        if isinstance(cache, RadixCache):
            cache.on_evict.append(self._evicted)

    def remember(self, tokens: TokenArray, namespace: Namespace) -> None:
        """These tokens are computed."""
        key = namespace_key(namespace)
        public = public_part(key)
        if public is not None:
            self._readers.setdefault(public, set()).add(key)
        hashes = self._seeded(self._sums(tokens), key)
        self._table[_places(hashes)] = hashes

    def look(self, tokens: TokenArray, namespace: Namespace, num_cached: int) -> int:
        """Of these tokens, the first `num_cached` were found; how many others were computed before, nearly."""
        if len(tokens) - num_cached < MARK:
            return 0
        hashes = self._seeded(self._sums(tokens), namespace_key(namespace))
        entries = self._table[_places(hashes)]
        is_missed = entries == hashes
        is_known = is_missed | (entries == hashes - _IS_MISSED)
        if not is_missed.any():
            return 0
        # Where newer ones have replaced a beginning, a longer one that is remembered tells of it.
        stop = int(np.flatnonzero(is_missed)[-1]) + 1
        lengths = np.clip(MARK * np.arange(1, stop + 1) - num_cached, 0, MARK)
        again = int(lengths[(is_missed | ~is_known)[:stop]].sum())
        self.total += again
        return again

    def forget(self, tenant: Namespace | None = None) -> None:
        """Whatever is computed now, or only in the namespaces of one tenant, is new."""
        if tenant is not None:
            key = tenant_key(namespace_key(tenant))
            self._resets[key] = self._resets.get(key, 0) + 1
            return
        self._table[:] = 0
        self._readers.clear()
        self._resets.clear()

    def _evicted(self, leaf: Node, kept: int, reason: EvictionReason) -> None:
        """See `OnEvict`."""
        if reason not in NOT_TOO_EARLY:
            return
        length = depth_of(leaf)
        first = (length - len(leaf.key) + kept) // MARK
        if first == length // MARK:  # nothing is remembered by what leaves
            return
        sums = self._sums(tokens_to(leaf))[first:]
        namespace = leaf.space.namespace
        names = (namespace, *self._readers.get(namespace, ())) if is_public(namespace) else (namespace,)
        for name in names:
            hashes = self._seeded(sums, name)
            hashes = hashes[self._table[_places(hashes)] == hashes]
            self._table[_places(hashes)] = hashes - _IS_MISSED

    def _sums(self, tokens: TokenArray) -> Hashes:
        """Of the first 64, 128, ... tokens; a polynomial in the tokens, modulo 2^64."""
        length = len(tokens) - len(tokens) % MARK
        if length > len(self._powers):
            factors = np.full(2 * length, _BASE, np.uint64)
            self._powers = np.multiply.accumulate(factors)
        terms = (tokens[:length].astype(np.uint64) + np.uint64(1)) * self._powers[:length]
        sums: Hashes = np.add.accumulate(terms)[MARK - 1 :: MARK]
        return sums

    def _seeded(self, sums: Hashes, namespace: NamespaceKey) -> Hashes:
        """What is remembered for these sums in a namespace."""
        resets = self._resets.get(tenant_key(namespace), 0)
        seed = np.uint64(hash((namespace, resets)) & 0xFFFFFFFFFFFFFFFF)
        hashes: Hashes = ((sums ^ seed) * _MULTIPLIER) | _IS_MISSED
        return hashes


def _places(hashes: Hashes) -> npt.NDArray[np.int64]:
    return (hashes >> np.uint64(64 - TABLE_BITS)).astype(np.int64)
