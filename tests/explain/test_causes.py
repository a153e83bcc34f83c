"""What becomes of a prompt's tokens, cause by cause, at the cheapest level: tokens through a scheduler.

The cases are those that other engines' tests and bug reports pin down.
"""

from __future__ import annotations

import sys

import pytest

from mainstem.errors import PromptTooLong
from mainstem.explain import MissCause
from mainstem.explain.recorder import FULL_COMPARISONS
from mainstem.explain.texts import size_of, size_of_places
from mainstem.scheduler import SchedulerOutput
from mainstem.scheduler.upkeep import Upkeep
from mainstem.tokens.conversation import Conversation, Message, Tool, ToolCall
from mainstem.tokens.placed import Places, placed_at
from mainstem.tree import EvictionReason, RadixCache
from tests.explain.talk import Talk, Told

LENGTH = 100


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    """Tokens that no other seed has."""
    return list(range(1000 * seed, 1000 * seed + length))


def stretches(told: Told) -> list[tuple[int, int, str]]:
    return [(miss.start, miss.stop, miss.cause.value) for miss in told.record.misses]


# What is new, and what never is reused


def test_a_prompt_that_nobody_sent_before() -> None:
    assert stretches(Talk().run(prompt(1))) == [(0, LENGTH, "first_seen")]


def test_an_exact_repeat_computes_its_last_token() -> None:
    talk = Talk()
    talk.run(prompt(1))
    assert stretches(talk.run(prompt(1))) == [(99, 100, "rounding")]


@pytest.mark.parametrize(("length", "start"), [(96, 80), (97, 96), (100, 96)])
def test_an_exact_repeat_of_blocks_computes_the_last_one(length: int, start: int) -> None:
    talk = Talk(kind="block-hash", page_size=16)
    talk.run(prompt(1, length))
    assert stretches(talk.run(prompt(1, length))) == [(start, length, "rounding")]


@pytest.mark.parametrize("kind", ["radix", "block-hash"])
def test_a_prompt_that_parts_within_a_page_loses_what_is_before(kind: str) -> None:
    talk = Talk(kind=kind, page_size=16)
    talk.run(prompt(1))
    later = talk.run([*prompt(1, 40), *prompt(2, 30)])
    assert stretches(later) == [(32, 40, "rounding"), (40, 70, "first_seen")]


def test_what_is_cached_is_known_though_its_record_is_forgotten() -> None:
    talk = Talk(records=1)
    talk.run(prompt(1))
    talk.run(prompt(2))
    assert stretches(talk.run(prompt(1))) == [(99, 100, "rounding")]


def test_a_strict_prefix_computes_its_last_token() -> None:
    talk = Talk()
    talk.run(prompt(1))
    assert stretches(talk.run(prompt(1, 30))) == [(29, 30, "rounding")]


def test_the_last_token_of_a_reply_was_never_computed() -> None:
    """A replayed conversation hits the prompt and the reply but one."""
    talk = Talk()
    first = talk.run(prompt(1))
    request = talk.add(prompt(3), reply=5)
    while request.num_generated < 5:
        talk.step()
    history = request.tokens.array.tolist()
    later = talk.run([*history, *prompt(2, 10)])
    assert stretches(later) == [(LENGTH + 4, LENGTH + 15, "first_seen")]
    assert first.record.num_cached == 0


def test_without_a_cache_nothing_is_ever_cached() -> None:
    talk = Talk(kind="none")
    for _ in range(2):
        assert stretches(talk.run(prompt(1))) == [(0, LENGTH, "never_cached")]


# What was cached and is not any more


@pytest.mark.parametrize(("kind", "page_size"), [("radix", 1), ("radix", 4), ("block-hash", 16)])
def test_what_made_room_was_evicted(kind: str, page_size: int) -> None:
    talk = Talk(kind=kind, page_size=page_size, capacity=160)
    first = talk.run(prompt(1))
    talk.run(prompt(2))
    again = talk.run(prompt(1))
    evicted = [miss for miss in again.record.misses if miss.cause is MissCause.EVICTED]
    assert evicted
    assert evicted[-1].stop == (LENGTH - 1) // page_size * page_size
    for miss in evicted:
        assert miss.fate is not None
        assert miss.fate.reason is EvictionReason.LRU
        assert miss.fate.room_for == "r2"
        assert miss.fate.idle_s >= 0
    assert set(again.causes) == {"evicted", "rounding"}
    assert first.causes == {"first_seen": LENGTH}


