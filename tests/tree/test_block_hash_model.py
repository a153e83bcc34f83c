"""Random requests against a block pool of vLLM's kind, written out literally.

The pool has one queue of free blocks, with keys and without. Its keys are the tokens themselves. The cache must find
the same blocks and give them up in the same order, although it keeps that queue in two parts and numbers its blocks
otherwise; which of its blocks stands for which of the pool's is noted when they are handed out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainstem.pages import SlotArray
from mainstem.tree import BlockHashCache, PrefixHandle, SequenceView

NAMESPACES = [(), (1,), ("1",)]

Key = tuple[str, tuple[int, ...]]


class Pool:
    """Blocks with reference counts in one queue: taken at its head, given back at its tail if they have a key."""

    def __init__(self, num_blocks: int) -> None:
        self.queue = list(range(num_blocks))
        self.references = [0] * num_blocks
        self.key_of: list[Key | None] = [None] * num_blocks
        self.cached: dict[Key, list[int]] = {}

    def find(self, keys: list[Key]) -> list[int]:
        found = []
        for key in keys:
            if key not in self.cached:
                break
            found.append(self.cached[key][0])
        return found

    def take(self, n: int) -> list[int]:
        taken = [self.queue.pop(0) for _ in range(n)]
        for block in taken:
            self.drop_key(block)
            self.references[block] = 1
        return taken

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.references[block] == 0:
                self.queue.remove(block)
            self.references[block] += 1

    def register(self, blocks: list[int], keys: list[Key]) -> None:
        for block, key in zip(blocks, keys, strict=True):
            self.key_of[block] = key
            self.cached.setdefault(key, []).append(block)

    def give_back(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                self.queue.insert(0 if self.key_of[block] is None else len(self.queue), block)

    def drop_key(self, block: int) -> None:
        key = self.key_of[block]
        if key is not None:
            self.key_of[block] = None
            self.cached[key].remove(block)
            if not self.cached[key]:
                del self.cached[key]

    def evictable(self) -> list[int]:
        return [block for block in self.queue if self.key_of[block] is not None]


@dataclass
class Request:
    """A running request: its blocks in the pool, and its slots and lock in the cache."""

    namespace: tuple[int | str, ...]
    tokens: list[int]
    view: SequenceView
    blocks: list[int]
    slots: SlotArray
    handle: PrefixHandle
    registered: int
    computed: int
    withdrawn: bool = False


class PoolMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 12), size=st.integers(1, 3))
    def start(self, num_blocks: int, size: int) -> None:
        self.size = size
        self.cache = BlockHashCache(num_blocks * size, size)
        self.pool = Pool(num_blocks)
        self.block_of: dict[int, int] = {}  # from the pool's blocks to the cache's
        self.requests: list[Request] = []

    def keys(self, namespace: tuple[int | str, ...], tokens: list[int]) -> list[Key]:
        ends = range(self.size, len(tokens) + 1, self.size)
        return [(repr(namespace), tuple(tokens[:end])) for end in ends]

    def note(self, blocks: list[int], slots: SlotArray) -> None:
        self.block_of.update(zip(blocks, (slots[:: self.size] // self.size).tolist(), strict=True))

    def take(self, request: Request, num_blocks: int) -> None:
        """Give a request more blocks, in both."""
        last = int(request.slots[-1]) if len(request.slots) else None
        slots = self.cache.allocate(num_blocks * self.size, after=last)
        blocks = self.pool.take(num_blocks)
        self.note(blocks, slots)
        request.blocks += blocks
        request.slots = np.concatenate([request.slots, slots])

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14), namespace=st.sampled_from(NAMESPACES))
    def admit(self, tokens: list[int], namespace: tuple[int | str, ...]) -> None:
        view = self.cache.view(namespace)
        found = self.pool.find(self.keys(namespace, tokens[:-1]))
        needed = -(-len(tokens) // self.size) - len(found)
        peeked = view.peek(tokens[:-1])
        assert peeked.length == len(found) * self.size
        idle = sum(self.pool.references[block] == 0 for block in found)
        assert peeked.evictable == idle * self.size
        if needed + idle > len(self.pool.queue):
            return
        match = view.match_prefix(tokens[:-1])
        assert match.slots[:: self.size].tolist() == [self.block_of[block] * self.size for block in found]
        self.cache.lock(match.handle)
        self.pool.touch(found)
        request = Request(namespace, tokens, view, found, match.slots, match.handle, len(found), match.length)
        self.take(request, needed)
        self.requests.append(request)

    @rule(data=st.data(), n=st.integers(1, 8))
    @precondition(lambda self: self.requests)
    def schedule(self, data: st.DataObject, n: int) -> None:
        request = data.draw(st.sampled_from(self.requests))
        if request.withdrawn:
            return
        self.register(request, min(request.computed + n, len(request.tokens)))

    def register(self, request: Request, stop: int) -> None:
        keys = self.keys(request.namespace, request.tokens[:stop])
        new = slice(request.registered, len(keys))
        self.pool.register(request.blocks[new], keys[new])
        stored = request.view.insert(request.tokens[:stop], slots=request.slots[:stop])
        assert stored.num_cached == request.registered * self.size
        self.cache.lock(stored.handle)
        self.cache.unlock(request.handle)
        request.handle, request.registered, request.computed = stored.handle, len(keys), stop

    @rule(data=st.data(), token=st.integers(0, 1))
    @precondition(lambda self: self.requests)
    def reply(self, data: st.DataObject, token: int) -> None:
        request = data.draw(st.sampled_from(self.requests))
        if len(request.tokens) == len(request.blocks) * self.size:
            if not self.pool.queue:
                return
            self.take(request, 1)
        request.tokens.append(token)

    @rule(data=st.data())
    @precondition(lambda self: self.requests)
    def fail(self, data: st.DataObject) -> None:
        """What was scheduled after some position is withdrawn; the request goes no further."""
        request = data.draw(st.sampled_from(self.requests))
        length = data.draw(st.integers(0, request.computed))
        self.cache.withdraw(request.handle, length)
        for block in request.blocks[length // self.size : request.registered]:
            self.pool.drop_key(block)
        request.withdrawn = True

    @rule(data=st.data())
    @precondition(lambda self: self.requests)
    def finish(self, data: st.DataObject) -> None:
        request = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        self.cache.free(request.slots[request.registered * self.size :])
        self.cache.unlock(request.handle)
        self.pool.give_back(request.blocks)

    @rule(n=st.integers(0, 20))
    def evict(self, n: int) -> None:
        blocks = self.pool.evictable()[: -(-n // self.size)]
        for block in blocks:
            self.pool.drop_key(block)
        assert self.cache.evict(n) == len(blocks) * self.size

    @rule()
    def reset(self) -> None:
        blocks = self.pool.evictable()
        for block in blocks:
            self.pool.drop_key(block)
        assert self.cache.reset() == len(blocks) * self.size

    @invariant()
    def the_cache_holds_what_the_pool_holds(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.cache.check_integrity()
        queued = [self.block_of[block] for block in self.pool.evictable()]
        assert list(self.cache._idle) == queued
        stats = self.cache.stats()
        assert stats.evictable == len(queued) * self.size
        assert stats.free == (len(self.pool.queue) - len(queued)) * self.size
        assert stats.num_nodes == sum(key is not None for key in self.pool.key_of)

    @invariant()
    def blocks_without_a_key_are_at_the_head_of_the_queue(self) -> None:
        """What lets the cache leave them to the allocator."""
        if hasattr(self, "pool"):
            keyless = [self.pool.key_of[block] is None for block in self.pool.queue]
            assert keyless == sorted(keyless, reverse=True)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
