"""Tenants: who sees what, and who gives way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainstem.tree import MatchResult, Namespace, RadixCache
from mainstem.tree.hints import CacheHints, Keep, Retention
from mainstem.tree.tenancy import public_namespace

CAPACITY = 60


def of(tenant: str, *salt: str) -> Namespace:
    """A namespace as the server makes them."""
    return ("tenant", tenant, "model", "m", *(("salt", salt[0]) if salt else ()))


PUBLIC = public_namespace(of("anyone"))


def fill(cache: RadixCache, tenant: str, tokens: Any) -> int:
    """Compute what is missing, as a request does; returns how many tokens were cached."""
    return cache.insert(tokens, of(tenant)).num_cached


# -- who sees what ---------------------------------------------------------------------------------------------------


def test_what_is_declared_public_is_computed_once_for_everyone() -> None:
    cache = RadixCache(100, by_tenant=True)
    cache.declare_public([1, 2, 3, 4], PUBLIC)
    assert fill(cache, "a", [1, 2, 3, 4, 5, 6]) == 0
    assert fill(cache, "b", [1, 2, 3, 4, 5, 6]) == 4
    assert fill(cache, "b", [1, 2, 3, 9]) == 3
    assert cache.stats().inserted_tokens == 6 + 2 + 1
    cache.check_integrity()


def test_a_declared_prefix_ends_where_a_prompt_leaves_it() -> None:
    cache = RadixCache(100, by_tenant=True)
    cache.declare_public([1, 2, 3, 4], PUBLIC)
    fill(cache, "a", [1, 2, 9, 9])
    assert cache.peek([1, 2, 9, 9], of("b")).length == 2
    assert cache.peek([1, 2, 9, 9], of("a")).length == 4


def test_a_salt_opens_and_sees_nothing_public() -> None:
    cache = RadixCache(100, by_tenant=True)
    cache.declare_public([1, 2, 3], PUBLIC)
    cache.insert([1, 2, 3], of("a", "x"))
    assert cache.peek([1, 2, 3], of("b")).length == 0
    fill(cache, "b", [1, 2, 3])
    assert cache.peek([1, 2, 3], of("a", "y")).length == 0


def test_another_model_shares_nothing() -> None:
    cache = RadixCache(100, by_tenant=True)
    cache.declare_public([1, 2, 3], PUBLIC)
    fill(cache, "a", [1, 2, 3])
    assert cache.peek([1, 2, 3], ("tenant", "a", "model", "other")).length == 0


def test_what_a_tenant_had_before_is_still_its_own() -> None:
    cache = RadixCache(100, by_tenant=True)
    fill(cache, "a", [1, 2, 3, 4, 5])
    cache.declare_public([1, 2, 3], PUBLIC)
    fill(cache, "b", [1, 2, 3, 7])
    assert cache.peek([1, 2, 3, 4, 5], of("a")).length == 5
    assert cache.peek([1, 2, 3, 7], of("a")).length == 3
    cache.check_integrity()


def test_a_prefix_is_public_once_enough_tenants_have_produced_it_token_by_token() -> None:
    cache = RadixCache(100, by_tenant=True, share_after=3)
    fill(cache, "a", [1, 2, 3, 4, 10])
    fill(cache, "b", [1, 2, 3, 5, 11])
    assert cache.peek([1, 2, 3, 4], of("d")).length == 0
    fill(cache, "c", [1, 2, 3, 4, 12])
    assert cache.peek([1, 2, 3, 4], of("d")).length == 3, "only two tenants have produced the fourth token"
    cache.check_integrity()
    for tenant, tokens in (("a", [1, 2, 3, 4, 10]), ("b", [1, 2, 3, 5, 11]), ("c", [1, 2, 3, 4, 12])):
        assert cache.peek(tokens, of(tenant)).length == 5
    fill(cache, "d", [1, 2, 3, 4, 13])
    assert cache.peek([1, 2, 3, 4], of("e")).length == 4
    cache.check_integrity()


def test_one_tenant_is_one_however_often_it_asks_and_whatever_its_salts() -> None:
    cache = RadixCache(100, by_tenant=True, share_after=3)
    for _ in range(5):
        fill(cache, "a", [1, 2, 3])
        cache.reset()
        fill(cache, "a", [1, 2, 3, 4])
    for salt in "xyz":
        cache.insert([1, 2, 3], of("b", salt))
    fill(cache, "c", [1, 2, 3])
    assert cache.peek([1, 2, 3], of("d")).length == 0


def test_a_prefix_can_be_made_public_while_it_is_locked_and_its_handles_stay_good() -> None:
    cache = RadixCache(100, by_tenant=True, share_after=3)
    fill(cache, "a", [1, 2, 3, 4])
    fill(cache, "b", [1, 2, 3, 5])
    before = cache.insert([1, 2], of("c"))
    cache.lock(before.handle)
    after = cache.insert([1, 2, 3, 6], of("c"))
    cache.lock(after.handle)
    assert cache.peek([1, 2, 3], of("d")).length == 3
    cache.check_integrity()
    assert cache.evict(100) == 8
    cache.unlock(before.handle)
    assert cache.peek([1, 2, 3, 6], of("c")).length == 4
    cache.unlock(after.handle)
    cache.check_integrity()
    assert cache.evict(100) == 4


class Isolation(RuleBasedStateMachine):
    """Random traffic of several tenants: whatever happens, nobody finds what is neither theirs nor public."""

    names = st.sampled_from(["a", "b", "c", "d"])
    salts = st.sampled_from([(), (), (), ("x",)])
    sequences = st.lists(st.integers(0, 2), min_size=1, max_size=14)

    @initialize(share_after=st.sampled_from([0, 3]), page_size=st.sampled_from([1, 2]), quota=st.sampled_from([0.4, 1]))
    def start(self, share_after: int, page_size: int, quota: float) -> None:
        self.share_after = share_after
        self.cache = RadixCache(
            CAPACITY, page_size, by_tenant=True, share_after=share_after, tenant_quota=quota, retention_budget=0.5
        )
        self.produced: dict[tuple[str, tuple[str, ...]], set[tuple[int, ...]]] = {}
        self.declared: set[tuple[int, ...]] = set()
        self.holds: dict[int, tuple[int, ...]] = {}  # the prefix whose last token's KV each slot holds
        self.locked: list[MatchResult] = []

    def may_see(self, tenant: str, salt: tuple[str, ...], prefix: tuple[int, ...]) -> bool:
        """Whether a prefix is the tenant's own, declared, or was produced by enough."""
        if not prefix or self.was_produced(tenant, salt, prefix):
            return True
        if salt:
            return False
        if any(declared[: len(prefix)] == prefix for declared in self.declared):
            return True
        producers = {name for name in "abcd" if self.was_produced(name, (), prefix)}
        return bool(self.share_after) and len(producers) >= self.share_after

    def was_produced(self, tenant: str, salt: tuple[str, ...], prefix: tuple[int, ...]) -> bool:
        return any(tokens[: len(prefix)] == prefix for tokens in self.produced.get((tenant, salt), ()))

    @rule(tenant=names, salt=salts, tokens=sequences, keep=st.booleans(), lock=st.booleans())
    def run_a_request(self, tenant: str, salt: tuple[str, ...], tokens: list[int], keep: bool, lock: bool) -> None:
        namespace = of(tenant, *salt)
        found = self.cache.match_prefix(tokens, namespace)
        prefix = tuple(tokens[: found.length])
        assert self.may_see(tenant, salt, prefix), f"{tenant} {salt} found {prefix}"
        self.check_slots(tokens, found.slots)
        self.cache.lock(found.handle)
        missing = len(tokens) - len(tokens) % self.cache.page_size - found.length
        if missing and self.cache.stats().free + self.cache.stats().evictable >= missing:
            slots = np.concatenate([found.slots, self.cache.allocate(missing)])
            whole = tokens[: len(slots)]
            stored = self.cache.insert(whole, namespace, slots=slots)
            for at in range(found.length, len(whole)):
                self.holds[int(slots[at])] = tuple(whole[: at + 1])
            self.produced.setdefault((tenant, salt), set()).add(tuple(whole))
            self.check_slots(whole, stored.slots)
            spare = slots[found.length : stored.num_cached]
            if len(spare):
                self.cache.free(spare[spare != stored.slots[found.length : stored.num_cached]])
            self.cache.lock(stored.handle)
            self.cache.unlock(found.handle)
            found = MatchResult(stored.length, stored.slots, stored.handle)
        if lock and len(self.locked) < 3:
            self.locked.append(found)
        else:
            hints = CacheHints(keep=(Keep(found.length, Retention.of(60)),) if keep else ())
            self.cache.end(tokens[: found.length], namespace, found.handle if found.length else None, hints)
            self.cache.unlock(found.handle)

    @precondition(lambda self: self.locked)
    @rule()
    def finish_one(self) -> None:
        self.cache.unlock(self.locked.pop(0).handle)

    @rule(tokens=sequences)
    def declare(self, tokens: list[int]) -> None:
        self.declared.add(tuple(tokens))
        self.cache.declare_public(tokens, PUBLIC)

    @rule(n=st.integers(0, 20))
    def evict(self, n: int) -> None:
        evictable = self.cache.stats().evictable
        assert self.cache.evict(n) >= min(n, evictable)

    @rule(tenant=names)
    def reset_one(self, tenant: str) -> None:
        self.cache.reset_tenant(of(tenant))

    def check_slots(self, tokens: list[int], slots: Any) -> None:
        for at, slot in enumerate(slots.tolist()):
            assert self.holds[slot] == tuple(tokens[: at + 1]), "a slot holds the KV of other tokens"

    @invariant()
    def is_whole(self) -> None:
        self.cache.check_integrity()


