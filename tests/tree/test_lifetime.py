"""What stays longer and what goes earlier because of what was said of it, or because nobody used it."""

from __future__ import annotations

import random

import pytest

from mainstem.tree import EvictionReason, RadixCache
from mainstem.tree.hints import CacheHints, Keep, Retention
from mainstem.tree.keys import Namespace
from mainstem.tree.node import Node
from mainstem.tree.order import MANY_BRANCHES, SHARED_TTL_FACTOR
from mainstem.tree.sessions import Track
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> RadixCache:
    return RadixCache(100, clock=clock)


def serve(cache: RadixCache, tokens: list[int], space: Namespace = (), **hints: object) -> int:
    """One request; returns how many of its tokens were cached."""
    length = serve_unchecked(cache, tokens, space, **hints)
    cache.check_integrity()
    return length


def serve_unchecked(cache: RadixCache, tokens: list[int], space: Namespace = (), **hints: object) -> int:
    said = CacheHints(**hints)  # type: ignore[arg-type]
    match = cache.match_prefix(tokens, space)
    cache.begin(tokens, space, match, said)
    handle = cache.insert(tokens, space).handle
    cache.end(tokens, space, handle, said)
    return match.length


def keep(length: int, ttl_s: float = 300.0, priority: int = 1) -> tuple[Keep, ...]:
    return (Keep(length, Retention.of(ttl_s, priority)),)


def cached(cache: RadixCache, *conversations: list[int]) -> list[int]:
    return [cache.peek(tokens).length for tokens in conversations]


def test_what_nobody_touched_expires_and_what_was_touched_does_not(cache: RadixCache, clock: Clock) -> None:
    serve(cache, [1, 2, 3])
    serve(cache, [1, 7])
    clock.now = 50.0
    serve(cache, [1, 7])
    clock.now = 70.0
    assert cache.expire(60.0) == 2
    assert cached(cache, [1, 2, 3], [1, 7]) == [1, 2]
    assert cache.evicted_by_reason[EvictionReason.EXPIRED] == 2


def test_a_locked_conversation_does_not_expire(cache: RadixCache, clock: Clock) -> None:
    cache.lock(cache.insert([1, 2, 3]).handle)
    clock.now = 1000.0
    assert cache.expire(60.0) == 0


def test_a_node_that_many_began_at_expires_later(cache: RadixCache, clock: Clock) -> None:
    for last in range(MANY_BRANCHES):
        serve(cache, [1, 2, 3, 10 + last])
    clock.now = 61.0
    assert cache.expire(60.0) == MANY_BRANCHES
    assert cached(cache, [1, 2, 3]) == [3]
    clock.now = SHARED_TTL_FACTOR * 60.0 + 1.0
    assert cache.expire(60.0) == 3


def test_a_sweep_can_be_limited(cache: RadixCache, clock: Clock) -> None:
    serve(cache, list(range(10)))
    clock.now = 100.0
    assert [cache.expire(60.0, limit=4), cache.expire(60.0, limit=4), cache.expire(60.0, limit=4)] == [4, 4, 2]


def test_retained_tokens_outlive_their_time_to_live_and_go_when_theirs_is_over(cache: RadixCache, clock: Clock) -> None:
    serve(cache, [1, 2, 3, 4], keep=keep(2))
    clock.now = 100.0
    assert cache.expire(60.0) == 2
    clock.now = 301.0
    assert cache.expire(60.0) == 2


def test_a_breakpoint_keeps_what_is_before_it(cache: RadixCache) -> None:
    serve(cache, [1, 2, 3, 4], keep=keep(2))
    serve(cache, [5, 6, 7, 8])
    cache.evict(6)
    assert cached(cache, [1, 2, 3, 4], [5, 6, 7, 8]) == [2, 0]


