"""Random requests with sessions, retention and idle time, against a plain model of what goes first.

The model knows no nodes and no rings: it holds every cached prefix by itself, with what was said of it, and finds the
next one to go by looking at all of them. Tokens are evicted one at a time, so that each choice is compared.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainstem.tree import RadixCache, order, sessions, tails
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
    doubtful: bool = False
    retention: Retention | None = None


@dataclass
class Left:
    """What one request left, of which the first part may still be there."""

    whole: Prefix
    end: Prefix
    found: int
    tail: int = 0

    def lost(self, found: list[Prefix], tokens: Prefix) -> int | None:
        """How many tokens of it are not used by a request that found these prefixes; None if that cannot be known."""
        used = len(common_prefix(self.end, found[-1] if found else ()))
        if used < len(self.end) or self.end == self.whole:
            return len(self.whole) - used
        if len(self.end) + self.tail == len(self.whole):
            goes_on = used == len(found) and tokens[used : used + 1] == self.whole[used : used + 1]
            return 0 if goes_on else self.tail
        return None


@dataclass
class Client:
    """What is known of one session."""

    tips: list[Prefix] = field(default_factory=list)
    prompt: Prefix = ()
    latest: Prefix | None = None
    left: list[Left] = field(default_factory=list)
    found: int = 0
    loses: bool = False
    is_over: bool = False


def common_prefix(one: Prefix, other: Prefix) -> Prefix:
    length = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return one[: min(len(one), len(other)) if length is None else length]


class LifetimeMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.patch = pytest.MonkeyPatch()
        # Nodes that many share, and sources that were wrong too often, have tests of their own.
        self.patch.setattr(order, "MANY_BRANCHES", 10**9)
        self.patch.setattr(sessions, "TRUSTED", math.inf)
        self.patch.setattr(tails, "ENOUGH", 2.0)
        self.patch.setattr(tails, "SURE", 0.5)
        self.patch.setattr(tails, "MEMORY", math.inf)
        self.patch.setattr(tails, "MAX_LEFT", 2)
        self.now = 0.0
        self.last_tick = -math.inf
        self.cache = RadixCache(CAPACITY, retention_budget=BUDGET, clock=lambda: self.now)
        self.known: dict[Prefix, Known] = {}
        self.clients = {name: Client() for name in NAMES}
        self.pins: Counter[Prefix] = Counter()
        self.locks: list[tuple[PrefixHandle, Prefix]] = []
        self.num_given_up = 0
        self.losses: list[int] = []

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
            if known.given_up is not None and known.user in self.clients:
                client = self.clients[known.user]
                client.is_over = client.is_over and prefix not in client.tips
            known.given_up = None
            known.doubtful = False
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
                known.given_up, known.retention, known.doubtful = self.num_given_up, None, False

    def finish(self, name: str) -> None:
        if self.clients[name].is_over:
            return
        self.clients[name].is_over = True
        for tip in self.clients[name].tips:
            self.give_up(name, tip)

    def retain(self, tokens: Prefix, retention: Retention) -> None:
        path = self.cached_path(tokens)
        self.use(path)
        for prefix in path:
            held = self.retained(prefix)
            self.known[prefix].retention = retention if held is None else retention.joined(held)

    def come_back(self, client: Client, tokens: Prefix, found: list[Prefix]) -> None:
        """Compare a request with what the session's latest ones left: with the one of which it uses most."""
        client.found = len(found)
        if not client.left:
            return
        deepest = found[-1] if found else ()
        left = max(reversed(client.left), key=lambda left: len(common_prefix(left.end, deepest)))
        client.left.remove(left)
        lost = left.lost(found, tokens)
        if lost is None:
            return
        brought = max(len(left.whole) - left.tail - left.found, 0)
        client.loses = lost - left.tail > brought / 2
        if not client.loses:
            self.losses.append(lost)

    def expected_loss(self) -> int:
        """The greatest power of two that half of all returns lost."""
        if len(self.losses) < 2:
            return 0
        sure = [size for size in (1, 2, 4, 8) if 2 * sum(lost >= size for lost in self.losses) >= len(self.losses)]
        return max(sure, default=0)

    def leave(self, name: str, client: Client, tokens: Prefix) -> None:
        client.left = [left for left in client.left if left.end != tokens]
        client.left = [*client.left, Left(tokens, tokens, client.found)][-2:]
        if not client.loses:
            return
        for prefix in reversed(self.path(tokens)[client.found :]):
            known = self.known[prefix]
            if known.user != name or self.is_locked(prefix) or len(self.children(prefix)) != (prefix != tokens):
                return
            known.doubtful = known.doubtful or (known.given_up is None and self.retained(prefix) is None)

    def give_up_tail(self, name: str, client: Client, tokens: Prefix) -> None:
        if self.known[tokens].given_up is not None:
            return
        tail: list[Prefix] = []
        for prefix in reversed(self.path(tokens)):
            known = self.known[prefix]
            is_free = known.user == name and not self.is_locked(prefix) and self.retained(prefix) is None
            if len(tail) == self.expected_loss() or not is_free or self.children(prefix) != tail[-1:]:
                break
            tail.append(prefix)
        if not tail:
            return
        client.left[-1].tail = len(tail)
        self.num_given_up += 1
        for prefix in tail:
            self.known[prefix].given_up, self.known[prefix].doubtful = self.num_given_up, False

    def next_to_go(self) -> Prefix | None:
        """The leaf that is worth least."""
        unlocked = [prefix for prefix in self.known if not self.is_locked(prefix)]

        def age(prefix: Prefix) -> tuple[float, bool, int]:
            known = self.known[prefix]
            doubted = max(self.now, known.last_used) - order.DOUBT * max(self.now - known.last_used, 0.0)
            return doubted if known.doubtful else known.last_used, not known.doubtful, -len(prefix)

        given_up = [prefix for prefix in unlocked if self.known[prefix].given_up is not None]
        if given_up:
            return min(given_up, key=lambda prefix: (self.known[prefix].given_up or 0, -len(prefix)))
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
            for left in client.left.copy():
                if left.end == prefix and is_own and all(other.end != above for other in client.left):
                    left.end = above
                elif left.end == prefix:
                    client.left.remove(left)

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
            client.prompt = tokens
            client.is_over = False
            self.come_back(client, tokens, found)
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

    @rule(
        name=st.sampled_from(NAMES), cut=st.sampled_from([0, 1, 1, 2, 3]), more=st.lists(st.integers(0, 1), max_size=4)
    )
    def go_on(self, name: str, cut: int, more: list[int]) -> None:
        """A session comes back, as conversations do: with all but the end of its latest prompt, and more."""
        latest = self.clients[name].prompt
        tokens = (*latest[: max(len(latest) - cut, 0)], *more)[-12:]
        if tokens:
            self.serve(tokens=tokens, name=name, ends=False, keeps=(), returns=None)

    def end(self, tokens: Prefix, hints: CacheHints) -> None:
        path, name = self.cached_path(tokens), hints.session
        for prefix in reversed(path):
            known = self.known[prefix]
            if known.user in (name or SEVERAL, SEVERAL):
                break
            if known.user is not None:
                self.share(self.clients[known.user], prefix)
            known.user = name if name is not None and known.user is None else SEVERAL
        if name is not None:
            client = self.clients[name]
            is_own = bool(tokens) and self.known[tokens].user == name
            client.latest = tokens if is_own else None
            if is_own and tokens not in client.tips:
                client.tips.append(tokens)
            if is_own:
                self.leave(name, client, tokens)
            if hints.ends_session:
                self.finish(name)
        for keep in hints.keep:
            self.retain(tokens[: keep.length], keep.retention)
        if hints.expected_return_s is not None and not hints.ends_session:
            self.retain(tokens, Retention.of(2.0 * hints.expected_return_s, priority=0))
        if name is not None and is_own:
            self.give_up_tail(name, self.clients[name], tokens)

    @staticmethod
    def share(client: Client, prefix: Prefix) -> None:
        """A prefix that a session alone had used is used by somebody else too."""
        client.tips = [tip for tip in client.tips if tip != prefix]
        client.left = [left for left in client.left if left.end != prefix]
        client.latest = None if client.latest == prefix else client.latest

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