TestIsolation = Isolation.TestCase
TestIsolation.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# -- who gives way ---------------------------------------------------------------------------------------------------


def flood(cache: RadixCache, tenant: str, times: int, length: int = 10) -> None:
    """Prompts that have nothing in common."""
    for i in range(times):
        fill(cache, tenant, [1000 + i, *range(1, length)])


def test_a_flood_does_not_evict_what_others_hold_of_their_share() -> None:
    cache = RadixCache(100, by_tenant=True)
    fill(cache, "b", range(40))
    flood(cache, "a", 50)
    assert cache.peek(range(40), of("b")).length == 40
    cache.check_integrity()


def test_without_tenants_the_same_flood_evicts_everything() -> None:
    cache = RadixCache(100)
    fill(cache, "b", range(40))
    flood(cache, "a", 50)
    assert cache.peek(range(40), of("b")).length == 0


def test_who_holds_more_than_a_share_gives_way_to_one_who_holds_less() -> None:
    cache = RadixCache(100, by_tenant=True)
    flood(cache, "a", 10)
    flood(cache, "b", 20)
    assert cache.tokens_by_tenant() == {("tenant", "a"): 50, ("tenant", "b"): 50}


def test_nobody_gains_by_many_salts() -> None:
    cache = RadixCache(100, by_tenant=True)
    flood(cache, "a", 10)
    for i in range(50):
        cache.insert([i, *range(1, 10)], of("b", f"salt {i}"))
    assert cache.tokens_by_tenant() == {("tenant", "a"): 50, ("tenant", "b"): 50}