def test_when_too_much_is_retained_the_lower_priority_goes_first(clock: Clock) -> None:
    cache = RadixCache(100, retention_budget=0.05, clock=clock)
    serve(cache, [1, 2, 3, 4], keep=keep(4, priority=0))
    serve(cache, [5, 6, 7, 8], keep=keep(4, priority=2))
    serve(cache, [9, 10])
    cache.evict(4)
    assert cached(cache, [1, 2, 3, 4], [5, 6, 7, 8], [9, 10]) == [0, 4, 2]


@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0])
def test_a_pool_whose_every_request_asks_for_retention_serves_everyone(clock: Clock, budget: float) -> None:
    cache = RadixCache(100, retention_budget=budget, clock=clock)
    rng = random.Random(1)
    for number in range(300):
        clock.now += rng.random()
        tokens = [0, 0, number % 40, *(rng.randrange(3) for _ in range(rng.randrange(1, 60)))]
        serve(cache, tokens, keep=keep(len(tokens), ttl_s=86400.0, priority=2))
        assert cached(cache, tokens) == [len(tokens)]


def test_with_all_retained_the_least_recently_used_go_first(cache: RadixCache) -> None:
    for first in range(10):
        serve(cache, [first] * 10, keep=keep(10))
    serve(cache, [50] * 10, keep=keep(10))
    assert cached(cache, [0] * 10, [1] * 10, [50] * 10) == [0, 10, 10]


def test_who_is_expected_back_is_kept_for_a_while(cache: RadixCache, clock: Clock) -> None:
    serve(cache, [1, 2, 3], session="a", expected_return_s=30.0)
    serve(cache, [4, 5, 6])
    cache.evict(3)
    assert cached(cache, [1, 2, 3], [4, 5, 6]) == [3, 0]
    clock.now = 100.0
    serve(cache, [4, 5, 6])
    cache.evict(3)
    assert cached(cache, [1, 2, 3], [4, 5, 6]) == [0, 3]


def test_what_an_ended_session_alone_has_used_goes_first(cache: RadixCache) -> None:
    serve(cache, [1, 2, 30, 31], session="a")
    serve(cache, [1, 2, 40, 41], session="b", ends_session=True)
    cache.evict(2)
    assert cached(cache, [1, 2, 30, 31], [1, 2, 40, 41]) == [4, 2]
    assert cache.evicted_by_reason[EvictionReason.ENDED] == 2


def test_what_another_session_has_used_too_does_not_go_with_the_end_of_one(cache: RadixCache) -> None:
    serve(cache, [1, 2], session="a")
    serve(cache, [1, 2], session="b", ends_session=True)
    cache.evict(2)
    assert cache.evicted_by_reason[EvictionReason.ENDED] == 0


def test_a_session_can_be_ended_after_its_last_request(cache: RadixCache) -> None:
    serve(cache, [1, 2], session="a")
    serve(cache, [3, 4], session="b")
    assert cache.end_session("b")
    assert not cache.end_session("nobody")
    cache.evict(2)
    assert cached(cache, [1, 2], [3, 4]) == [2, 0]


def test_a_session_that_comes_back_after_its_end_is_as_good_as_others(cache: RadixCache) -> None:
    serve(cache, [1, 2], session="a", ends_session=True)
    serve(cache, [3, 4], session="b")
    serve(cache, [1, 2], session="a")
    cache.evict(2)
    assert cached(cache, [1, 2], [3, 4]) == [2, 0]


def test_a_branch_that_its_session_left_goes_before_live_ones(cache: RadixCache) -> None:
    serve(cache, [9, 9], session="b")
    serve(cache, [1, 2, 3, 4], session="a")
    serve(cache, [1, 2, 7, 8], session="a")
    cache.evict(2)
    assert cached(cache, [9, 9], [1, 2, 3, 4], [1, 2, 7, 8]) == [2, 2, 4]
    assert cache.evicted_by_reason[EvictionReason.SUPERSEDED] == 2


def test_two_requests_of_a_session_at_once_are_two_branches_that_live(cache: RadixCache) -> None:
    hints = CacheHints(session="a")
    for tokens in ([1, 2], [3, 4]):
        cache.begin(tokens, (), cache.match_prefix(tokens), hints)
    for tokens in ([1, 2], [3, 4]):
        cache.end(tokens, (), cache.insert(tokens).handle, hints)
    cache.insert([5, 6])
    cache.evict(2)
    assert cache.evicted_by_reason[EvictionReason.SUPERSEDED] == 0


