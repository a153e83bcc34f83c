"""The slots that running requests keep, and whose they are: the prefix cache's, or a request's own.

Every slot has one owner. A request reserves slots of its own; what is computed in them it gives to the prefix cache,
and keeps a lock on it; what it has left at the end is freed. It knows requests and the prefix cache, and nothing of
who runs next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mainstem.errors import OutOfSlots
from mainstem.scheduler.request import Request
from mainstem.scheduler.tenants import TenantQueues
from mainstem.tree import PrefixCache, Reuse


class Slots:
    """Takes slots for requests, gives them to the prefix cache, and frees them.

    Args:
        cache: where they come from.
        waiting: is told what is in the cache.
        needs_room: is told for whom slots are asked for, before they are.
    """

    def __init__(self, cache: PrefixCache, waiting: TenantQueues, needs_room: Callable[[Request], None]) -> None:
        self._cache = cache
        self._waiting = waiting
        self._needs_room = needs_room

    def whole_pages(self, num_tokens: int) -> int:
        """Slots of the pages that hold this many tokens."""
        return num_tokens + -num_tokens % self._cache.page_size

    def reserve(self, request: Request, num_slots: int) -> None:
        """Take slots for a request's next tokens, in whole pages.

        Raises:
            OutOfSlots: when there are too few; nothing has changed then.
        """
        self._needs_room(request)
        request.table.append(
            self._cache.allocate(self.whole_pages(num_slots), after=request.table.last, namespace=request.namespace)
        )

    def try_reserve(self, request: Request, num_slots: int) -> bool:
        """The same; false when there are too few."""
        try:
            self.reserve(request, num_slots)
        except OutOfSlots:
            return False
        return True

    def store(self, request: Request, length: int) -> None:
        """Give tokens to the prefix cache, as many as whole pages hold, and keep them there by a lock."""
        stored = request.view.insert(request.tokens.array[:length], slots=request.table.slots[:length])
        self._cache.lock(stored.handle)
        if request.handle is not None:
            self._cache.unlock(request.handle)
        request.handle = stored.handle
        # Where another request's copy was kept, point at that before giving up our own.
        mine = slice(max(request.num_owned, request.num_borrowed), stored.num_cached)
        own, kept = request.table.slots[mine], stored.slots[mine]
        duplicates = own[own != kept]
        request.table.remap(stored.slots[: stored.length])
        if len(duplicates):
            self._cache.free(duplicates)
        request.num_owned = max(request.num_owned, stored.length)
        self._waiting.computed(request, stored.length)

    def store_computed(self, request: Request) -> None:
        """Give the prefix cache all that is computed, if it takes such."""
        if self._cache.reuse is Reuse.COMPUTED and request.num_computed > request.num_owned:
            self.store(request, request.num_computed)

    def free_private(self, request: Request) -> None:
        """Free what the prefix cache does not own."""
        self.free_after(request, request.num_owned)

    def free_reserved(self, requests: Iterable[Request]) -> None:
        """Free what running requests hold for later tokens of their replies."""
        for request in requests:
            self.free_after(request, len(request.tokens))

    def free_after(self, request: Request, length: int) -> None:
        """Free the pages after the one that holds the last of `length` tokens."""
        kept = self.whole_pages(length)
        extra = request.table.slots[kept:]
        if len(extra):
            self._cache.free(extra)
            request.table.truncate(kept)
