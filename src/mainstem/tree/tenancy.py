"""Whose tokens are whose: spaces, accounts, and what namespaces have to do with one another.

A namespace is private to one tenant or public. A private one names its tenant first, then what is served; what is
public for it has the same name without the tenant. A namespace that is narrowed further, by a salt, has nothing public.
It knows names and numbers of tokens; nothing of nodes, slots or time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.tree.keys import Namespace, NamespaceKey

if TYPE_CHECKING:
    from mainstem.tree.order import EvictionOrder

TENANT, PUBLIC, SALT = "tenant", "public", "salt"


def tenant_key(namespace: NamespaceKey) -> NamespaceKey:
    """The beginning of a namespace that names whose it is."""
    return namespace[:2]


def public_part(namespace: NamespaceKey) -> NamespaceKey | None:
    """The public namespace that a private one may read too; None if there is none for it."""
    if len(namespace) < 2 or namespace[0] != (str, TENANT) or (str, SALT) in namespace[2::2]:
        return None
    return ((str, PUBLIC), *namespace[2:])


def public_namespace(namespace: Namespace) -> Namespace:
    """The public namespace for what a tenant's namespace names."""
    return (PUBLIC, *namespace[2:])


def is_public(namespace: NamespaceKey) -> bool:
    """Whether everyone who is served the same may read it."""
    return namespace[:1] == ((str, PUBLIC),)


class Account:
    """What one tenant holds in the tree, over all its namespaces; what is public has an account of its own.

    Attributes:
        key: the beginning of its namespaces that names the tenant.
        order: in which its nodes are evicted.
        tokens: that it holds, locked or not.
        locked: of these, those under a lock.
    """

    __slots__ = ("key", "locked", "order", "tokens")

    def __init__(self, key: NamespaceKey, order: EvictionOrder) -> None:
        self.key = key
        self.order = order
        self.tokens = 0
        self.locked = 0

    @property
    def is_public(self) -> bool:
        """Whether it is no tenant's."""
        return is_public(self.key)


class Space:
    """The part of the tree that belongs to one namespace.

    Attributes:
        namespace: its key.
        account: that its tokens count for.
    """

    __slots__ = ("account", "namespace")

    def __init__(self, namespace: NamespaceKey, account: Account) -> None:
        self.namespace = namespace
        self.account = account