def rewrite_ends(cache: RadixCache, lost: int, times: int = 10) -> None:
    """Conversations that come back without the last tokens of their first prompt; the cache is empty afterwards."""
    for first in range(times):
        serve(cache, [first, *range(20, 26)], session=str(first))
        serve(cache, [first, *range(20, 26 - lost), 30, 31, 32], session=str(first))
        cache.reset()


def test_the_end_of_a_prompt_that_others_lost_goes_first(cache: RadixCache) -> None:
    rewrite_ends(cache, lost=2)
    serve(cache, [1, 2, 3, 4], session="x")
    serve(cache, [5, 6, 7, 8], session="y")
    cache.evict(4)
    assert cached(cache, [1, 2, 3, 4], [5, 6, 7, 8]) == [2, 2]
    assert cache.evicted_by_reason[EvictionReason.REWRITTEN] == 4


def test_ends_that_were_lost_a_few_times_only_stay(cache: RadixCache) -> None:
    rewrite_ends(cache, lost=2, times=4)
    serve(cache, [1, 2, 3, 4], session="x")
    serve(cache, [5, 6, 7, 8], session="y")
    cache.evict(4)
    assert cached(cache, [1, 2, 3, 4], [5, 6, 7, 8]) == [0, 4]


def test_the_ends_of_another_sources_prompts_stay(cache: RadixCache) -> None:
    rewrite_ends(cache, lost=2)
    serve(cache, [1, 2, 3, 4], session="x", source="other")
    serve(cache, [5, 6, 7, 8], session="y")
    cache.evict(2)
    assert cached(cache, [1, 2, 3, 4], [5, 6, 7, 8]) == [4, 2]


def test_an_end_that_somebody_asked_to_keep_is_not_given_up(cache: RadixCache) -> None:
    rewrite_ends(cache, lost=2)
    serve(cache, [1, 2, 3, 4], session="x", keep=keep(4))
    serve(cache, [5, 6, 7, 8], session="y", expected_return_s=60.0)
    cache.evict(4)
    assert cache.evicted_by_reason[EvictionReason.REWRITTEN] == 0


def test_an_end_that_somebody_uses_right_now_is_not_given_up(cache: RadixCache) -> None:
    rewrite_ends(cache, lost=2)
    handle = cache.insert([1, 2, 3, 4]).handle
    cache.lock(handle)
    serve(cache, [1, 2, 3, 4], session="x")
    cache.unlock(handle)
    cache.evict(2)
    assert cache.evicted_by_reason[EvictionReason.REWRITTEN] == 0


def test_an_end_that_is_used_after_all_is_as_good_as_others(cache: RadixCache) -> None:
    rewrite_ends(cache, lost=2)
    serve(cache, [1, 2, 3, 4], session="x")
    serve(cache, [5, 6, 7, 8], session="y")
    serve(cache, [1, 2, 3, 4, 9, 9, 9, 9], session="x")
    cache.evict(4)
    assert cached(cache, [1, 2, 3, 4, 9, 9, 9, 9], [5, 6, 7, 8]) == [6, 2]


def test_ends_are_kept_again_where_they_would_have_been_used_though_they_were_evicted(cache: RadixCache) -> None:
    rewrite_ends(cache, lost=2)
    for first in range(40, 44):
        serve(cache, [first, 2, 3, 4], session=str(first))
        cache.evict(2)
        assert serve(cache, [first, 2, 3, 4, 5], session=str(first)) == 2
        cache.reset()
    serve(cache, [1, 2, 3, 4], session="x")
    serve(cache, [5, 6, 7, 8], session="y")
    cache.evict(2)
    assert cached(cache, [1, 2, 3, 4], [5, 6, 7, 8]) == [2, 4]


