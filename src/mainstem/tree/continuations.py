"""What followed a prefix the last times: the tokens that the radix tree holds below it.

Reading changes nothing: what was only guessed at does not count as used. It knows nodes, not what is guessed from them.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

import numpy as np

from mainstem.tree.keys import TokenArray, common_length
from mainstem.tree.node import NO_TOKENS, ChildKey, Node

# Of a node's children, so many of the newest are looked at.
MAX_CHILDREN = 16


class _Place(NamedTuple):
    """A point in the tree: `at` tokens into the edge of `node`, and the tokens that led there from the start."""

    node: Node
    at: int
    said: TokenArray


def continuations(node: Node, tail: TokenArray, length: int, paths: int) -> list[TokenArray]:
    """Up to `paths` cached sequences, of at most `length` tokens, that follow the prefix of `node` and then `tail`.

    Whoever was used last comes first; each of the others parts from one before it. With pages of one token.
    """
    start = _descend(node, tail)
    if start is None:
        return []
    found: list[TokenArray] = []
    places = deque([start])
    while places and len(found) < paths:
        place = places.popleft()
        said = place.said
        node, at = place.node, place.at
        while len(said) < length:
            if at < len(node.key):
                said = np.concatenate([said, node.key[at : at + length - len(said)]])
                at = len(node.key)
                continue
            children = _latest(node)
            if not children:
                break
            places.extend(_Place(child, 0, said) for child in children[1:paths])
            node, at = children[0], 0
        if len(said):
            found.append(said)
    return found


def _descend(node: Node, tail: TokenArray) -> _Place | None:
    """Where `tail` leads from the end of a node; None where the tree ends or says something else before that."""
    at = len(node.key)
    done = 0
    while done < len(tail):
        if at == len(node.key):
            key: ChildKey = tail.item(done)
            child = node.children.get(key)
            if child is None:
                return None
            node, at = child, 0
        rest = node.key[at : at + len(tail) - done]
        if common_length(rest, tail[done:]) < len(rest):
            return None
        at += len(rest)
        done += len(rest)
    return _Place(node, at, NO_TOKENS)


def _latest(node: Node) -> list[Node]:
    """Children of a node, those in use now first, then the last used."""
    newest = islice(reversed(node.children.values()), MAX_CHILDREN)
    return sorted(newest, key=lambda child: (child.locks > 0, child.last_used), reverse=True)
