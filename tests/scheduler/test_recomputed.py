"""What counts as computed again, and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from mainstem.scheduler.recomputed import MARK, Recomputed
from mainstem.tree import CacheHints, RadixCache, TokenArray, public_namespace
from tests.clock import Clock

ALICE, BOB = ("tenant", "alice", "model"), ("tenant", "bob", "model")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> RadixCache:
    return RadixCache(1000, by_tenant=True, clock=clock)


@pytest.fixture
def seen(cache: RadixCache) -> Recomputed:
    return Recomputed(cache)


def tokens(first: int, length: int) -> TokenArray:
    return np.arange(first, first + length, dtype=np.int32)


def test_what_was_computed_before_and_is_not_found_counts(seen: Recomputed) -> None:
    seen.remember(tokens(0, 300), ())
    assert seen.look(tokens(0, 300), (), 100) == 4 * MARK - 100
    assert seen.look(tokens(0, 300), (), 290) == 0
    assert seen.total == 4 * MARK - 100


def test_what_is_new_does_not_count(seen: Recomputed) -> None:
    seen.remember(tokens(0, 300), ())
    assert seen.look(tokens(1, 300), (), 0) == 0
    assert seen.look(tokens(0, 300), ("other",), 0) == 0
    assert seen.look(np.concatenate([tokens(0, 130), tokens(500, 300)]), (), 0) == 2 * MARK


def test_after_a_reset_all_is_new(seen: Recomputed) -> None:
    seen.remember(tokens(0, 300), ())
    seen.forget()
    assert seen.look(tokens(0, 300), (), 0) == 0


def test_a_longer_beginning_tells_of_those_that_were_replaced(seen: Recomputed) -> None:
    seen.remember(tokens(0, 300), ())
    entries = np.flatnonzero(seen._table)
    known = seen._table[entries].copy()
    found = []
    for entry, value in zip(entries, known, strict=True):
        seen._table[entry] = 0
        found.append(seen.look(tokens(0, 300), (), 0))
        seen._table[entry] = value
    assert sorted(found) == [3 * MARK, 4 * MARK, 4 * MARK, 4 * MARK]


def test_what_went_to_make_room_counts(cache: RadixCache, seen: Recomputed) -> None:
    cache.insert(tokens(0, 512))
    seen.remember(tokens(0, 512), ())
    cache.evict(512)
    assert seen.look(tokens(0, 512), (), 0) == 512


def test_what_was_idle_too_long_does_not(cache: RadixCache, seen: Recomputed, clock: Clock) -> None:
    cache.insert(tokens(0, 512))
    seen.remember(tokens(0, 512), ())
    clock.now = 10.0
    assert cache.expire(5.0) == 512
    assert seen.look(tokens(0, 512), (), 0) == 0


def test_what_was_evicted_before_the_rest_expired_counts(cache: RadixCache, seen: Recomputed, clock: Clock) -> None:
    cache.insert(tokens(0, 512))
    seen.remember(tokens(0, 512), ())
    cache.evict(212)
    clock.now = 10.0
    assert cache.expire(5.0) == 300
    assert seen.look(tokens(0, 512), (), 0) == 512 - 4 * MARK
    assert seen.look(tokens(0, 512), (), 100) == 512 - 4 * MARK


def test_what_expired_and_is_computed_again_counts_when_it_is_evicted(
    cache: RadixCache, seen: Recomputed, clock: Clock
) -> None:
    for _ in range(2):
        cache.insert(tokens(0, 512))
        seen.remember(tokens(0, 512), ())
        clock.now += 10.0
        cache.expire(5.0)
    cache.insert(tokens(0, 512))
    seen.remember(tokens(0, 512), ())
    cache.evict(512)
    assert seen.look(tokens(0, 512), (), 0) == 512


def test_a_beginning_that_others_share_still_counts(cache: RadixCache, seen: Recomputed, clock: Clock) -> None:
    one, other = tokens(0, 512), np.concatenate([tokens(0, 256), tokens(2000, 256)])
    for branch in (one, other):
        cache.insert(branch)
        seen.remember(branch, ())
        clock.now += 10.0
    assert cache.expire(15.0) == 256
    cache.evict(512)
    assert seen.look(one, (), 0) == 256
    assert seen.look(other, (), 0) == 512


def test_what_a_client_said_is_over_does_not(cache: RadixCache, seen: Recomputed) -> None:
    hints = CacheHints(session="a", ends_session=True)
    cache.begin(tokens(0, 512), (), cache.match_prefix(tokens(0, 512)), hints)
    handle = cache.insert(tokens(0, 512)).handle
    seen.remember(tokens(0, 512), ())
    cache.end(tokens(0, 512), (), handle, hints)
    cache.evict(512)
    assert seen.look(tokens(0, 512), (), 0) == 0


def test_after_a_tenants_reset_all_of_that_tenant_is_new(seen: Recomputed) -> None:
    for tenant in (ALICE, BOB):
        seen.remember(tokens(0, 320), tenant)
    seen.forget(ALICE[:2])
    assert seen.look(tokens(0, 320), ALICE, 0) == 0
    assert seen.look(tokens(0, 320), BOB, 0) == 320
    seen.remember(tokens(0, 320), ALICE)
    assert seen.look(tokens(0, 320), ALICE, 0) == 320


def test_what_is_public_expires_for_all_who_read_it(cache: RadixCache, seen: Recomputed, clock: Clock) -> None:
    cache.declare_public(tokens(0, 320), public_namespace(ALICE))
    for tenant in (ALICE, BOB):
        cache.insert(tokens(0, 320), tenant)
        seen.remember(tokens(0, 320), tenant)
    clock.now = 10.0
    assert cache.expire(5.0) == 320
    assert seen.look(tokens(0, 320), ALICE, 0) == 0
    assert seen.look(tokens(0, 320), BOB, 0) == 0