def test_a_session_that_alternates_between_two_prompts_loses_the_end_of_neither(cache: RadixCache) -> None:
    one, other = [1], [2]
    for turn in range(3, 14):
        for prompt in (one, other):
            prompt += [turn] * 2
            assert serve(cache, prompt, session="agent and sub-agent") == max(len(prompt) - 2, 0) - (turn == 3)
    cache.evict(1)
    assert cache.evicted_by_reason[EvictionReason.REWRITTEN] == 0


def test_what_hangs_on_the_doubtful_part_of_a_request_that_ran_beside_others_is_evicted_first(
    cache: RadixCache,
) -> None:
    hints = CacheHints(session="x")
    serve(cache, [1, 2, 3, 4], session="x")
    serve(cache, [1, 5, 6, 7], session="x")  # of 2, 3, 4 it used nothing
    longer, shorter = [1, 5, 8, 8, 9, 9], [1, 5, 8, 8]
    for tokens in (longer, shorter):
        cache.begin(tokens, (), cache.match_prefix(tokens), hints)
        handle = cache.insert(tokens).handle
        cache.insert([1, 5, 8, 8, 2, 2])
        if tokens is shorter:
            cache.end(shorter, (), handle, hints)
    cache.end(longer, (), cache.insert(longer).handle, hints)
    cache.check_integrity()


def test_requests_at_once_teach_nothing_of_ends(cache: RadixCache) -> None:
    hints = CacheHints(session="x")
    for first in range(12):
        prompts = [[first, 20, 21, 22, number] for number in range(3)]
        for tokens in prompts:
            cache.begin(tokens, (), cache.match_prefix(tokens), hints)
        for tokens in prompts:
            cache.end(tokens, (), cache.insert(tokens).handle, hints)
            cache.check_integrity()
        cache.reset()
    serve(cache, [1, 2, 3, 4], session="y")
    cache.evict(1)
    assert cache.evicted_by_reason[EvictionReason.REWRITTEN] == 0


def test_ending_a_session_of_many_branches_again_and_again_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = RadixCache(10_000)
    for number in range(2_000):
        serve_unchecked(cache, [1, number], session="x")
    asked = 0
    is_given_up = cache._order.is_given_up

    def count(node: Node) -> bool:
        nonlocal asked
        asked += 1
        return is_given_up(node)

    monkeypatch.setattr(cache._order, "is_given_up", count)
    for _ in range(100):
        cache.end_session("x")
    assert asked < 20_000
    cache.check_integrity()


def test_another_tenants_sessions_do_not_push_out_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.tree.sessions.MAX_SESSIONS", 10)
    cache = RadixCache(1000, by_tenant=True)
    serve(cache, [1, 2, 3], ("tenant", "a"), session="s")
    for number in range(50):
        serve(cache, [4, number], ("tenant", "b"), session=str(number))
    assert cache.end_session("s", ("tenant", "a"))


def test_what_is_public_is_no_sessions_own_even_if_a_session_computes_it_again() -> None:
    cache = RadixCache(100, by_tenant=True)
    space = ("tenant", "a", "model", "m")
    cache.declare_public([1, 2, 3], ("public", "model", "m"))
    serve(cache, [1, 2, 3, 4], space, session="s", ends_session=True)
    cache.evict(1)
    assert cache.evicted_by_reason[EvictionReason.ENDED] == 1
    cache.evict(1)
    assert cache.evicted_by_reason[EvictionReason.ENDED] == 1


def test_inserting_below_a_prefix_does_not_retain_it_anew(cache: RadixCache, clock: Clock) -> None:
    serve(cache, [1, 2, 3], keep=keep(3, ttl_s=30.0))
    clock.now = 40.0
    cache.insert([1, 2, 4])
    cache.check_integrity()
    assert all(cache._order.retention_of(node) is None for node in cache.path([1, 2, 3]))