def test_of_a_prompt_that_was_trimmed_only_the_end_was_evicted() -> None:
    talk = Talk(capacity=160)
    talk.run(prompt(1))
    talk.run(prompt(2, 80))
    again = talk.run(prompt(1))
    assert stretches(again) == [(80, 99, "evicted"), (99, 100, "rounding")]


def test_what_is_evicted_again_and_again_is_told_of_the_last_time() -> None:
    talk = Talk(capacity=160)
    told = [talk.run(prompt(seed)) for seed in (1, 2, 1, 2, 1, 2)]
    for i, each in enumerate(told[2:], 2):
        assert {miss.fate.room_for for miss in each.record.misses if miss.fate is not None} == {f"r{i}"}


def test_what_is_evicted_between_two_steps_makes_room_for_nobody() -> None:
    talk = Talk(capacity=160)
    talk.run(prompt(1))
    talk.run(prompt(2))
    talk.recorder.stepped(SchedulerOutput([], [], []), 0.1)
    Upkeep(talk.cache, high=0.2, low=0.1).run()
    again = talk.run(prompt(2))
    assert again.causes["evicted"]
    assert [miss.fate.room_for for miss in again.record.misses if miss.fate is not None] == [None]


def test_what_nobody_used_for_too_long_expired() -> None:
    talk = Talk()
    talk.run(prompt(1))
    assert isinstance(talk.cache, RadixCache)
    talk.cache.expire(0.0)
    again = talk.run(prompt(1))
    assert again.causes == {"expired": 99, "rounding": 1}
    assert again.record.misses[0].fate is not None
    assert again.record.misses[0].fate.room_for is None


@pytest.mark.parametrize(("kind", "page_size"), [("radix", 1), ("block-hash", 16)])
def test_what_was_reset(kind: str, page_size: int) -> None:
    talk = Talk(kind=kind, page_size=page_size)
    talk.run(prompt(1))
    talk.cache.reset()
    again = talk.run(prompt(1))
    whole = (LENGTH - 1) // page_size * page_size
    assert again.causes == {"reset": whole, "rounding": LENGTH - whole}


def test_a_reset_leaves_what_runs() -> None:
    talk = Talk()
    request = talk.add(prompt(1), reply=5)
    talk.step()
    talk.cache.reset()
    while request.num_generated < 5:
        talk.step()
    assert set(talk.run(prompt(1)).causes) == {"rounding"}


def test_what_came_back_and_what_did_not() -> None:
    """The beginning is cached again, for another conversation; the rest is still gone."""
    talk = Talk()
    talk.run(prompt(1))
    talk.cache.reset()
    talk.run([*prompt(1, 40), *prompt(2, 60)])
    again = talk.run(prompt(1))
    assert stretches(again) == [(40, 99, "reset"), (99, 100, "rounding")]


def test_evicted_below_what_is_still_cached() -> None:
    """At the head, in the middle and at the tail: of three branches of one root, each loses its own."""
    talk = Talk(capacity=1000)
    root = prompt(1, 300)
    branches = [[*root, *prompt(seed, 200)] for seed in (2, 3, 4)]
    for branch in branches:
        talk.run(branch)
    talk.run(prompt(9, 300))  # takes the room of the oldest branch, and half of the next
    lost = [talk.run(branch) for branch in branches]
    assert [told.record.num_cached >= 300 for told in lost] == [True, True, True]
    assert lost[0].causes["evicted"] == 199


# Others


def test_namespaces_are_typed() -> None:
    talk = Talk()
    talk.run(prompt(1), namespace=("bc", "a"))
    other = talk.run(prompt(1), namespace=("c", "ab"))
    assert stretches(other) == [(0, 99, "other_namespace"), (99, 100, "first_seen")]
    assert other.record.misses[0].other == "r1"
    talk.cache.reset()
    assert stretches(talk.run(prompt(1), namespace=("d",))) == [(0, LENGTH, "first_seen")]


