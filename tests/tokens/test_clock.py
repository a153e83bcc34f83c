"""Templates that read the clock see it stand still within a conversation; those that draw random values are refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from mainstem.errors import InvalidRequest, ModelLoadError
from mainstem.tokens import Conversation, Message, Tokenizer, Tool, ToolCall
from mainstem.tokens.clock import TICK, ConversationClock
from mainstem.tokens.rendering import ChatTemplate
from tests.support.tiny_models import save_tiny_tokenizer

START = datetime(2026, 3, 4, 12, 0, 0)
ASKED = Message(role="user", parts=("Where?",))
REPLIED = Message(role="assistant", parts=("There.",))
TODAY = "{{ strftime_now('%Y-%m-%d %H:%M:%S') }}"


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, time: timedelta = 2 * TICK) -> datetime:
        self.now += time
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def talk(*messages: Message, **fields: Any) -> Conversation:
    return Conversation((ASKED, *messages), **fields)


def test_a_conversation_keeps_the_time_of_its_beginning(clock: Clock) -> None:
    times = ConversationClock(clock)
    assert times.time_of(talk()) == START
    messages: list[Message] = []
    for _ in range(3):
        clock.advance(timedelta(days=1))
        messages += [REPLIED, ASKED]
        assert times.time_of(talk(*messages)) == START


def test_a_new_conversation_is_told_the_time_of_its_own_beginning(clock: Clock) -> None:
    times = ConversationClock(clock)
    times.time_of(talk())
    times.time_of(talk(REPLIED, ASKED))
    later = clock.advance()
    assert times.time_of(talk()) == later
    # The same opening, but another reply: the later conversation goes on with its own time, the earlier one too.
    other = replace(REPLIED, parts=("Elsewhere.",))
    clock.advance()
    assert times.time_of(talk(other, ASKED)) == later
    assert times.time_of(talk(REPLIED, ASKED)) == START


def test_conversations_that_begin_within_a_tick_are_told_the_same(clock: Clock) -> None:
    times = ConversationClock(clock)
    times.time_of(talk())
    clock.advance(TICK - timedelta(seconds=1))
    assert times.time_of(Conversation((REPLIED, ASKED))) == START
    clock.advance(timedelta(seconds=1))
    assert times.time_of(Conversation((ASKED, ASKED))) == START + TICK


def test_a_new_day_is_told_at_once(clock: Clock) -> None:
    clock.now = datetime(2026, 3, 4, 23, 59, 59)
    times = ConversationClock(clock)
    assert times.time_of(talk()).day == 4
    clock.advance(timedelta(seconds=2))
    assert times.time_of(talk()).day == 5


def test_a_clock_that_is_set_back_is_followed(clock: Clock) -> None:
    times = ConversationClock(clock)
    times.time_of(talk())
    earlier = clock.advance(-timedelta(hours=1))
    assert times.time_of(talk()) == earlier


def test_a_conversation_that_is_not_known_begins_now(clock: Clock) -> None:
    assert ConversationClock(clock).time_of(talk(REPLIED, ASKED)) == START


def test_a_reply_that_the_client_began_is_no_reply_yet(clock: Clock) -> None:
    times = ConversationClock(clock)
    times.time_of(talk(REPLIED, continues_last=True))
    later = clock.advance()
    assert times.time_of(talk(REPLIED, continues_last=True)) == later


def test_only_so_many_conversations_are_remembered(clock: Clock) -> None:
    times = ConversationClock(clock, capacity=4)
    for number in range(4):
        times.time_of(Conversation((Message(role="user", parts=(str(number),)),)))
    clock.advance()
    first, last = (Conversation((Message(role="user", parts=(name,)), REPLIED, ASKED)) for name in ("0", "3"))
    assert times.time_of(last) == START
    assert times.time_of(first) == clock.now


def test_namespaces_do_not_see_each_others_conversations(clock: Clock) -> None:
    times = ConversationClock(clock)
    times.time_of(talk(namespace=("tenant", "a")))
    clock.advance()
    assert times.time_of(talk(REPLIED, ASKED, namespace=("tenant", "b"))) == clock.now
    assert times.time_of(talk(REPLIED, ASKED, namespace=("tenant", "a"))) == START


def test_ids_and_thoughts_do_not_make_another_conversation(clock: Clock) -> None:
    def reply(call_id: str, reasoning: str | None) -> Message:
        return Message(role="assistant", reasoning=reasoning, tool_calls=(ToolCall(call_id, "f", "{}"),))

    times = ConversationClock(clock)
    times.time_of(talk(reply("1", "hm"), ASKED))
    clock.advance()
    assert times.time_of(talk(reply("2", None), ASKED)) == START


def template(folder: Path, source: str, clock: Clock) -> ChatTemplate:
    save_tiny_tokenizer(folder, chat_template=source)
    return ChatTemplate(PreTrainedTokenizerFast.from_pretrained(folder), speaks_chatml=False, now=clock)


@pytest.mark.parametrize(
    "source",
    [
        TODAY,
        "{% set form = '%Y-%m-%d %H:%M:%S' %}{{ strftime_now(form) }}",
        "{% if strftime_now is defined %}{{ strftime_now(format='%Y-%m-%d %H:%M:%S') }}{% endif %}",
        "{% macro day() %}{{ strftime_now('%Y-%m-%d %H:%M:%S') }}{% endmacro %}{{ day() }}",
        "{% generation %}{{ strftime_now('%Y-%m-%d %H:%M:%S') }}{% endgeneration %}",
    ],
)
def test_a_template_is_shown_the_clock_standing_still(tmp_path: Path, clock: Clock, source: str) -> None:
    chat = template(tmp_path, source, clock)
    before = chat.render(talk())
    clock.advance()
    assert chat.render(talk(REPLIED, ASKED)) == before == "2026-03-04 12:00:00"
    assert chat.render(talk()) == "2026-03-04 12:20:00"


def test_what_the_clock_is_pinned_with_does_not_reach_the_prompt(tmp_path: Path, clock: Clock) -> None:
    source = "\n  {% if true %}\n  {% set t = strftime_now('%Y') %}\n{% endif %}x\n"
    plain = template(tmp_path / "plain", source.replace("strftime_now('%Y')", "1"), clock)
    assert template(tmp_path / "clock", source, clock).render(talk()) == plain.render(talk()) == "\nx"


def test_the_time_can_be_the_key_of_something(tmp_path: Path, clock: Clock) -> None:
    source = "{{ {'Wednesday': 'in the middle'}[strftime_now('%A')] }}"
    assert template(tmp_path, source, clock).render(talk()) == "in the middle"


def test_a_time_that_is_written_in_a_way_that_is_made_up_is_refused(tmp_path: Path, clock: Clock) -> None:
    chat = template(tmp_path, "{{ strftime_now('%' ~ messages[0].content) }}", clock)
    with pytest.raises(InvalidRequest, match="the time cannot be written as %Where"):
        chat.render(talk())


def test_templates_are_given_the_time_and_the_tools_where_they_cannot_do_without(tmp_path: Path, clock: Clock) -> None:
    chat = template(tmp_path, "{{ 'Today is ' + datetime + functions }}", clock)
    text = chat.render(talk(tools=(Tool("look_up"),)))
    assert text.startswith("Today is Mar 04 2026 12:00:00[")
    assert '"look_up"' in text
    clock.advance()
    assert chat.render(talk(REPLIED, ASKED)).startswith("Today is Mar 04 2026 12:00:00")


def test_a_template_that_has_a_date_of_its_own_keeps_it(tmp_path: Path, clock: Clock) -> None:
    source = "{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}{{ date_string }}"
    assert template(tmp_path, source, clock).render(talk()) == "26 Jul 2024"


@pytest.mark.parametrize("source", ["{{ [1, 2] | random }}", "{% if messages[9] %}{{ lipsum() }}{% endif %}"])
def test_a_template_that_draws_random_values_is_refused_at_load(tmp_path: Path, source: str) -> None:
    save_tiny_tokenizer(tmp_path, chat_template=source)
    with pytest.raises(ModelLoadError, match=r"draws random values .*chat_template\.jinja"):
        Tokenizer.load(tmp_path)


def test_a_template_that_is_none_is_told_to_whoever_chats(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save_tiny_tokenizer(tmp_path, chat_template="{% if %}"))
    with pytest.raises(InvalidRequest, match="chat template does not accept"):
        tokenizer.chat.render(talk())
