"""The token sequences of recent requests in one radix tree of keys, so that a new one finds the closest in one walk.

What requests have in common is stored once. Namespaces share the tree but are told apart at every node. It knows
neither slots nor what is cached.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from mainstem.tree import TokenArray, common_length
from mainstem.tree.keys import NamespaceKey

_NO_TOKENS: TokenArray = np.empty(0, np.int32)


class Sequence(Protocol):
    """What is remembered of whom a sequence belongs to.

    Attributes:
        order: larger for younger ones; of a namespace the oldest is removed first.
        namespace: that it belongs to.
        end: where it ends in the tree; set by the tree.
    """

    order: int
    namespace: NamespaceKey
    end: Step | None


S = TypeVar("S", bound=Sequence)


class Step:
    """An edge of the tree and its lower end.

    Attributes:
        key: int32 array, its tokens.
        parent: None at the top and for what was removed.
        children: by their first token.
        latest: by namespace, the youngest sequence that goes through.
        computed: by namespace, the most tokens from the top that were computed of one that goes through.
    """

    __slots__ = ("children", "computed", "key", "latest", "parent")

    def __init__(self, key: TokenArray, parent: Step | None) -> None:
        self.key = key
        self.parent = parent
        self.children: dict[int, Step] = {}
        self.latest: dict[NamespaceKey, Sequence] = {}
        self.computed: dict[NamespaceKey, int] = {}


class Found(NamedTuple, Generic[S]):
    """What sequences begin as some tokens do.

    Attributes:
        own: the youngest of those of one's namespace that have most in common with them; None if none has anything.
        own_length: how many tokens that is.
        own_computed: how many of the tokens were computed for any of one's namespace, behind the same beginning.
        other: the same among all other namespaces.
        other_length: the same.
    """

    own: S | None
    own_length: int
    own_computed: int
    other: S | None
    other_length: int


class Sequences(Generic[S]):
    """The tree.

    Attributes:
        size: tokens that it stores.
    """

    def __init__(self) -> None:
        self._top = Step(_NO_TOKENS, None)
        self.size = 0

    def add(self, sequence: S, tokens: TokenArray) -> None:
        """Take in the youngest sequence."""
        self._extend(self._top, sequence, tokens)

    def extend(self, sequence: S, tokens: TokenArray) -> None:
        """Add tokens at the end of a sequence that is here."""
        assert sequence.end is not None
        self._extend(sequence.end, sequence, tokens)

    def computed(self, sequence: S, length: int) -> None:
        """Of a sequence that is here so many leading tokens were computed."""
        step, namespace = sequence.end, sequence.namespace
        # What was computed of a sequence is known of all steps on its way.
        while step is not None and step.parent is not None and step.computed.get(namespace, 0) < length:
            step.computed[namespace] = length
            step = step.parent

    def remove(self, oldest: S) -> None:
        """Forget the oldest sequence of a namespace.

        Only in this order, so that an edge which is no youngest one's of a namespace is nobody's of it.
        """
        step, oldest.end = oldest.end, None
        while step is not None and step.parent is not None:
            parent = step.parent
            if step.latest.get(oldest.namespace) is oldest:
                del step.latest[oldest.namespace]
                step.computed.pop(oldest.namespace, None)
            if not step.latest:
                del parent.children[step.key.item(0)]
                self.size -= len(step.key)
                step.parent = None
            step = parent

    def tokens_of(self, sequence: S) -> TokenArray:
        """All tokens of a sequence that is here."""
        keys = []
        step = sequence.end
        while step is not None:
            keys.append(step.key)
            step = step.parent
        return np.concatenate(keys[::-1]) if keys else _NO_TOKENS

    def find(self, tokens: TokenArray, namespace: NamespaceKey) -> Found[S]:
        """Whose sequences begin as these tokens do."""
        own = other = None
        own_length = own_computed = other_length = at = 0
        step = self._top
        while at < len(tokens):
            child = step.children.get(tokens.item(at))
            if child is None:
                break
            same = common_length(child.key, tokens[at : at + len(child.key)])
            at += same
            mine = child.latest.get(namespace)
            if mine is not None:
                own, own_length = mine, at
                own_computed = max(own_computed, min(at, child.computed.get(namespace, 0)))
            if len(child.latest) > (mine is not None):
                other, other_length = child, at
            if same < len(child.key):
                break
            step = child
        others = [] if other is None else [s for key, s in other.latest.items() if key != namespace]
        youngest = max(others, key=lambda sequence: sequence.order, default=None)
        return Found(own, own_length, own_computed, youngest, other_length)  # type: ignore[arg-type]  # S is what went in

    def _extend(self, step: Step, sequence: S, tokens: TokenArray) -> None:
        at = 0
        while at < len(tokens):
            child = step.children.get(tokens.item(at))
            if child is None:
                child = step.children[tokens.item(at)] = Step(tokens[at:].copy(), step)
                self.size += len(child.key)
            same = common_length(child.key, tokens[at : at + len(child.key)])
            step = child if same == len(child.key) else self._split(child, same)
            at += same
            before = step.latest.get(sequence.namespace)
            if before is None or before.order < sequence.order:
                step.latest[sequence.namespace] = sequence
        sequence.end = step

    def _split(self, step: Step, at: int) -> Step:
        """Put a new step above that takes the first `at` tokens; returns it. Sequences that end here still do."""
        parent = step.parent
        assert parent is not None
        upper = Step(step.key[:at], parent)
        upper.latest = dict(step.latest)
        upper.computed = dict(step.computed)
        parent.children[step.key.item(0)] = upper
        step.key = step.key[at:]
        step.parent = upper
        upper.children[step.key.item(0)] = step
        return upper