def test_what_a_session_brings_after_a_rewrite_counts_as_idle_for_longer(cache: RadixCache, clock: Clock) -> None:
    serve(cache, [1, 2, 3, 4], session="x")
    serve(cache, [8, 9], session="y")
    clock.now = 100.0
    serve(cache, [1, 5, 6, 7], session="x")  # of 2, 3, 4 it used nothing
    cache.evict(3)
    clock.now = 110.0  # as if it had been idle for 40 s
    cache.evict(1)
    assert cached(cache, [1, 5, 6, 7], [8, 9]) == [4, 1]
    clock.now = 140.0  # for 160 s
    cache.evict(3)
    assert cached(cache, [1, 5, 6, 7], [8, 9]) == [1, 1]
    assert cache.evicted_by_reason[EvictionReason.LRU] == 4


def test_where_a_session_ended_is_not_remembered_once_another_has_used_it_and_it_is_gone(cache: RadixCache) -> None:
    serve(cache, [1, 2, 3], session="a")
    serve(cache, [1, 2, 3], session="b")
    cache.evict(3)
    cache.check_integrity()


def test_where_a_session_ended_is_not_its_own_once_it_is_public() -> None:
    cache = RadixCache(100, by_tenant=True, share_after=3)
    hints = CacheHints(session="s")
    for tenant in ("a", "b", "c"):
        space = ("tenant", tenant, "model", "m")
        cache.begin([1, 2, 3], space, cache.match_prefix([1, 2, 3], space), hints)
        cache.end([1, 2, 3], space, cache.insert([1, 2, 3], space).handle, hints)
    serve(cache, [1, 2, 3])
    assert cache.peek([1, 2, 3], ("public", "model", "m")).length == 3


def test_who_is_wrong_about_ends_is_soon_not_believed(cache: RadixCache) -> None:
    # Every conversation comes back at once, although each of its requests says that it will not.
    for turn in range(8):
        for first in range(8):
            serve(cache, [first, *range(20, 21 + turn)], session=str(first), ends_session=True)
    cache.reset()
    serve(cache, [1, 2], session="x")
    serve(cache, [3, 4], session="y", ends_session=True)
    cache.evict(2)
    assert cached(cache, [1, 2], [3, 4]) == [0, 2]


def test_one_sources_errors_do_not_cost_another_its_belief(cache: RadixCache) -> None:
    for turn in range(8):
        for first in range(8):
            serve(cache, [first, *range(20, 21 + turn)], session=str(first), ends_session=True, source="wrong")
    cache.reset()
    serve(cache, [1, 2], session="x", source="right")
    serve(cache, [3, 4], session="y", ends_session=True, source="right")
    cache.evict(2)
    assert cached(cache, [1, 2], [3, 4]) == [2, 0]


def test_a_branch_beside_a_running_request_of_its_session_is_not_left(cache: RadixCache) -> None:
    hints = CacheHints(session="a")
    for tokens in ([1, 2], [3, 4]):
        cache.begin(tokens, (), cache.match_prefix(tokens), hints)
    cache.end([1, 2], (), cache.insert([1, 2]).handle, hints)
    cache.begin([5, 6], (), cache.match_prefix([5, 6]), hints)
    for tokens in ([3, 4], [5, 6]):
        cache.end(tokens, (), cache.insert(tokens).handle, hints)
    cache.evict(2)
    assert cache.evicted_by_reason[EvictionReason.SUPERSEDED] == 0


def test_a_branch_that_was_cut_is_left_as_a_whole_one_is(cache: RadixCache) -> None:
    serve(cache, [1, 2, 3, 4], session="a")
    cache.evict(1)
    serve(cache, [9, 9], session="a")
    cache.evict(3)
    assert cache.evicted_by_reason[EvictionReason.SUPERSEDED] == 3


def test_what_is_left_of_a_session_when_its_end_was_evicted_ends_with_it(cache: RadixCache) -> None:
    serve(cache, [1, 2], session="a")
    serve(cache, [1, 2, 3, 4], session="a")
    cache.evict(2)
    serve(cache, [6, 6], session="b")
    cache.end_session("a")
    cache.evict(2)
    assert cache.evicted_by_reason[EvictionReason.ENDED] == 2


