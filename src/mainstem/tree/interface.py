"""What a prefix cache is: the contract that the scheduler and the engine rely on, and the results it gives.

It knows token ids, slots and namespaces; nothing of tensors, text or requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, auto
from typing import ClassVar, NamedTuple

from mainstem.errors import OutOfSlots
from mainstem.pages import ExtentAllocator, Run, SlotArray, disjoint_runs, slots_of
from mainstem.tree.eviction import EvictionReason
from mainstem.tree.hints import CacheHints
from mainstem.tree.keys import Namespace, NamespaceKey, TokenArray, Tokens


class Reuse(Enum):
    """When tokens may be given to a cache, and so from when on others can use them."""

    NEVER = auto()
    """It keeps nothing."""
    COMPUTED = auto()
    """Once their KV is computed."""
    SCHEDULED = auto()
    """As soon as it is certain that the next step computes them. They are matched by requests that join the same step,
    and withdrawn should the step fail."""


class PrefixHandle:
    """Stands for one cached prefix, from its first token to its last. Opaque: pass it to `lock` and `unlock`."""

    __slots__ = ()


class MatchResult(NamedTuple):
    """The longest cached prefix of some tokens.

    Attributes:
        length: how many leading tokens are cached.
        slots: int32 array of shape (length,), the slot of each of them; the caller's to keep.
        handle: stands for exactly these tokens.
    """

    length: int
    slots: SlotArray
    handle: PrefixHandle


class PeekResult(NamedTuple):
    """What a match would find.

    Attributes:
        length: how many leading tokens are cached.
        evictable: how many of them no lock protects; a lock of the match would take as many from what is evictable.
    """

    length: int
    evictable: int


class InsertResult(NamedTuple):
    """What the cache holds of some tokens after they were inserted.

    Attributes:
        length: how many leading tokens it holds: all of them, rounded down to a page, or none if it keeps nothing.
        num_cached: how many of these it held before, and so took no slot over for. A cache that keeps duplicates counts
            only those that it held in the very slots it was given.
        slots: int32 array of shape (length,), the slot of each; the caller's to keep.
        handle: stands for exactly these tokens.
    """

    length: int
    num_cached: int
    slots: SlotArray
    handle: PrefixHandle


class CacheStats(NamedTuple):
    """Where the slots are, and what has happened since the start. `free + evictable + protected == capacity`.

    Attributes:
        capacity: slots of the pool.
        free: slots that nobody uses.
        evictable: slots of cached tokens that no lock protects.
        protected: all others: locked in the tree, or held privately.
        held: of the protected ones, those that the cache does not own: allocated by a caller and not yet inserted.
        num_nodes: nodes of the tree, roots left out; or blocks that can be matched, where those are what is kept.
        num_namespaces: namespaces with at least one cached token; 0 where the cache cannot tell.
        queries: calls of `match_prefix`.
        hits: how many of these matched at least one token.
        query_tokens: tokens that were asked for.
        hit_tokens: how many of these were matched.
        inserted_tokens: tokens that `insert` added.
        evicted: tokens that were evicted to make room.
    """

    capacity: int
    free: int
    evictable: int
    protected: int
    held: int
    num_nodes: int
    num_namespaces: int
    queries: int
    hits: int
    query_tokens: int
    hit_tokens: int
    inserted_tokens: int
    evicted: int


class PrefixCache(ABC):
    """Remembers which slots hold the KV of which token sequences, and owns the pool those slots come from.

    Every slot has one owner: it is free, or held privately by a caller (from `allocate` until `free` or `insert`), or
    cached. Cached tokens that no lock protects are evictable, least recently used first.

    A sequence of calls for one request:

    1. `match_prefix` finds what is cached; `lock` protects it; `allocate` gives slots for the rest.
    2. When `reuse` says so, `insert(..., slots=...)` hands them over. Where another request was faster, a cache that
       keeps no duplicates answers with other slots than the caller's: the caller points its page table at those, then
       gives its own back with `free`. It locks the new handle, then unlocks the old one.
    3. At the end it calls `unlock` for the last handle and `free` for slots it still holds.

    A prefix counts as used when it is inserted, when its last lock is released, since until then it was in use, and, in
    a cache that orders by look-ups, when it is matched.

    Whoever asks about one growing sequence again and again does so through a `view`, in which the cache can remember
    what it has worked out.

    With `page_size` > 1 everything is in whole pages: matches and inserts round down to one, and the slots of a page
    are consecutive and begin at a multiple of the page size.

    Not safe for use from several threads.

    Args:
        capacity: slots of the pool, a multiple of `page_size`.
        page_size: tokens in a page.

    Attributes:
        evicted_by_reason: how many tokens have left since the start, by reason; empty where that is not known.

    Raises:
        ValueError: when `capacity` or `page_size` is not positive, or the one is no multiple of the other.
    """

    reuse: ClassVar[Reuse]
    """When tokens are to be inserted."""

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        if capacity < 1 or capacity % page_size:
            raise ValueError(f"capacity must be a positive multiple of the page size {page_size}, got {capacity}")
        self.capacity = int(capacity)
        self.page_size = int(page_size)
        self.allocator = ExtentAllocator(capacity, page_size)
        self._cached_tokens = 0
        self._evictable = 0
        self._num_nodes = 0
        self._queries = self._hits = self._query_tokens = self._hit_tokens = 0
        self._inserted_tokens = self._evicted = 0
        self.evicted_by_reason: dict[EvictionReason, int] = {}

    @abstractmethod
    def match_prefix(self, tokens: Tokens, namespace: Namespace = ()) -> MatchResult:
        """Find the longest cached prefix and count one query; see above for whether that counts as using it."""

    @abstractmethod
    def peek(self, tokens: Tokens, namespace: Namespace = ()) -> PeekResult:
        """Say what `match_prefix` would find, with no effect at all: nothing is counted, split or marked as used."""

    @abstractmethod
    def lock(self, handle: PrefixHandle) -> None:
        """Protect a prefix from eviction until it is unlocked as often as it was locked.

        Raises:
            ValueError: when the prefix has been evicted since, wholly or in part, or belongs to another cache.
        """

    @abstractmethod
    def unlock(self, handle: PrefixHandle) -> None:
        """Release one lock.

        Raises:
            ValueError: when the handle is not locked; nothing has changed then.
        """

    @abstractmethod
    def insert(self, tokens: Tokens, namespace: Namespace = (), *, slots: SlotArray | None = None) -> InsertResult:
        """Make the cache hold these tokens, and mark them as used now.

        Args:
            tokens: a whole sequence, from its first token.
            namespace: which tree it belongs to.
            slots: None to allocate slots for the tokens that are new, evicting others if need be. Otherwise int32 array
                of shape (len(tokens),), the slots that hold their KV: the cache takes over
                `slots[num_cached:length]`; all others stay the caller's.

        Raises:
            OutOfSlots: when even eviction could not make room; nothing has changed then.
            ValueError: when `slots` has the wrong shape, or one that the cache would take over is not held by the
                caller; nothing has changed then.
        """

    def continuations(
        self,
        handle: PrefixHandle,  # noqa: ARG002 - most caches cannot tell
        tail: TokenArray,  # noqa: ARG002
        length: int,  # noqa: ARG002
        paths: int,  # noqa: ARG002
    ) -> list[TokenArray]:
        """What is cached beyond a locked prefix and the tokens of `tail` after it, with no effect at all.

        Returns:
            Up to `paths` sequences of up to `length` tokens, the likeliest to be said again first; none where a cache
            cannot tell.
        """
        return []

    def view(self, namespace: Namespace = ()) -> SequenceView:
        """A view for one growing sequence of this namespace."""
        return SequenceView(self, namespace)

    def withdraw(self, handle: PrefixHandle, length: int) -> None:
        """Stop matching the tokens of a locked prefix from `length` on: their KV was not computed after all.

        They keep their slots while anyone has them locked; these are free after that.

        Raises:
            ValueError: when the handle is not locked.
            NotImplementedError: unless `reuse` is SCHEDULED; no other cache is given tokens before they are computed.
        """
        raise NotImplementedError("this cache holds computed tokens only")

    def begin(self, tokens: Tokens, namespace: Namespace, match: MatchResult, hints: CacheHints) -> None:  # noqa: B027
        """A request begins, and was just told that `match` is cached of its tokens; only some caches take hints."""

    def end(self, tokens: Tokens, namespace: Namespace, handle: PrefixHandle | None, hints: CacheHints) -> None:  # noqa: B027
        """A request that began has ended.

        Args:
            tokens: all that it has computed.
            namespace: as when it began.
            handle: of what it leaves in the cache; None for nothing.
            hints: as when it began.
        """

    def end_session(self, session: str, namespace: Namespace = ()) -> bool:  # noqa: ARG002
        """A session will not come back, says its client after its last request; whether the session is known here."""
        return False

    def expire(self, ttl_s: float, limit: int | None = None) -> int:  # noqa: ARG002
        """Evict what nobody has used for so long and nothing retains, at most about `limit` tokens.

        Returns:
            How many were evicted; always 0 where nothing expires.
        """
        return 0

    @abstractmethod
    def evict(self, n: int) -> int:
        """Free at least `n` slots if that many are evictable, and never more than `n` rounded up to a page.

        Returns:
            How many were freed.
        """

    def reset(self) -> int:
        """Forget everything that is not locked.

        Returns:
            How many tokens were dropped.
        """
        evicted = self._evicted
        dropped = self.evict(self._evictable)
        self._evicted = evicted
        return dropped

    def reset_tenant(self, namespace: Namespace) -> int:
        """Forget everything of one tenant that is not locked, in all its namespaces; see `tenancy`.

        Returns:
            How many tokens were dropped.

        Raises:
            NotImplementedError: when this cache does not know whose tokens are whose.
        """
        raise NotImplementedError("this cache knows no tenants")

    def tokens_by_tenant(self) -> dict[Namespace, int]:
        """How many tokens each tenant holds, by the parts of its namespaces that name it; empty where nobody knows."""
        return {}

    def locked_tokens(self, tenant: NamespaceKey) -> int:  # noqa: ARG002 - of use to caches that know tenants
        """How many tokens a tenant has under locks, what is public not counted; 0 where nobody knows."""
        return 0

    def declare_public(self, tokens: Tokens, namespace: Namespace) -> None:
        """Let all tenants share these tokens, and all beginnings of them, from now on; see `tenancy`.

        Args:
            tokens: a prefix.
            namespace: the public one for those who may share.

        Raises:
            NotImplementedError: when this cache has nothing public.
        """
        raise NotImplementedError("this cache keeps every namespace to itself")

    def stats(self) -> CacheStats:
        """Count slots and events, in constant time."""
        free = self.allocator.num_free
        return CacheStats(
            capacity=self.capacity,
            free=free,
            evictable=self._evictable,
            protected=self.capacity - free - self._evictable,
            held=self.held,
            num_nodes=self._num_nodes,
            num_namespaces=self._num_namespaces,
            queries=self._queries,
            hits=self._hits,
            query_tokens=self._query_tokens,
            hit_tokens=self._hit_tokens,
            inserted_tokens=self._inserted_tokens,
            evicted=self._evicted,
        )

    @abstractmethod
    def check_integrity(self) -> None:
        """Verify every invariant, in time proportional to the size of the cache.

        Raises:
            AssertionError: naming the broken invariant.
        """

    def allocate(self, n: int, *, after: int | None = None, namespace: Namespace = ()) -> SlotArray:  # noqa: ARG002
        """Take `n` slots, evicting as many tokens as that needs. The caller holds them until `free` or `insert`.

        Args:
            n: number of slots, a multiple of the page size.
            after: the last slot of the sequence that is being extended, if any: the next one is taken if it is free.
            namespace: whose sequence it is; of use to a cache that is fair to tenants.

        Returns:
            int32 array of shape (n,), in runs as long as possible.

        Raises:
            OutOfSlots: when fewer than `n` slots are free or evictable; nothing has changed then.
            ValueError: when `n` is negative or not in whole pages.
        """
        return slots_of(self._allocate_runs(n, after))

    def free(self, slots: SlotArray) -> None:
        """Give back slots that the caller holds, in any order.

        Raises:
            ValueError: when a slot is not held by the caller, or they are not whole pages; nothing has changed then.
        """
        runs = disjoint_runs(slots)
        self._require_whole_pages(runs)
        self.allocator.free_runs(runs)

    @property
    def held(self) -> int:
        """Slots that callers hold privately: allocated, and not cached."""
        return self.capacity - self.allocator.num_free - self._cached_tokens

    @property
    def _num_namespaces(self) -> int:
        """Namespaces that are known to have cached tokens."""
        return 0

    def _count_query(self, num_tokens: int, length: int) -> None:
        """Count one query of so many tokens, `length` of which were matched."""
        self._queries += 1
        self._query_tokens += num_tokens
        self._hits += length > 0
        self._hit_tokens += length

    def _allocate_runs(self, n: int, after: int | None) -> list[Run]:
        """What `allocate` does, in runs."""
        if n < 0 or n % self.page_size:
            raise ValueError(f"the number of slots must be a multiple of the page size {self.page_size}, got {n}")
        missing = n - self.allocator.num_free
        if missing > 0:
            if missing > self._evictable:
                raise OutOfSlots(n, self.allocator.num_free + self._evictable)
            self.evict(missing)
        return self.allocator.allocate_runs(n, after=after)

    def _require_whole_pages(self, runs: Sequence[Run]) -> None:
        """Raise ValueError unless every run begins and ends between two pages."""
        size = self.page_size
        if size > 1 and any(start % size or stop % size for start, stop in runs):
            raise ValueError(
                f"slots must be whole pages of {size} consecutive slots that begin at a multiple of {size}"
            )


class SequenceView:
    """The calls of a prefix cache for one growing sequence of tokens; see there for what they do.

    Every call gets the sequence from its first token, as far as the caller wants to be answered. Between two calls
    tokens may be added at its end; none may change.
    """

    def __init__(self, cache: PrefixCache, namespace: Namespace) -> None:
        self._cache = cache
        self._namespace = namespace

    def match_prefix(self, tokens: Tokens) -> MatchResult:
        """`PrefixCache.match_prefix`."""
        return self._cache.match_prefix(tokens, self._namespace)

    def peek(self, tokens: Tokens) -> PeekResult:
        """`PrefixCache.peek`."""
        return self._cache.peek(tokens, self._namespace)

    def insert(self, tokens: Tokens, *, slots: SlotArray | None = None) -> InsertResult:
        """`PrefixCache.insert`."""
        return self._cache.insert(tokens, self._namespace, slots=slots)
