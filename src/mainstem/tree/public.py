"""What tenants may share: prefixes that the operator declares, and those that enough tenants have produced.

A public prefix lies in a tree of its own, and a tenant's tokens that continue it hang below its nodes, each under a key
that begins with the tenant's namespace. So a look-up goes down public nodes and then the asker's own, and never comes
upon anyone else's. It knows nodes and spaces; nothing of slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from mainstem.tree.keys import NamespaceKey, TokenArray, common_length
from mainstem.tree.node import ChildKey, EdgeKey, Node, Root
from mainstem.tree.tenancy import is_public, public_part

EdgeKeyOf: TypeAlias = Callable[[TokenArray, int], EdgeKey]
"""The key of the edge that begins at a place of some tokens."""


class Walk(NamedTuple):
    """How far some tokens lead down the tree.

    Attributes:
        length: tokens matched, in whole pages.
        path: the nodes that are matched to their end, from the top.
        partial: the node after these, when only a beginning of it is matched.
        within: how many tokens of `partial` are matched.
    """

    length: int
    path: list[Node]
    partial: Node | None
    within: int


class PublicPrefixes:
    """Which beginnings of prompts are public.

    Args:
        share_after: so many tenants must have produced a prefix to make it public; 0 for never.
    """

    def __init__(self, share_after: int = 0) -> None:
        self.share_after = share_after
        self._declared: dict[NamespaceKey, list[TokenArray]] = {}

    def __bool__(self) -> bool:
        return bool(self._declared) or self.share_after > 0

    def declare(self, namespace: NamespaceKey, tokens: TokenArray) -> None:
        """These tokens, and all their beginnings, are public from now on."""
        self._declared.setdefault(namespace, []).append(tokens.copy())

    def declared_length(self, namespace: NamespaceKey, tokens: TokenArray) -> int:
        """How many leading tokens are declared public for this namespace, itself public or private."""
        public = namespace if is_public(namespace) else public_part(namespace)
        declared = self._declared.get(public, ()) if public is not None else ()
        return max((common_length(prefix, tokens) for prefix in declared), default=0)


def follow(node: Node, key: ChildKey, tokens: TokenArray, length: int, edge_key: EdgeKeyOf, page_size: int) -> Walk:
    """Follow `tokens` from a node down the tree, beginning with its child under `key`; `length` of them lead there."""
    path: list[Node] = []
    end = len(tokens) - len(tokens) % page_size
    at: Node | None = node.children.get(key)
    while at is not None:
        same = common_length(at.key, tokens[length : min(length + len(at.key), end)])
        if same < len(at.key):
            same -= same % page_size
            return Walk(length + same, path, at, same)
        path.append(at)
        length += same
        if length >= end:
            break
        at = at.children.get(edge_key(tokens, length))
    return Walk(length, path, None, 0)


def walk_shared(shared: Root, namespace: NamespaceKey, tokens: TokenArray, edge_key: EdgeKeyOf, page_size: int) -> Walk:
    """Follow `tokens` down public nodes, and from one of them down those of a namespace: the longest such way."""
    end = len(tokens) - len(tokens) % page_size
    if end == 0:
        return Walk(0, [], None, 0)
    public = best = follow(shared, edge_key(tokens, 0), tokens, 0, edge_key, page_size)
    at = public.length - public.within
    for depth in range(len(public.path), 0, -1):
        node = public.path[depth - 1]
        if at < end:
            key = (namespace, edge_key(tokens, at))
            if key in node.children:
                own = follow(node, key, tokens, at, edge_key, page_size)
                if own.length > best.length:
                    best = own._replace(path=public.path[:depth] + own.path)
        at -= len(node.key)
    return best


def produced_by_others(
    roots: Mapping[NamespaceKey, Root], namespace: NamespaceKey, length_in: Callable[[NamespaceKey], int], least: int
) -> int:
    """How many leading tokens at least `least` other tenants hold who are served the same; 0 if fewer do.

    Args:
        roots: of all namespaces.
        namespace: of the one who asks, whose tenant its first two parts name.
        length_in: how many of the tokens in question a namespace holds.
    """
    public = public_part(namespace)
    assert public is not None
    lengths: dict[NamespaceKey, int] = {}
    for other in {*roots, *_hanging_below(roots.get(public))}:
        if other[:2] != namespace[:2] and public_part(other) == public:
            lengths[other[:2]] = length_in(other)
    longest = sorted(lengths.values(), reverse=True)
    return longest[least - 1] if len(longest) >= least else 0


def _hanging_below(root: Root | None) -> Iterator[NamespaceKey]:
    """The namespaces of what hangs below public nodes."""
    pending: list[Node] = [] if root is None else [root]
    while pending:
        for child in pending.pop().children.values():
            if is_public(child.space.namespace):
                pending.append(child)
            else:
                yield child.space.namespace