@pytest.mark.parametrize("page_size", [1, 16])
def test_what_a_caller_is_told_does_not_depend_on_other_namespaces(page_size: int) -> None:
    """Its prompt parts from one of its own; whether somebody else has it too does not show."""

    def told_to_bob(*, alice: bool) -> list[tuple[int, int, str]]:
        talk = Talk(page_size=page_size)
        talk.run([1, *prompt(1)], namespace=("bob",))
        if alice:
            talk.run([2, *prompt(1)], namespace=("alice",))
        record = talk.run([2, *prompt(1)], namespace=("bob",)).record
        assert (record.misses[0].cause is MissCause.OTHER_NAMESPACE) == alice
        return [(miss.start, miss.stop, miss.cause.value) for miss in record.public_misses]

    assert told_to_bob(alice=True) == told_to_bob(alice=False) == [(0, 1, "first_seen"), (1, LENGTH + 1, "diverged")]


def test_what_diverged_diverged_though_others_have_it() -> None:
    """An operator is told what the caller is told; only what is first seen may be in another namespace."""
    talk = Talk()
    talk.run([1, 2, *prompt(1)], namespace=("bob",))
    talk.run([3, 4, *prompt(1), *prompt(2, 10)], namespace=("alice",))
    record = talk.run([3, 4, *prompt(1), *prompt(2, 10), *prompt(3, 5)], namespace=("bob",)).record
    in_all = [("first_seen", 0, 2), ("diverged", 2, 102), ("first_seen", 102, 117)]
    assert [(miss.cause.value, miss.start, miss.stop) for miss in record.public_misses] == in_all
    assert [(miss.cause.value, miss.start, miss.stop, miss.other) for miss in record.misses] == [
        ("other_namespace", 0, 2, "r2"),
        ("diverged", 2, 102, None),
        ("other_namespace", 102, 112, "r2"),
        ("first_seen", 112, 117, None),
    ]
    assert talk.recorder.counts[MissCause.OTHER_NAMESPACE] == 12


def test_requests_of_equal_prompts_wait_in_the_tree() -> None:
    talk = Talk(budget=40)
    first, second = talk.add(prompt(1)), talk.add(prompt(1))
    while second.num_generated < 1:
        talk.step()
    assert talk.told(first).causes == {"first_seen": LENGTH}
    assert talk.told(second).causes == {}


def test_a_reply_that_is_still_being_written_is_in_flight() -> None:
    talk = Talk()
    first = talk.add(prompt(1), reply=50)
    for _ in range(21):
        talk.step()
    told = talk.run([*first.tokens.array.tolist(), *prompt(2, 10)])
    assert told.record.num_cached == LENGTH
    assert told.record.misses[0].cause is MissCause.IN_FLIGHT
    assert told.record.misses[0].stop == LENGTH + 21


def test_of_two_that_run_the_one_with_more_of_the_tokens_is_told_of() -> None:
    talk = Talk()
    first, second = talk.add(prompt(1), reply=50), talk.add(prompt(1), reply=50)
    for _ in range(21):
        talk.step(lambda each: (500 if each is first and each.num_generated > 2 else 7) + each.num_generated)
    told = talk.run([*second.tokens.array.tolist(), *prompt(2, 10)])
    miss = told.record.misses[0]
    assert (miss.cause, miss.start, miss.stop, miss.other) == (MissCause.IN_FLIGHT, LENGTH, LENGTH + 21, "r2")


def test_what_a_request_computed_before_it_was_preempted_is_known() -> None:
    """Though it never runs again, and the last page of it was not whole."""
    talk = Talk(page_size=16, capacity=128)
    older, younger = talk.add(prompt(1, 40), reply=80), talk.add(prompt(2, 35), reply=80)
    while not younger.num_preemptions:
        talk.step()
    talk.scheduler.finish(younger)
    talk.scheduler.finish(older)
    computed = len(younger.tokens) - 1
    assert computed % 16
    later = talk.run([*younger.tokens.array[:computed].tolist(), *prompt(3, 10)])
    assert stretches(later)[-1] == (computed, computed + 10, "first_seen")


