"""The prefix cache: token sequences to slots of the KV pool.

Knows locks, recency, namespaces and eviction order. Knows no tensors, no text and no requests.
"""

from collections.abc import Callable

from mainstem.tree.block_hash import BlockHashCache
from mainstem.tree.eviction import EvictionReason, OnEvict
from mainstem.tree.interface import (
    CacheStats,
    InsertResult,
    MatchResult,
    PeekResult,
    PrefixCache,
    PrefixHandle,
    Reuse,
    SequenceView,
)
from mainstem.tree.keys import Namespace, NamespaceKey, TokenArray, Tokens, as_tokens, common_length, namespace_key
from mainstem.tree.none import NoPrefixCache
from mainstem.tree.radix import RadixCache
from mainstem.tree.tenancy import public_namespace

CACHES: dict[str, Callable[[int, int], PrefixCache]] = {
    "radix": RadixCache,
    "block-hash": BlockHashCache,
    "none": NoPrefixCache,
}
"""Every kind of prefix cache by its name in the settings, made from a capacity and a page size, both in slots."""

__all__ = [
    "CACHES",
    "BlockHashCache",
    "CacheStats",
    "EvictionReason",
    "InsertResult",
    "MatchResult",
    "Namespace",
    "NamespaceKey",
    "NoPrefixCache",
    "OnEvict",
    "PeekResult",
    "PrefixCache",
    "PrefixHandle",
    "RadixCache",
    "Reuse",
    "SequenceView",
    "TokenArray",
    "Tokens",
    "as_tokens",
    "common_length",
    "namespace_key",
    "public_namespace",
]
