"""The prefix cache: token sequences to slots of the KV pool.

Knows locks, recency, namespaces and eviction order. Knows no tensors, no text and no requests.
"""

from mainstem.tree.interface import CacheStats, InsertResult, MatchResult, PeekResult, PrefixCache, PrefixHandle
from mainstem.tree.keys import Namespace, TokenArray, Tokens, as_tokens, common_length, namespace_key
from mainstem.tree.none import NoPrefixCache
from mainstem.tree.radix import RadixCache

__all__ = [
    "CacheStats",
    "InsertResult",
    "MatchResult",
    "Namespace",
    "NoPrefixCache",
    "PeekResult",
    "PrefixCache",
    "PrefixHandle",
    "RadixCache",
    "TokenArray",
    "Tokens",
    "as_tokens",
    "common_length",
    "namespace_key",
]
