"""Random requests with sessions, retention and idle time, against a plain model of what goes first.

The model knows no nodes and no rings: it holds every cached prefix by itself, with what was said of it, and finds the
next one to go by looking at all of them. Tokens are evicted one at a time, so that each choice is compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainstem.tree import RadixCache, order, sessions
from mainstem.tree.hints import CacheHints, Keep, Retention
from mainstem.tree.interface import PrefixHandle
from mainstem.tree.node import Node

CAPACITY = 24
BUDGET = 0.5
NAMES = ("a", "b")
SEVERAL = "several"

Prefix = tuple[int, ...]
token_lists = st.lists(st.integers(0, 1), min_size=1, max_size=10).map(tuple)
retentions = st.builds(Retention.of, st.sampled_from([30.0, 300.0]), st.integers(0, 2))


@dataclass
class Known:
    """What is known of one prefix."""

    last_used: float
    user: str | None = None
    given_up: int | None = None
    retention: Retention | None = None


@dataclass
class Client:
    """What is known of one session."""

    tips: list[Prefix] = field(default_factory=list)
    latest: Prefix | None = None


class LifetimeMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.patch = pytest.MonkeyPatch()
        # Nodes that many share, and sources that were wrong too often, have tests of their own.
        self.patch.setattr(order, "MANY_BRANCHES", 10**9)
        self.patch.setattr(sessions, "TRUSTED", math.inf)
        self.now = 0.0
        self.last_tick = -math.inf
        self.cache = RadixCache(CAPACITY, retention_budget=BUDGET, clock=lambda: self.now)
        self.known: dict[Prefix, Known] = {}
        self.clients = {name: Client() for name in NAMES}
        self.pins: Counter[Prefix] = Counter()
        self.locks: list[tuple[PrefixHandle, Prefix]] = []
        self.num_given_up = 0

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    # The model

    def tick(self) -> float:
        self.last_tick = max(self.now, math.nextafter(self.last_tick, math.inf))
        return self.last_tick

    @staticmethod
    def path(tokens: Prefix) -> list[Prefix]:
        return [tokens[:end] for end in range(1, len(tokens) + 1)]

    def cached_path(self, tokens: Prefix) -> list[Prefix]:
        return [prefix for prefix in self.path(tokens) if prefix in self.known]

    def children(self, prefix: Prefix) -> list[Prefix]:
        return [(*prefix, token) for token in (0, 1) if (*prefix, token) in self.known]

    def is_locked(self, prefix: Prefix) -> bool:
        return any(pinned[: len(prefix)] == prefix for pinned in +self.pins)

    def retained(self, prefix: Prefix) -> Retention | None:
        known = self.known[prefix]
        if known.retention is None:
            return None
        return known.retention if self.is_locked(prefix) or known.last_used + known.retention.ttl_s > self.now else None

    def use(self, prefixes: Iterable[Prefix]) -> None:
        now = self.tick()
        for prefix in prefixes:
            known = self.known[prefix]
            known.retention = self.retained(prefix)
            known.given_up = None
            known.last_used = now

    def give_up(self, name: str, tip: Prefix) -> None:
        for prefix in reversed(self.cached_path(tip)):
            known = self.known[prefix]
            if known.user != name or self.is_locked(prefix):
                return
            if any(self.known[child].given_up is None for child in self.children(prefix)):
                return
            if known.given_up is None:
                self.num_given_up += 1
                known.given_up, known.retention = self.num_given_up, None

    def finish(self, name: str) -> None:
        for tip in self.clients[name].tips:
            self.give_up(name, tip)

    def retain(self, tokens: Prefix, retention: Retention) -> None:
        path = self.cached_path(tokens)
        self.use(path)
        for prefix in path:
            held = self.retained(prefix)
            self.known[prefix].retention = retention if held is None else retention.joined(held)

    def next_to_go(self) -> Prefix | None:
        """The leaf that is worth least."""
        unlocked = [prefix for prefix in self.known if not self.is_locked(prefix)]

        def age(prefix: Prefix) -> tuple[float, int]:
            return self.known[prefix].last_used, -len(prefix)

        given_up = [prefix for prefix in unlocked if self.known[prefix].given_up is not None]
        if given_up:
            return min(given_up, key=lambda prefix: self.known[prefix].given_up or 0)
        kept = {prefix: retention for prefix in unlocked if (retention := self.retained(prefix)) is not None}
        usual = min((prefix for prefix in unlocked if prefix not in kept), key=age, default=None)
        cheapest = min(kept, key=lambda prefix: (kept[prefix].priority, age(prefix)), default=None)
        if usual is None or cheapest is None:
            return usual or cheapest
        too_much = len(kept) > BUDGET * CAPACITY
        goes = cheapest if too_much and age(cheapest)[0] < age(usual)[0] else usual
        assert not self.children(goes)
        return goes

    def forget(self, prefix: Prefix) -> None:
        """A leaf leaves the model; what ended with it now ends above it."""
        known, above = self.known.pop(prefix), prefix[:-1]
        for name, client in self.clients.items():
            is_own = known.user == name and above in self.known and self.known[above].user == name
            if prefix in client.tips:
                client.tips.remove(prefix)
                if is_own and not self.children(above):
                    client.tips.append(above)
            if client.latest == prefix:
                client.latest = above if is_own else None

    # What is done to both

    @rule(seconds=st.sampled_from([1.0, 20.0, 100.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        tokens=token_lists,
        name=st.sampled_from([None, *NAMES]),
        ends=st.booleans(),
        keeps=st.lists(st.builds(Keep, st.integers(0, 10), retentions), max_size=2).map(tuple),
        returns=st.sampled_from([None, None, 10.0, 100.0]),
    )
    def serve(
        self, tokens: Prefix, name: str | None, ends: bool, keeps: tuple[Keep, ...], returns: float | None
    ) -> None:
        hints = CacheHints(session=name, ends_session=ends and name is not None, keep=keeps, expected_return_s=returns)
        match = self.cache.match_prefix(tokens)
        found = self.cached_path(tokens)
        assert match.length == len(found)
        self.use(found)
        self.cache.begin(tokens, (), match, hints)
        if name is not None:
            client = self.clients[name]
            client.tips = [tip for tip in client.tips if tip not in found]
            if client.latest in client.tips and client.latest is not None:
                self.give_up(name, client.latest)
        self.cache.lock(match.handle)
        self.pins[tokens[: len(found)]] += 1
        missing = len(tokens) - len(found)
        self.evict(missing - self.cache.stats().free)
        fits = missing <= self.cache.stats().free
        if fits:
            handle = self.cache.insert(tokens).handle
            new = self.path(tokens)[len(found) :]
            self.known.update({prefix: Known(self.tick() if index == 0 else 0.0) for index, prefix in enumerate(new)})
            self.use(self.path(tokens))
        self.cache.unlock(match.handle)
        self.unpin(tokens[: len(found)])
        if not fits:
            tokens, handle = tokens[: len(found)], match.handle
        self.cache.end(tokens, (), handle, hints)
        self.end(tokens, hints)

    def end(self, tokens: Prefix, hints: CacheHints) -> None:
        path, name = self.cached_path(tokens), hints.session
        for prefix in reversed(path):
            known = self.known[prefix]
            if known.user in (name or SEVERAL, SEVERAL):
                break
            known.user = name if name is not None and known.user is None else SEVERAL
        if name is not None:
            client = self.clients[name]
            client.latest = tokens or None
            if tokens and self.known[tokens].user == name and tokens not in client.tips:
                client.tips.append(tokens)
            if hints.ends_session:
                self.finish(name)
        for keep in hints.keep:
            self.retain(tokens[: keep.length], keep.retention)
        if hints.expected_return_s is not None and not hints.ends_session:
            self.retain(tokens, Retention.of(2.0 * hints.expected_return_s, priority=0))

    @rule(tokens=token_lists)
    def match_and_lock(self, tokens: Prefix) -> None:
        match = self.cache.match_prefix(tokens)
        found = self.cached_path(tokens)
        self.use(found)
        self.cache.lock(match.handle)
        self.pins[tokens[: len(found)]] += 1
        self.locks.append((match.handle, tokens[: len(found)]))

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        handle, prefix = self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1)))
        self.cache.unlock(handle)
        self.unpin(prefix)

    def unpin(self, pinned: Prefix) -> None:
        now = self.tick()
        self.pins[pinned] -= 1
        for prefix in self.path(pinned):
            if not self.is_locked(prefix):
                self.known[prefix].last_used = now

    @rule(name=st.sampled_from(NAMES))
    def end_session(self, name: str) -> None:
        if self.cache.end_session(name):
            self.finish(name)

    @rule(n=st.integers(1, 12))
    def evict(self, n: int) -> None:
        for _ in range(n):
            goes = self.next_to_go()
            assert self.cache.evict(1) == (goes is not None)
            if goes is None:
                return
            self.forget(goes)
            assert self.cache.peek(goes).length == len(goes) - 1

    @rule(ttl_s=st.sampled_from([10.0, 90.0, 900.0]))
    def expire(self, ttl_s: float) -> None:
        idle = {
            prefix
            for prefix, known in self.known.items()
            if known.last_used <= self.now - ttl_s and not self.is_locked(prefix) and self.retained(prefix) is None
        }
        self.cache.expire(ttl_s)
        gone = self.known.keys() - self.walk()
        assert gone <= idle
        # Of what was given up, some may stay until it is evicted, as it is the first to be.
        assert all(self.known[prefix].given_up is not None for prefix in idle - gone)
        for prefix in sorted(gone, key=len, reverse=True):
            self.forget(prefix)

    # What must hold at every moment

    def walk(self) -> set[Prefix]:
        found: set[Prefix] = set()
        pending: list[tuple[Node, Prefix]] = [(root, ()) for root in self.cache._roots.values()]
        while pending:
            node, above = pending.pop()
            tokens = above + tuple(node.key.tolist())
            found.update(tokens[:end] for end in range(len(above) + 1, len(tokens) + 1))
            pending += [(child, tokens) for child in node.children.values()]
        return found

    @invariant()
    def the_same_is_cached(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check_integrity()
            assert self.walk() == self.known.keys()


TestLifetimeMachine = LifetimeMachine.TestCase
TestLifetimeMachine.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
