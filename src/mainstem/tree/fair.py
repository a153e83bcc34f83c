"""Who gives way when room is needed: of all accounts the one that holds most, and of its nodes the least valuable.

So nobody's tokens are evicted for others as long as somebody holds more (max-min fairness): a tenant keeps what it has
up to an equal share of what is cached, whatever the others do, and may fill what nobody else wants. Within an account
`EvictionOrder` decides. It knows accounts and nodes; nothing of slots.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mainstem.tree.eviction import EvictionReason
from mainstem.tree.hints import Retention
from mainstem.tree.keys import NamespaceKey
from mainstem.tree.node import Node
from mainstem.tree.order import EvictionOrder, Ring
from mainstem.tree.tenancy import Account, Space, tenant_key


class FairOrder:
    """The orders of eviction of all accounts; to a cache they look like one.

    Args:
        retention_budget: tokens that may be retained at once; each account has an equal part of it.
        clock: seconds, never going back.
        by_tenant: whether each tenant has an account of its own; otherwise there is one for all.
    """

    def __init__(
        self, retention_budget: float, clock: Callable[[], float] = time.monotonic, *, by_tenant: bool = False
    ) -> None:
        self._retention_budget = retention_budget
        self._clock = clock
        self._by_tenant = by_tenant
        self._time = EvictionOrder(0.0, clock)  # whose ticks are everyone's
        self._now = -math.inf
        self._on_revival: Callable[[Node], None] | None = None
        self._asking: NamespaceKey | None = None
        self._asked = 0
        self.accounts: dict[NamespaceKey, Account] = {}

    # -- accounts -------------------------------------------------------------------------------------------------

    def space(self, namespace: NamespaceKey) -> Space:
        """The space of a namespace, on the account of its tenant."""
        key = tenant_key(namespace) if self._by_tenant else ()
        account = self.accounts.get(key)
        if account is None:
            order = EvictionOrder(self._retention_budget, self._clock)
            order.on_revival = self._on_revival
            account = self.accounts[key] = Account(key, order)
            self._share_retention()
        return Space(namespace, account)

    def account(self, namespace: NamespaceKey) -> Account | None:
        """The account that a namespace's tokens count for, if it has any."""
        return self.accounts.get(tenant_key(namespace) if self._by_tenant else ())

    def note(self, space: Space, tokens: int) -> None:
        """So many tokens came to the account of a space, or left it."""
        account = space.account
        account.tokens += tokens
        if account.tokens == 0 and self._by_tenant:
            del self.accounts[account.key]
            self._share_retention()

    def _share_retention(self) -> None:
        for account in self.accounts.values():
            account.order.retention_budget = self._retention_budget / len(self.accounts)

    @contextmanager
    def asking(self, namespace: NamespaceKey, tokens: int) -> Iterator[None]:
        """Within it, room is made for so many tokens of this namespace: they count as if its tenant held them."""
        self._asking, self._asked = tenant_key(namespace) if self._by_tenant else (), tokens
        try:
            yield
        finally:
            self._asking, self._asked = None, 0

    # -- who goes -------------------------------------------------------------------------------------------------

    def first(self) -> Node | None:
        """The leaf to evict first; None when every node is locked."""
        if not self.accounts:
            return None
        if len(self.accounts) == 1:
            return first_of(next(iter(self.accounts.values())))
        leaf = first_of(max(self.accounts.values(), key=self._burden))
        if leaf is not None:
            return leaf
        for account in sorted(self.accounts.values(), key=self._burden, reverse=True):
            if (leaf := first_of(account)) is not None:
                return leaf
        return None

    def _burden(self, account: Account) -> int:
        return account.tokens + (self._asked if account.key == self._asking else 0)

    def expired(self, ttl_s: float) -> Node | None:
        """A leaf that was not used for so long and is not retained, if there is one."""
        for account in self.accounts.values():
            if (leaf := account.order.expired(ttl_s)) is not None:
                return leaf
        return None

    # -- what is used, and what is said of it: the account's own order knows --------------------------------------

    @property
    def on_revival(self) -> Callable[[Node], None] | None:
        """Called with a node that was given up and is used again all the same."""
        return self._on_revival

    @on_revival.setter
    def on_revival(self, call: Callable[[Node], None] | None) -> None:
        self._on_revival = call
        for account in self.accounts.values():
            account.order.on_revival = call

    def tick(self) -> float:
        """`EvictionOrder.tick`: one time for all accounts."""
        self._now = self._time.tick()
        return self._now

    def place(self, node: Node, now: float) -> None:
        """`EvictionOrder.place`."""
        node.space.account.order.place(node, now)

    def add(self, node: Node, now: float) -> None:
        """`EvictionOrder.add`."""
        node.space.account.order.add(node, now)

    def remove(self, node: Node) -> None:
        """`EvictionOrder.remove`."""
        node.space.account.order.remove(node)

    def use(self, node: Node, now: float) -> None:
        """`EvictionOrder.use`."""
        node.space.account.order.use(node, now)

    def place_above(self, upper: Node, lower: Node) -> None:
        """`EvictionOrder.place_above`."""
        lower.space.account.order.place_above(upper, lower)

    def replace(self, node: Node, shorter: Node) -> None:
        """`EvictionOrder.replace`."""
        node.space.account.order.replace(node, shorter)

    def branched(self, node: Node) -> None:
        """`EvictionOrder.branched`."""
        node.space.account.order.branched(node)

    def retain(self, node: Node, retention: Retention) -> None:
        """`EvictionOrder.retain`."""
        order = node.space.account.order
        order.at(self._now)
        order.retain(node, retention)

    def give_up(self, node: Node, reason: EvictionReason) -> None:
        """`EvictionOrder.give_up`."""
        node.space.account.order.give_up(node, reason)

    def doubt(self, node: Node) -> None:
        """`EvictionOrder.doubt`."""
        node.space.account.order.doubt(node)

    def is_given_up(self, node: Node) -> bool:
        """`EvictionOrder.is_given_up`."""
        return node.space.account.order.is_given_up(node)

    def retention_of(self, node: Node) -> Retention | None:
        """`EvictionOrder.retention_of`."""
        return node.space.account.order.retention_of(node)

    def move(self, node: Node, space: Space, now: float) -> None:
        """Give a node to another space, as one that is used now."""
        tokens = len(node.key)
        if node.locks == 0:
            self.remove(node)
        before, node.space = node.space, space
        node.ring = space.account.order.usual()
        self.note(space, tokens)
        self.note(before, -tokens)
        if node.locks == 0:
            self.add(node, now)
        else:
            space.account.locked += tokens
            before.account.locked -= tokens

    @property
    def retained_tokens(self) -> int:
        """Unlocked tokens that are retained."""
        return sum(account.order.retained_tokens for account in self.accounts.values())

    @property
    def given_up_tokens(self) -> int:
        """Tokens that were given up."""
        return sum(account.order.given_up_tokens for account in self.accounts.values())


def first_of(account: Account) -> Node | None:
    """The leaf of an account to evict first, if it has any without a lock.

    Below a public node there may be nodes of tenants. These are not evicted for being there, so then it is the first
    that has none.
    """
    leaf = account.order.first()
    if leaf is None or not leaf.children:
        return leaf
    return next((node for ring in _rings(account.order) for node in ring if not node.children), None)


def _rings(order: EvictionOrder) -> Iterator[Ring]:
    yield order.given_up()
    yield from order.rings()