def test_one_that_computed_less_hides_none_that_computed_more() -> None:
    talk = Talk(kind="block-hash", page_size=16, budget=36)
    talk.run(prompt(1, 40))
    aborted = talk.add([*prompt(1, 40), *prompt(2, 30)])
    talk.scheduler.schedule()  # its 32 cached tokens, and none of this step's
    talk.scheduler.rollback()
    talk.scheduler.finish(aborted)
    later = talk.run([*prompt(1, 40), *prompt(3, 30)])
    assert stretches(later) == [(32, 40, "rounding"), (40, 70, "first_seen")]


def test_what_an_aborted_request_computed_is_cached_and_the_rest_is_new() -> None:
    talk = Talk(budget=40)
    request = talk.add(prompt(1))
    talk.step()
    talk.scheduler.finish(request)
    assert stretches(talk.run(prompt(1))) == [(40, 100, "first_seen")]


def test_a_request_that_is_refused_or_aborted_in_the_queue_leaves_no_record() -> None:
    talk = Talk(capacity=160)
    with pytest.raises(PromptTooLong):
        talk.add(prompt(1, 500))
    request = talk.add(prompt(1))
    talk.scheduler.finish(request)
    assert request.record is None
    assert sum(talk.recorder.counts.values()) == 0


# Which earlier request is compared


def test_the_closest_request_and_not_the_last_one() -> None:
    talk = Talk()
    talk.run([1, *prompt(1)])
    talk.run([2, *prompt(2)])
    talk.run([3, *prompt(3)])
    told = talk.run([4, *prompt(1)])
    assert told.record.closest is not None
    assert told.record.closest.id == "r1"
    assert told.causes == {"first_seen": 1, "diverged": LENGTH}


def test_the_closest_request_has_what_was_cached() -> None:
    """Another has more of the tokens, but in other places: it does not say where the cache ends."""
    talk = Talk()
    talk.run(prompt(1), session="s")
    talk.run(prompt(2, 400), session="s")
    closest = talk.run([*prompt(1), *prompt(2, 400)[100:]], session="s").record.closest
    assert closest is not None
    assert (closest.id, closest.common) == ("r1", LENGTH)


@pytest.mark.parametrize("group", ["session", "key"])
def test_the_closest_request_of_ones_session_or_key(group: str) -> None:
    talk = Talk()
    talk.run([1, *prompt(1, 60), *prompt(2)], None, **{group: "mine"})
    talk.run([2, *prompt(1, 60), *prompt(2)], None, **{group: "theirs"})
    told = talk.run([3, *prompt(1, 60), *prompt(2)], None, **{group: "mine"})
    assert told.record.closest is not None
    assert told.record.closest.id == "r1"


def test_other_namespaces_are_never_compared_with() -> None:
    talk = Talk()
    talk.run([1, *prompt(1)], namespace=("a",))
    told = talk.run([2, *prompt(1)], namespace=("b",))
    assert told.record.closest is None
    assert told.causes == {"first_seen": LENGTH + 1}


# Bounds


def test_a_caller_may_ask_for_a_comparison_with_its_own_requests_only() -> None:
    talk = Talk()
    talk.run(prompt(1), namespace=("tenant", "a"))
    for tenant, known in (("a", True), ("b", False)):
        record = talk.run(prompt(2), namespace=("tenant", tenant), compare_with="r1").record
        assert (record.asked is not None) == known


def test_each_prompt_of_a_step_is_charged_its_share_of_the_time() -> None:
    talk = Talk()
    requests = [talk.add(prompt(1, 30)), talk.add(prompt(2, 90))]
    output = talk.scheduler.schedule()
    talk.recorder.stepped(output, 2.0)
    assert [talk.told(request).record.prefill_s for request in requests] == [0.5, 1.5]


def test_records_are_bounded() -> None:
    talk = Talk(records=3)
    for seed in range(1, 7):
        talk.run(prompt(seed), session=str(seed))
    recorder = talk.recorder
    assert [bool(recorder.of(f"r{i}")) for i in range(1, 7)] == [False] * 3 + [True] * 3
    assert recorder._sequences.size == 3 * (LENGTH + 1)
    assert len(recorder._by_group) == 3
    assert {record.id for record in recorder._by_window.values()} == {"r4", "r5", "r6"}
    assert set(recorder._windows) == set(recorder._kept)
    assert talk.run(prompt(6)).causes == {"rounding": 1}
    assert talk.run([0, *prompt(1)]).record.closest is None


