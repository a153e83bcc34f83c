"""Tests of the index of waiting prompts, against a plain list of them."""

from __future__ import annotations

import gc

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainstem.scheduler.prompts import NOBODY, PromptNode, WaitingPrompts
from mainstem.tree import TokenArray, common_length

token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=9)
namespaces = st.sampled_from([(), ((str, "a"),)])


def array(tokens: list[int]) -> TokenArray:
    return np.array(tokens, np.int32)


class PromptsMachine(RuleBasedStateMachine):
    """What is known is a set of prefixes, closed under shortening; the index has to say the same of every prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts = WaitingPrompts()
        self.waiting: dict[int, tuple[object, list[int]]] = {}
        self.known: set[tuple[object, tuple[int, ...]]] = set()
        self.hidden: list[tuple[object, list[int]]] = []
        self.next_order = 0

    def known_of(self, namespace: object, tokens: list[int]) -> int:
        return max((n for n in range(1, len(tokens) + 1) if (namespace, tuple(tokens[:n])) in self.known), default=0)

    def visible(self) -> dict[int, int]:
        """What is known of whom that can be seen."""
        return {
            order: self.known_of(namespace, tokens)
            for order, (namespace, tokens) in self.waiting.items()
            if not any(namespace == other and tokens[: len(start)] == start for other, start in self.hidden)
        }

    @precondition(lambda self: not self.hidden)
    @rule(namespace=namespaces, tokens=token_lists)
    def add(self, namespace: tuple[tuple[type, object], ...], tokens: list[int]) -> None:
        self.prompts.add(self.next_order, namespace, array(tokens), self.known_of(namespace, tokens))
        self.waiting[self.next_order] = namespace, tokens
        self.next_order += 1

    @precondition(lambda self: self.visible())
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(sorted(self.visible())))
        self.prompts.remove(order)
        del self.waiting[order]

    @rule(namespace=namespaces, tokens=token_lists)
    def learn(self, namespace: tuple[tuple[type, object], ...], tokens: list[int]) -> None:
        self.prompts.learn(namespace, array(tokens))
        self.known |= {(namespace, tuple(tokens[:n])) for n in range(1, len(tokens) + 1)}

    @rule(namespace=namespaces, tokens=token_lists, length=st.integers(0, 9))
    def forget(self, namespace: tuple[tuple[type, object], ...], tokens: list[int], length: int) -> None:
        """Everything that begins with one token more than `length`."""
        length = min(length, len(tokens) - 1)
        self.prompts.forget(namespace, array(tokens), length)
        gone = tuple(tokens[: length + 1])
        self.known = {(n, t) for n, t in self.known if n != namespace or t[: length + 1] != gone}

    @rule(namespace=namespaces, tokens=token_lists)
    def hide(self, namespace: tuple[tuple[type, object], ...], tokens: list[int]) -> None:
        self.prompts.hide(namespace, array(tokens), len(tokens))
        self.hidden.append((namespace, tokens))

    @rule()
    def show_all(self) -> None:
        self.prompts.show_all()
        self.hidden.clear()

    @rule(namespace=namespaces, tokens=token_lists, shortest=st.integers(0, 9))
    def within(self, namespace: tuple[tuple[type, object], ...], tokens: list[int], shortest: int) -> None:
        expected = {
            order
            for order, (other, prompt) in self.waiting.items()
            if other == namespace and shortest <= len(prompt) == common_length(array(prompt), array(tokens))
        }
        assert set(self.prompts.within(namespace, array(tokens), shortest)) == expected

    def best_below(self, namespace: object, depth: int, prompts: dict[int, list[int]]) -> tuple[float, int]:
        """Who is next of those that have `depth` known tokens in common, and the worth of the edge that leads there."""
        visible = self.visible()
        by_token: dict[int, dict[int, list[int]]] = {}
        for order, tokens in prompts.items():
            if len(tokens) > depth:
                by_token.setdefault(tokens[depth], {})[order] = tokens
        ranks = []
        for below in by_token.values():
            one = array(next(iter(below.values())))
            end = min(common_length(one, array(tokens)) for tokens in below.values())
            known = min(end, max(self.known_of(namespace, tokens[:end]) for tokens in below.values()))
            first = min((order for order in below if order in visible), default=NOBODY)
            if known > depth and first != NOBODY:
                who = self.best_below(namespace, end, below)[1] if known == end else first
                ranks.append(((depth - known) / len(below), who))
        return min(ranks, default=(1, min((order for order in prompts if order in visible), default=NOBODY)))

    @invariant()
    def those_that_are_next_are_the_right_ones(self) -> None:
        visible = self.visible()
        assert self.prompts.first == min(visible, default=NOBODY)
        best = min(
            self.best_below(one, 0, {o: tokens for o, (other, tokens) in self.waiting.items() if other == one})
            for one in ((), ((str, "a"),))
        )
        assert self.prompts.best == best[1]

    @invariant()
    def what_is_known_is_right(self) -> None:
        if not self.hidden:
            self.prompts.check_integrity()
        for order, (namespace, tokens) in self.waiting.items():
            assert self.prompts.known(order) == self.known_of(namespace, tokens)


TestPrompts = PromptsMachine.TestCase
TestPrompts.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_a_place_that_is_in_the_tree_no_more_keeps_no_prompt_in_memory() -> None:
    prompts = WaitingPrompts()
    tokens = np.arange(1000, dtype=np.int32)
    for order, length in enumerate((500, 1000)):
        prompts.add(order, (), tokens[:length], 0)
    places = [prompts.find((), tokens[:length]) for length in (500, 1000)]
    for order in (0, 1):  # the first becomes one with the second, which then leaves
        prompts.remove(order)
    kept = [thing for place in places for thing in gc.get_referents(place)]
    assert sum(thing.nbytes for thing in kept if isinstance(thing, np.ndarray)) == 0
    assert not any(isinstance(thing, PromptNode) for thing in kept)
