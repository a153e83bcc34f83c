"""Random requests against a naive model of the cache: a plain set of prefixes.

The model knows no nodes. It holds every cached prefix, one a page, as a tuple with the time of its last use, and the
first slot of every page with the prefix whose KV was written there. Least recently used first, longest first among
those last used together, gives the exact set of prefixes that an eviction must leave.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainstem.errors import OutOfSlots
from mainstem.tree import PrefixHandle, RadixCache
from mainstem.tree.node import Node

CAPACITY = 32
NAMESPACES = [(), (1,), ("1",), (True,)]

Prefix = tuple[str, tuple[int, ...]]
"""A namespace, written out with its types, and the tokens."""

NOTHING: Prefix = ("", ())

token_lists = st.lists(st.integers(0, 1), max_size=14)
namespaces = st.sampled_from(NAMESPACES)


def name(namespace: tuple[object, ...]) -> str:
    return repr(namespace)


@dataclass
class Handle:
    """A handle that the cache gave, and what it must stand for."""

    handle: PrefixHandle
    prefix: Prefix
    alive: bool = True


@dataclass
class Request:
    """A running request: its tokens, its slots, and the prefix it has locked."""

    namespace: tuple[object, ...]
    tokens: list[int]
    slots: list[int]
    lock: Handle


class CacheMachine(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([1, 4]))
    def start(self, page_size: int) -> None:
        self.page = page_size
        self.cache = RadixCache(CAPACITY, page_size)
        self.clock = 0
        self.last_used: dict[Prefix, int] = {}
        self.written: dict[int, Prefix] = {}
        self.pins: Counter[Prefix] = Counter()
        self.held: set[int] = set()
        self.handles: list[Handle] = []
        self.requests: list[Request] = []
        self.queries = self.hits = self.query_tokens = self.hit_tokens = self.inserted = self.evicted = 0

    # What the model expects

    def whole_pages(self, n: int) -> int:
        return n - n % self.page

    def prefixes(self, namespace: tuple[object, ...], tokens: list[int], length: int) -> list[Prefix]:
        return [(name(namespace), tuple(tokens[:end])) for end in range(self.page, length + 1, self.page)]

    def cached_length(self, namespace: tuple[object, ...], tokens: list[int]) -> int:
        cached = [prefix in self.last_used for prefix in self.prefixes(namespace, tokens, len(tokens))]
        return self.page * [*cached, False].index(False)

    def locked(self) -> set[Prefix]:
        return {
            (space, tokens[:end])
            for space, tokens in +self.pins
            for end in range(self.page, len(tokens) + 1, self.page)
        }

    def evictable(self, spared: list[Prefix] | None = None) -> set[Prefix]:
        return self.last_used.keys() - self.locked() - set(spared or ())

    def num_free(self) -> int:
        return CAPACITY - self.page * len(self.last_used) - len(self.held)

    def available(self, spared: list[Prefix] | None = None) -> int:
        return self.num_free() + self.page * len(self.evictable(spared))

    def use(self, prefixes: list[Prefix] | set[Prefix]) -> None:
        self.clock += 1
        self.last_used.update(dict.fromkeys(prefixes, self.clock))

    def forget(self, n: int, spared: list[Prefix] | None = None) -> int:
        """Evict `n` tokens, rounded up to a page, from the model; returns how many there were."""
        order = sorted(self.evictable(spared), key=lambda prefix: (self.last_used[prefix], -len(prefix[1])))
        gone = set(order[: -(-n // self.page)])
        for prefix in gone:
            del self.last_used[prefix]
        for handle in self.handles:
            handle.alive = handle.alive and handle.prefix not in gone
        return self.page * len(gone)

    def make_room(self, n: int, spared: list[Prefix] | None = None) -> None:
        if n > self.num_free():
            self.evicted += self.forget(n - self.num_free(), spared)

    def remember(self, handle: PrefixHandle, namespace: tuple[object, ...], tokens: list[int]) -> Handle:
        prefix = (name(namespace), tuple(tokens)) if tokens else NOTHING
        self.handles.append(Handle(handle, prefix))
        return self.handles[-1]

    def release(self, prefix: Prefix) -> None:
        before = self.locked()
        self.pins[prefix] -= 1
        self.use(before - self.locked())

    def expect_content(self, slots: list[int], prefixes: list[Prefix]) -> None:
        """These slots hold the KV of these prefixes."""
        assert [self.written[slot] for slot in slots[:: self.page]] == prefixes

    def write(self, slots: list[int], prefixes: list[Prefix]) -> None:
        """KV is computed into new slots, which nobody may have used until now."""
        assert len(set(slots)) == len(slots)
        assert not self.held.intersection(slots)
        assert not {slot for _, slot in self.walk()}.intersection(slots)
        self.written.update(zip(slots[:: self.page], prefixes, strict=False))

    # What is done to both

    @rule(tokens=token_lists, namespace=namespaces)
    def match(self, tokens: list[int], namespace: tuple[int, ...]) -> None:
        self.do_match(tokens, namespace)

    def do_match(self, tokens: list[int], namespace: tuple[object, ...]) -> tuple[Handle, list[int]]:
        length = self.cached_length(namespace, tokens)
        result = self.cache.match_prefix(tokens, namespace)  # type: ignore[arg-type]
        assert result.length == length
        self.expect_content(result.slots.tolist(), self.prefixes(namespace, tokens, length))
        self.use(self.prefixes(namespace, tokens, length))
        self.queries += 1
        self.hits += length > 0
        self.query_tokens += len(tokens)
        self.hit_tokens += length
        return self.remember(result.handle, namespace, tokens[:length]), result.slots.tolist()

    @rule(tokens=token_lists, namespace=namespaces)
    def peek(self, tokens: list[int], namespace: tuple[int, ...]) -> None:
        length = self.cached_length(namespace, tokens)
        unlocked = self.evictable().intersection(self.prefixes(namespace, tokens, length))
        assert self.cache.peek(tokens, namespace) == (length, self.page * len(unlocked))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.handles))
        if handle.alive:
            self.cache.lock(handle.handle)
            self.pins[handle.prefix] += 1
        else:
            with pytest.raises(ValueError, match="evicted"):
                self.cache.lock(handle.handle)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.handles))
        taken_by_requests = sum(request.lock.prefix == handle.prefix for request in self.requests)
        if handle.alive and self.pins[handle.prefix] > taken_by_requests:
            self.cache.unlock(handle.handle)
            self.release(handle.prefix)
        elif not handle.alive or self.pins[handle.prefix] == 0:
            with pytest.raises(ValueError, match=r"not locked|evicted"):
                self.cache.unlock(handle.handle)

    @rule(tokens=token_lists, namespace=namespaces)
    def insert(self, tokens: list[int], namespace: tuple[int, ...]) -> None:
        length, cached = self.whole_pages(len(tokens)), self.cached_length(namespace, tokens)
        old = self.prefixes(namespace, tokens, cached)
        path = self.prefixes(namespace, tokens, length)
        available = self.available(old)
        if length - cached > available:
            with pytest.raises(OutOfSlots) as raised:
                self.cache.insert(tokens, namespace)
            assert (raised.value.needed, raised.value.available) == (length - cached, available)
            return
        self.make_room(length - cached, old)
        result = self.cache.insert(tokens, namespace)
        assert (result.length, result.num_cached) == (length, cached)
        new = result.slots.tolist()[cached:]
        assert not self.held.intersection(new)
        self.written.update(zip(new[:: self.page], path[len(old) :], strict=True))
        self.expect_content(result.slots.tolist(), path)
        self.inserted += length - cached
        self.use(path)
        self.remember(result.handle, namespace, tokens[:length])

    @rule(tokens=token_lists, namespace=namespaces)
    def begin_request(self, tokens: list[int], namespace: tuple[int, ...]) -> None:
        lock, slots = self.do_match(tokens, namespace)
        self.cache.lock(lock.handle)
        self.pins[lock.prefix] += 1
        missing = len(tokens) - len(slots)
        need = missing + -missing % self.page
        available = self.available()
        if need > available:
            with pytest.raises(OutOfSlots) as raised:
                self.cache.allocate(need)
            assert (raised.value.needed, raised.value.available) == (need, available)
            self.cache.unlock(lock.handle)
            self.release(lock.prefix)
            return
        self.make_room(need)
        new = self.cache.allocate(need, after=slots[-1] if slots else None).tolist()
        assert len(new) == need
        self.write(new, self.prefixes(namespace, tokens, len(tokens))[len(slots) // self.page :])
        self.held.update(new)
        self.requests.append(Request(namespace, tokens, slots + new, lock))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), computed=st.integers(0, 14))
    def finish_request(self, data: st.DataObject, computed: int) -> None:
        """Hand over what was computed, remap to what the cache kept, give the rest back."""
        request = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        done = max(len(request.lock.prefix[1]), min(computed, len(request.tokens)))
        tokens, length = request.tokens[:done], self.whole_pages(done)
        cached = self.cached_length(request.namespace, tokens)
        path = self.prefixes(request.namespace, tokens, length)
        own = np.array(request.slots[:done], dtype=np.int32)
        result = self.cache.insert(tokens, request.namespace, slots=own)  # type: ignore[arg-type]
        assert (result.length, result.num_cached) == (length, cached)
        kept = result.slots.tolist()
        assert kept[cached:] == request.slots[cached:length]
        self.expect_content(kept, path)
        self.held.difference_update(kept)
        self.inserted += length - cached
        self.use(path)
        self.remember(result.handle, request.namespace, tokens[:length])
        mine = [slot for slot in request.slots if slot in self.held]
        self.cache.free(np.array(mine, dtype=np.int32))
        self.held.difference_update(mine)
        self.cache.unlock(request.lock.handle)
        self.release(request.lock.prefix)

    @rule(n=st.integers(0, CAPACITY))
    def evict(self, n: int) -> None:
        freed = self.forget(n)
        assert self.cache.evict(n) == freed
        self.evicted += freed

    @rule()
    def reset(self) -> None:
        dropped = self.forget(CAPACITY)
        assert self.cache.reset() == dropped

    # What must hold at every moment

    def walk(self) -> list[tuple[Prefix, int]]:
        """Every slot of the tree, with the prefix that ends at its token."""
        found: list[tuple[Prefix, int]] = []
        for key, root in self.cache._roots.items():
            space = name(tuple(value for _, value in key))
            pending: list[tuple[Node, tuple[int, ...]]] = [(root, ())]
            while pending:
                node, above = pending.pop()
                tokens = above + tuple(node.key.tolist())
                ends = range(len(above) + 1, len(tokens) + 1)
                found += [((space, tokens[:end]), slot) for end, slot in zip(ends, node.slots.tolist(), strict=True)]
                pending += [(child, tokens) for child in node.children.values()]
        return found

    @invariant()
    def the_tree_holds_the_expected_prefixes_in_the_right_slots(self) -> None:
        self.cache.check_integrity()
        found = self.walk()
        assert len(found) == self.page * len(self.last_used)
        first_slots = {slot + 1 - self.page: prefix for prefix, slot in found if len(prefix[1]) % self.page == 0}
        assert set(first_slots.values()) == self.last_used.keys()
        assert first_slots == {slot: self.written[slot] for slot in first_slots}

    @invariant()
    def the_statistics_agree(self) -> None:
        stats = self.cache.stats()
        locked = self.last_used.keys() & self.locked()
        assert (stats.free, stats.held) == (self.num_free(), len(self.held))
        assert stats.evictable == self.page * len(self.evictable())
        assert stats.protected == self.page * len(locked) + len(self.held)
        assert stats.num_namespaces == len({space for space, _ in self.last_used})
        assert (stats.queries, stats.hits) == (self.queries, self.hits)
        assert (stats.query_tokens, stats.hit_tokens) == (self.query_tokens, self.hit_tokens)
        assert (stats.inserted_tokens, stats.evicted) == (self.inserted, self.evicted)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