def test_a_lonely_tenant_may_fill_the_pool() -> None:
    cache = RadixCache(100, by_tenant=True)
    flood(cache, "a", 30)
    assert cache.tokens_by_tenant() == {("tenant", "a"): 100}


def test_what_is_public_does_not_give_way_to_a_flood() -> None:
    cache = RadixCache(100, by_tenant=True)
    cache.declare_public(range(500, 530), PUBLIC)
    fill(cache, "b", [*range(500, 530), 1, 2])
    flood(cache, "a", 50)
    assert cache.peek([*range(500, 530), 1, 2], of("b")).length == 32
    assert cache.peek(range(500, 530), of("c")).length == 30


def test_a_declared_prefix_goes_for_room_when_nobody_holds_more_and_is_shared_again_after() -> None:
    cache = RadixCache(20, by_tenant=True)
    declared = list(range(15))
    cache.declare_public(declared, PUBLIC)
    cache.insert(declared, PUBLIC)
    fill(cache, "a", range(100, 110))
    assert cache.peek(declared, of("b")).length == 10
    fill(cache, "a", declared)
    assert cache.peek(declared, of("b")).length == 15


def test_a_declared_prefix_expires_unless_somebody_uses_it() -> None:
    now = 0.0
    cache = RadixCache(100, by_tenant=True, clock=lambda: now)
    cache.declare_public([1, 2, 3, 4], PUBLIC)
    cache.insert([1, 2, 3, 4], PUBLIC)
    now = 8.0
    fill(cache, "a", [1, 2, 3, 4, 5])
    now = 16.0
    assert cache.expire(10.0) == 0
    now = 20.0
    assert cache.expire(10.0) == 5
    fill(cache, "a", [1, 2, 3, 4])
    assert cache.peek([1, 2, 3, 4], of("b")).length == 4