def test_one_tenant_cannot_push_out_the_records_of_another() -> None:
    talk = Talk(records=6)
    for seed in (1, 2):
        talk.run(prompt(seed), namespace=("tenant", "a"))
    for seed in range(3, 20):
        talk.run(prompt(seed), namespace=("tenant", "b", "salt", str(seed)))
    assert [bool(talk.recorder.of(f"r{i}")) for i in range(1, 20)] == [True] * 2 + [False] * 13 + [True] * 4
    assert len(talk.recorder._windows) == 6


def test_nor_by_what_its_conversations_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.explain.recorder.MAX_TEXT_BYTES", 100_000)
    talk = Talk()

    def say(seed: int, length: int, tenant: str) -> None:
        conversation = Conversation((Message(role="user", parts=("x" * length,)),))
        talk.run(prompt(seed), namespace=("tenant", tenant), conversation=conversation, session=tenant)

    say(1, 10_000, "a")
    for seed in range(2, 12):
        say(seed, 20_000, "b")
    assert talk.recorder.of("r1")
    assert talk.recorder._texts.size <= 100_000
    # The latest keeps its own text and that of the one before, with which it was compared.
    assert [bool(talk.recorder.of(f"r{i}")) for i in range(2, 12)] == [False] * 8 + [True] * 2


@pytest.mark.parametrize(
    "conversation",
    [
        Conversation((Message(role="user", parts=("é" * 100_000,)),)),
        Conversation((Message(role="assistant", reasoning="x" * 100_000),)),
        Conversation((Message(role="assistant", tool_calls=(ToolCall("1", "f", "x" * 100_000),)),)),
        Conversation((Message(role="user"),), (Tool("f", parameters={"properties": {"a": [{"x": "y" * 100_000}]}}),)),
        Conversation((Message(role="user"),), (Tool("f", "x" * 100_000),)),
        Conversation((Message(role="user"),) * 400),
    ],
)
def test_whatever_a_conversation_consists_of_counts(conversation: Conversation) -> None:
    assert 100_000 <= size_of(conversation) <= 130_000


def test_where_a_conversation_stands_counts_too() -> None:
    message = Message(role="user", parts=("a",) * 100)
    placed = placed_at("input[0]", message)
    places = Places((placed,) * 100)
    deep = sum(sys.getsizeof(path) for path in placed.parts) * 100
    assert deep <= size_of_places(places) <= 1.2 * deep
    talk = Talk()
    record = talk.run(prompt(1), conversation=Conversation((message,) * 100), places=places).record
    assert record.text_bytes == size_of(Conversation((message,) * 100)) + size_of_places(places)


def test_what_was_made_of_a_tool_counts_too() -> None:
    tool = Tool("f", parameters={"properties": {"x": {"description": "y" * 100_000}}})
    bare = size_of(Conversation((), (tool,)))
    tool.definition().as_json()
    assert size_of(Conversation((), (tool,))) >= bare + 100_000
    tool.derived["canonical"] = Tool("f", "x" * 50_000)
    assert size_of(Conversation((), (tool,))) >= bare + 150_000


def keeps_tokens(talk: Talk, name: str) -> bool:
    """Whether a record has the tokens of the request that its caller wanted it to be compared with."""
    (record,) = talk.recorder.of(name)
    assert record.asked is not None
    return record.asked.earlier is not None


def test_one_tenant_cannot_take_what_anothers_difference_is_told_from() -> None:
    talk = Talk(records=1000)
    for tenant in ("a", "b"):
        talk.run(prompt(1), namespace=("tenant", tenant))
    talk.run(prompt(1), namespace=("tenant", "a"), compare_with="r1")
    for _ in range(2 * FULL_COMPARISONS):
        talk.run(prompt(1), namespace=("tenant", "b"), compare_with="r2")
    assert keeps_tokens(talk, "r3")
    assert [keeps_tokens(talk, f"r{i}") for i in range(4, 4 + 2 * FULL_COMPARISONS)].count(True) == FULL_COMPARISONS - 1
    assert keeps_tokens(talk, f"r{3 + 2 * FULL_COMPARISONS}")
