"""What each tenant's running requests hold, what is its share while others wait, and who gives way for them.

A tenant that nobody waits with may have all seats and all slots. While requests of several tenants wait, its share is
an equal part of both, of the slots at most its quota. Who has its share or more is let in after those who have less.
One who has less, and finds no seat or no memory within its share, has a claim: before the next step, requests of
those who have more than their shares give way to it, the youngest first, but never a tenant's first one. So nobody is
driven out altogether, a request that is longer than a share runs to its end, and those let in by a claim are within
their share and need not give way for another claim: claims come to an end.

It knows who runs and what of the pool they hold; whose turn it is is for `mainstem.scheduler.tenants`.
"""

from __future__ import annotations

from mainstem.scheduler.request import Request
from mainstem.scheduler.tenants import Tenant, TenantQueues
from mainstem.tree import Namespace, NamespaceKey, PrefixCache


class Shares:
    """The shares of those who wait or run.

    Args:
        cache: whose slots they share.
        waiting: who waits.
        running: who runs, by their places; the scheduler's own list.
        max_num_seqs: seats that they share.
        quota: most of the slots, as a share, that one of several tenants who wait may have.
    """

    def __init__(
        self, cache: PrefixCache, waiting: TenantQueues, running: list[Request], max_num_seqs: int, quota: float
    ) -> None:
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._max_num_seqs = max_num_seqs
        self._quota = quota
        self._private: dict[NamespaceKey, int] | None = None
        waiting.defers = self.has_its_share

    @property
    def free_seats(self) -> int:
        """How many more requests may run."""
        return self._max_num_seqs - len(self._running)

    @property
    def seats(self) -> int:
        """How many requests of a tenant may run while others wait."""
        return max(self._max_num_seqs // max(len(self._waiting.live), 1), 1)

    @property
    def slots(self) -> int:
        """How many slots they may hold."""
        return int(self._cache.capacity * min(self._quota, 1 / max(len(self._waiting.live), 1)))

    def held(self, tenant: Tenant) -> int:
        """Slots that a tenant's running requests hold, and whatever else of its is locked."""
        if self._private is None:
            self._private = {}
            for request in self._running:
                key = self._waiting.tenant_of(request).key
                self._private[key] = self._private.get(key, 0) + len(request.table) - request.num_owned
        return self._cache.locked_tokens(tenant.key) + self._private.get(tenant.key, 0)

    def changed(self) -> None:
        """Running requests hold other slots than before."""
        self._private = None

    def has_its_share(self, tenant: Tenant) -> bool:
        """Whether a tenant should be let in after others; one of whom nothing runs should not."""
        return tenant.seats > 0 and (tenant.seats >= self.seats or self.held(tenant) >= self.slots)

    # -- claims ---------------------------------------------------------------------------------------------------

    @property
    def claims_on_seats(self) -> bool:
        """Whether anybody has more seats than its share, which others may claim."""
        live, share = self._waiting.live, self.seats
        return len(live) > 1 and any(tenant.seats > share for tenant in live.values())

    def may_claim(self, request: Request, needed: int) -> bool:
        """Whether a waiting request that needs so many slots would be within its tenant's share."""
        if len(self._waiting.live) == 1:
            return False
        tenant = self._waiting.tenant_of(request)
        return tenant.seats < self.seats and self.held(tenant) + needed <= self.slots

    def who_gives_way(self, claimant: Tenant, *, seat: bool) -> Request | None:
        """Who gives up its seat, or its slots, for another tenant; None if nobody has more than its share."""
        others = [t for t in self._waiting.live.values() if t is not claimant and t.seats > 1]
        if seat:
            over = [tenant for tenant in others if tenant.seats > self.seats]
            most = max(over, key=lambda tenant: tenant.seats, default=None)
        else:
            over = [tenant for tenant in others if self.held(tenant) > self.slots]
            most = max(over, key=self.held, default=None)
        return next((r for r in reversed(self._running) if self._waiting.tenant_of(r) is most), None)

    def has_more(self, namespace: Namespace) -> bool:
        """Whether the tenant of a namespace holds more slots than its share."""
        key = self._waiting.key_of(namespace)
        tenant = self._waiting.live.get(key)
        held = self._cache.locked_tokens(key) if tenant is None else self.held(tenant)
        return held > self.slots

    # -- when memory runs out -------------------------------------------------------------------------------------

    def by_precedence(self) -> list[Request]:
        """The running requests, the one that gives way first last: the youngest of who holds most.

        A tenant's first one comes before all that are not, whatever it holds.
        """
        stats = self._cache.stats()
        enough = stats.free + stats.evictable >= len(self._running) * self._cache.page_size
        if enough or len(self._waiting.live) == 1:
            return self._running.copy()
        totals: dict[NamespaceKey, int] = {}
        below: dict[Request, tuple[NamespaceKey, int]] = {}  # what its tenant holds when it is the youngest left
        for request in self._running:
            key = self._waiting.tenant_of(request).key
            first = key not in totals
            totals[key] = totals.get(key, 0) + len(request.table)
            below[request] = key, 0 if first else totals[key]
        # What a tenant's requests share is counted with each of them, and then brought down to what it really holds.
        scale = {key: self.held(self._waiting.live[key]) / max(total, 1) for key, total in totals.items()}
        return sorted(self._running, key=lambda r: (below[r][1] * scale[below[r][0]], r.order))