@pytest.mark.parametrize("evicted", [0, 2, 20], ids=["whole", "cut", "evicted"])
def test_who_always_returns_to_branches_is_soon_not_believed_to_have_left_them(cache: RadixCache, evicted: int) -> None:
    """Whatever became of the branch meanwhile."""
    for first in range(8):
        for turn in range(12):
            left = 20 - turn if evicted == 2 else 20  # what was cut off does not come back
            start = 20 if turn % 2 else 50
            serve(cache, [first, *range(start, start + left)], session=str(first))
            if turn and evicted:
                cache.evict(evicted)
        cache.reset()
    serve(cache, [1, 2], session="x")
    serve(cache, [3, 4], session="y")
    serve(cache, [5, 6], session="y")
    cache.evict(2)
    assert cached(cache, [1, 2], [3, 4]) == [0, 2]


@pytest.mark.parametrize("returns_as", ["itself", "nobody"])
def test_a_session_that_is_said_to_be_over_comes_back_whoever_asks(cache: RadixCache, returns_as: str) -> None:
    """Itself, after all it had was evicted; or without its name, while that is there."""
    for round in range(8):
        for first in range(8):
            serve(cache, [first, round], session=f"{first} {round}", ends_session=True)
            if returns_as == "nobody":
                serve(cache, [first, round, 20])
            else:
                cache.reset()
                serve(cache, [first, round, 20], session=f"{first} {round}", ends_session=True)
    cache.reset()
    serve(cache, [1, 2], session="x")
    serve(cache, [3, 4], session="y", ends_session=True)
    cache.evict(2)
    assert cached(cache, [1, 2], [3, 4]) == [0, 2]


def test_ends_that_are_often_wrong_are_believed_where_others_come_back_more_often(cache: RadixCache) -> None:
    for number in range(60):
        for _ in range(3):
            serve(cache, [number, 7], session=str(number))
        serve(cache, [number, 7], session=str(number), ends_session=True)
        if number % 3 == 0:
            serve(cache, [number, 7], session=str(number), ends_session=True)
    cache.reset()
    serve(cache, [1, 2], session="x")
    serve(cache, [3, 4], session="y", ends_session=True)
    cache.evict(2)
    assert cached(cache, [1, 2], [3, 4]) == [2, 0]


def test_what_was_long_ago_counts_little() -> None:
    track = Track(4.0, 2.0)
    for _ in range(1000):
        track.say()
        track.come_back()
    assert track.return_rate > 0.9
    for _ in range(1000):
        track.say()
    assert track.return_rate < 0.1


def test_sessions_and_their_branches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.tree.sessions.MAX_SESSIONS", 5)
    monkeypatch.setattr("mainstem.tree.sessions.MAX_TIPS", 3)
    cache = RadixCache(100)
    for number in range(20):
        serve(cache, [1, number], session="many branches")
        serve(cache, [2, number], session=str(number))
    sessions = cache._sessions._known
    assert len(sessions) == 5
    session = sessions.get(((), "many branches"))
    assert session is not None
    assert len(session.tips) == 3


@pytest.mark.parametrize(("asked", "given"), [(1.0, 30.0), (300.0, 300.0), (301.0, 900.0), (1e9, 86400.0)])
def test_lifetimes_are_rounded_up_to_a_few(asked: float, given: float) -> None:
    assert Retention.of(asked).ttl_s == given


def test_a_request_may_end_after_its_tenants_quota_took_what_it_left() -> None:
    cache = RadixCache(100, by_tenant=True, tenant_quota=0.2)
    tokens, space, hints = list(range(50)), ("tenant", "a"), CacheHints(session="s", ends_session=True, keep=keep(50))
    match = cache.match_prefix(tokens, space)
    cache.begin(tokens, space, match, hints)
    handle = cache.insert(tokens, space, slots=cache.allocate(50, namespace=space)).handle
    cache.lock(handle)
    cache.unlock(handle)
    cache.end(tokens, space, handle, hints)
    cache.check_integrity()
    assert cache.peek(tokens, space).length == 20
