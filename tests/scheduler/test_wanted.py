"""What waiting prompts want of leaves, looked up with remembered places, is what comparing all tokens says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainstem.params import SamplingParams
from mainstem.scheduler import Request
from mainstem.scheduler.prompts import WaitingPrompts
from mainstem.scheduler.waiting import LongestPrefix
from mainstem.scheduler.wanted import FEW_PLACES, WantedEdges, tokens_to
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


def test_what_has_left_is_forgotten_while_others_wait() -> None:
    cache, prompts = RadixCache(100), WaitingPrompts()
    wanted = WantedEdges(prompts)
    prompts.add(0, SPACE, np.array([1, 2], np.int32), 0)
    most = 0
    for order in range(1, 20 * FEW_PLACES):
        tokens = np.array([2, order, 3], np.int32)
        prompts.add(order, SPACE, tokens, 0)
        for end in (2, 3):
            cache.insert(tokens[:end], ("a",))
        assert wanted.of(leaves(cache)[0]) == 1
        cache.evict(3)
        prompts.remove(order)
        most = max(most, len(wanted))
    assert most <= FEW_PLACES


def test_nothing_is_remembered_when_nobody_waits() -> None:
    cache = RadixCache(100)
    queue = LongestPrefix(cache)
    request = Request("a", np.arange(4, dtype=np.int32), SamplingParams(), max_tokens=1, namespace=("a",))
    request.order, request.view = 0, cache.view(("a",))
    queue.add(request)
    for end in (2, 4):
        cache.insert(range(end), ("a",))
    assert queue.wanted(leaves(cache)[0]) == 2
    assert len(queue._wanted) == 1
    queue.remove(request)
    assert len(queue._wanted) == 0


def test_places_that_hold_are_kept_however_many_there_are() -> None:
    cache, prompts = RadixCache(8 * FEW_PLACES), WaitingPrompts()
    wanted = WantedEdges(prompts)
    for order in range(2 * FEW_PLACES):
        tokens = np.array([order, 1, 2], np.int32)
        prompts.add(order, SPACE, tokens, 0)
        for end in (1, 3):
            cache.insert(tokens[:end], ("a",))
    found = leaves(cache)
    for _ in range(2):
        assert [wanted.of(leaf) for leaf in found] == [2] * len(found)
    assert len(wanted) == len(found)
