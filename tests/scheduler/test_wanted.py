"""What waiting prompts want of leaves, looked up with remembered places, is what comparing all tokens says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainstem.scheduler.prompts import WaitingPrompts
from mainstem.scheduler.wanted import WantedEdges, tokens_to
from mainstem.tree import RadixCache, TokenArray, namespace_key
from mainstem.tree.node import Node

SPACE = namespace_key(("a",))
sequences = st.lists(st.integers(0, 1), min_size=1, max_size=8)
events = st.lists(st.tuples(st.sampled_from(["wait", "leave", "cache", "evict"]), sequences), min_size=5, max_size=30)


def leaves(cache: RadixCache) -> list[Node]:
    root = cache._roots.get(SPACE)
    nodes: list[Node] = [root] if root else []
    for node in nodes:
        nodes.extend(node.children.values())
    return [node for node in nodes if node.parent is not None and not node.children]


@given(events)
def test_remembered_places_hold_while_prompts_come_and_go(happening: list[tuple[str, list[int]]]) -> None:
    cache, prompts, waiting = RadixCache(40), WaitingPrompts(), list[int]()
    wanted = WantedEdges(prompts)
    for order, (what, tokens) in enumerate(happening):
        array: TokenArray = np.array(tokens, np.int32)
        if what == "wait":
            prompts.add(order, SPACE, array, 0)
            waiting.append(order)
        elif what == "leave" and waiting:
            prompts.remove(waiting.pop(len(tokens) % len(waiting)))
        elif what == "cache":
            cache.insert(array, ("a",))
        elif what == "evict":
            cache.evict(len(tokens))
        for leaf in leaves(cache):
            path = tokens_to(leaf)
            within = prompts.matched(SPACE, path) - (len(path) - len(leaf.key))
            assert wanted.of(leaf) == max(within, 0)


def test_places_below_public_tokens_are_those_of_each_namespace() -> None:
    cache, prompts = RadixCache(40), WaitingPrompts()
    wanted = WantedEdges(prompts)
    ours, theirs = ("tenant", "a", "m", "x"), ("tenant", "b", "m", "x")
    cache.declare_public(range(4), ("public", "m", "x"))
    for namespace, last in ((ours, 7), (theirs, 7)):
        cache.insert([*range(4), last, last], namespace)
    prompts.add(0, namespace_key(ours), np.array([*range(4), 7, 8], np.int32), 0)
    found = {}
    nodes: list[Node] = list(cache._roots.values())
    for node in nodes:
        nodes.extend(node.children.values())
        if node.parent is not None and not node.children:
            found[node.space.namespace[1]] = wanted.of(node)
    assert found == {(str, "a"): 1, (str, "b"): 0}