@pytest.mark.parametrize("seed", range(12))
def test_conversations_that_go_on(seed: int) -> None:
    """The same machine with longer traffic that is mostly such as agents make."""
    draw = random.Random(seed)
    machine = LifetimeMachine()
    machine.start()
    wants = draw.choice([[0], [0, 1], [1, 1, 2], [0, 1, 2, 3], [0, 0, 5]])  # what is lost of an end
    try:
        for _ in range(400):
            what = draw.choices(
                ["go on", "wait", "serve", "evict", "lock", "unlock", "expire"], [12, 6, 3, 2, 1, 2, 1]
            )[0]
            tokens = tuple(draw.choices([0, 1], k=draw.randint(1, 10)))
            match what:
                case "go on":
                    machine.go_on(draw.choice(NAMES), draw.choice(wants), list(tokens[:4]))
                case "wait":
                    machine.wait(draw.choice([1.0, 5.0, 20.0, 100.0]) * (1.0 + draw.random()))  # never just a ttl
                case "serve":
                    keeps = (Keep(draw.randint(0, 10), Retention.of(30.0, 1)),) if draw.random() < 0.3 else ()
                    name = draw.choice([None, *NAMES])
                    machine.serve(tokens, name, draw.random() < 0.2, keeps, draw.choice([None, None, 10.0]))
                case "evict":
                    machine.evict(draw.randint(1, 6))
                case "lock":
                    machine.match_and_lock(tokens)
                case "unlock" if machine.locks:
                    handle, prefix = machine.locks.pop()
                    machine.cache.unlock(handle)
                    machine.unpin(prefix)
                case "expire":
                    machine.expire(draw.choice([10.0, 90.0, 900.0]))
            machine.the_same_is_cached()
    finally:
        machine.teardown()