def test_tokens_below_a_public_prefix_are_their_tenants() -> None:
    cache = RadixCache(200, by_tenant=True)
    cache.declare_public(range(500, 530), PUBLIC)
    fill(cache, "b", [*range(500, 530), 1, 2])
    for i in range(100):
        fill(cache, "a", [*range(500, 530), 600 + i, *range(1, 9)])
    assert cache.peek([*range(500, 530), 1, 2], of("b")).length == 32
    cache.check_integrity()


def test_a_quota_bounds_what_a_tenant_holds_and_spares_the_prompt_that_is_used() -> None:
    cache = RadixCache(100, by_tenant=True, tenant_quota=0.25)
    flood(cache, "a", 10)
    assert cache.tokens_by_tenant()["tenant", "a"] == 25
    assert cache.peek([1009, *range(1, 10)], of("a")).length == 10
    long = cache.insert(range(60), of("a"))
    cache.lock(long.handle)
    assert cache.tokens_by_tenant()["tenant", "a"] == 60, "what runs is not evicted"
    cache.unlock(long.handle)
    assert cache.tokens_by_tenant()["tenant", "a"] == 25
    cache.check_integrity()


def test_a_tenant_can_be_reset_alone() -> None:
    cache = RadixCache(100, by_tenant=True)
    cache.declare_public([1, 2], PUBLIC)
    fill(cache, "a", [1, 2, 3, 4])
    cache.insert([5, 6], of("a", "x"))
    fill(cache, "b", [1, 2, 3, 4])
    assert cache.reset_tenant(of("a")) == 4
    assert cache.peek([1, 2, 3, 4], of("b")).length == 4
    assert cache.peek([1, 2, 3, 4], of("a")).length == 2


@pytest.mark.parametrize("by_tenant", [False, True])
def test_retention_of_one_tenant_does_not_evict_another(by_tenant: bool) -> None:
    cache = RadixCache(100, by_tenant=by_tenant, retention_budget=1.0)
    fill(cache, "b", range(30))
    for i in range(30):
        tokens = [1000 + i, *range(1, 10)]
        stored = cache.insert(tokens, of("a"))
        cache.end(tokens, of("a"), stored.handle, CacheHints(keep=(Keep(10, Retention.of(3600)),)))
    assert (cache.peek(range(30), of("b")).length == 30) is by_tenant
