"""Which part of a request changed, and the class of the change, at the head, in the middle and at the tail."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.diagnosis import Cause, Place, Rendered, compare, compare_rendered, text_prompt
from mainstem.diagnosis.history import _common_beginnings
from mainstem.diagnosis.prompt import Field, Kind, MessagePart, Prompt
from mainstem.tokens import Message, Tool, ToolCall
from tests.diagnosis.conversations import SYSTEM, TOOLS, call, history, prompt, reply, result

NEXT = (call("run", '{"command": "pytest"}'), result("3 passed"))
VOLATILE = [
    ("at 2026-11-30T12:00:01Z", "at 2026-11-30T12:01:09Z", Cause.TIMESTAMP),
    ("2026-11-30", "2026-12-01", Cause.DATE),
    ("run 9f8b1c1e-6a54-4f0e-9f55-0a1d8b7a6c21", "run 0d3f5a7b-1c2d-4e5f-8a9b-7c6d5e4f3a2b", Cause.UUID),
    ("step 4 of 9", "step 5 of 9", Cause.COUNTER),
    ("cwd: /tmp/tmpx81a/repo", "cwd: /tmp/tmpk02b/repo", Cause.PATH),
    ("files:\na.py\nb.py\n", "files:\na.py\nab.py\nb.py\n", Cause.LISTING),
    ("a  b", "a b", Cause.WHITESPACE),
    ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', Cause.KEY_ORDER),
]


def text_changed(index: int, old: str, new: str) -> tuple[Any, Any]:
    """The same history twice with another text in one message, and longer the second time."""

    def told(text: str) -> tuple[Message, ...]:
        messages = list(history())
        messages[index] = replace(messages[index], parts=(f"{messages[index].text}\n{text}\nThat is all.",))
        return tuple(messages)

    return prompt(told(old)), prompt((*told(new), *NEXT))


@pytest.mark.parametrize("index", [0, 3, 5])
@pytest.mark.parametrize(("old", "new", "cause"), VOLATILE)
def test_what_always_changes(index: int, old: str, new: str, cause: Cause) -> None:
    before, after = text_changed(index, old, new)
    found = compare(before, after)
    assert found is not None
    assert (found.cause, found.part) == (cause, f"messages[{index}].content")
    assert found.place is (Place.SYSTEM if index == 0 else Place.MESSAGES)
    assert before.messages[index].text()[: found.offset] == after.messages[index].text()[: found.offset]
    assert found.before != found.after
    assert found.fix
    assert found.anthropic_type == ("system_changed" if index == 0 else "messages_changed")
    assert found.openai_reason == "input_changed"


def test_a_change_is_counted_from_the_beginning_of_its_piece() -> None:
    def sent(text: str) -> Prompt:
        field = Field("content", Kind.TEXT, f"first\n{text}", ((0, "content[0]"), (6, "content[1]")))
        return Prompt(messages=(MessagePart("messages[0]", "user", (field,)),))

    found = compare(sent("run the tests now"), sent("run the tests later"))
    assert found is not None
    assert (found.part, found.offset) == ("content[1]", 14)


@pytest.mark.parametrize(
    ("index", "cause"), [(0, Cause.SYSTEM_EDITED), (1, Cause.HISTORY_EDITED), (3, Cause.HISTORY_EDITED)]
)
def test_an_edit_of_no_special_kind(index: int, cause: Cause) -> None:
    before, after = text_changed(index, "Prefer tabs.", "Prefer spaces.")
    found = compare(before, after)
    assert found is not None
    assert (found.cause, found.part) == (cause, f"messages[{index}].content")
    assert "tabs" in found.before
    assert "spaces" in found.after


def test_a_history_that_grows_has_no_fault() -> None:
    found = compare(prompt(history()), prompt((*history(), *NEXT)))
    assert found is not None
    assert (found.cause, found.part, found.is_fault) == (Cause.APPENDED, "messages[6]", False)
    assert found.openai_reason is None
    assert found.anthropic_type is None


def test_a_reply_that_is_sent_back_has_no_fault() -> None:
    answered = Message(role="assistant", parts=("Done: the split is right now.",))
    found = compare(prompt(history()).with_reply(reply()), prompt((*history(), answered, *NEXT)))
    assert found is not None
    assert found.cause is Cause.APPENDED


def test_the_same_request_or_a_shorter_one_differs_in_nothing() -> None:
    assert compare(prompt(history()), prompt(history())) is None
    assert compare(prompt(history()), prompt(history()[:4])) is None


def test_text_put_after_the_last_message_has_no_fault() -> None:
    longer = (*history()[:-1], Message(role="user", parts=("Go on.\nAnd hurry.",)))
    found = compare(prompt(history()), prompt(longer))
    assert found is not None
    assert found.cause is Cause.APPENDED
    plain = compare(text_prompt("Once upon"), text_prompt("Once upon a time"))
    assert plain is not None
    assert plain.cause is Cause.APPENDED


def test_another_question_on_the_same_history_has_no_fault() -> None:
    other = (*history()[:-1], Message(role="user", parts=("Rather write a poem about the sea.",)))
    found = compare(prompt(history()), prompt(other))
    assert found is not None
    assert found.cause is Cause.BRANCHED


# -- tools -----------------------------------------------------------------------------------------------------------

NEW = Tool("search", "Search.", {"type": "object"})


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_tool_added_or_removed(at: int) -> None:
    more = (*TOOLS[:at], NEW, *TOOLS[at:])
    added = compare(prompt(history()), prompt(history(), more))
    removed = compare(prompt(history(), more), prompt(history()))
    assert added is not None
    assert removed is not None
    assert (added.cause, added.part, added.detail) == (Cause.TOOLS_ADDED, f"tools[{at}].function", "added: search")
    assert (removed.cause, removed.detail) == (Cause.TOOLS_REMOVED, "removed: search")
    assert (added.openai_reason, added.anthropic_type) == ("tools_changed", "tools_changed")


@pytest.mark.parametrize("at", [0, 1])
def test_tools_in_another_order(at: int) -> None:
    swapped = list(TOOLS)
    swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
    found = compare(prompt(history()), prompt(history(), tuple(swapped)))
    assert found is not None
    assert (found.cause, found.part) == (Cause.TOOLS_REORDERED, f"tools[{at}].function")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_tool_whose_schema_has_its_keys_in_another_order(at: int) -> None:
    tools = list(TOOLS)
    parameters = dict(reversed(list((tools[at].parameters or {}).items())))
    tools[at] = replace(tools[at], parameters=parameters)
    found = compare(prompt(history()), prompt(history(), tuple(tools)))
    assert found is not None
    assert (found.cause, found.part) == (Cause.KEY_ORDER, f"tools[{at}].function")
    assert found.openai_reason == "tools_changed"
    assert compare(prompt(history()), prompt(history(), tuple(tools)), canonical_tools=True) is None


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_tool_whose_description_has_the_time_or_changed(at: int) -> None:
    def described(text: str) -> tuple[Tool, ...]:
        return tuple(replace(tool, description=text) if i == at else tool for i, tool in enumerate(TOOLS))

    clock = compare(prompt(history(), described("It is 10:01.")), prompt(history(), described("It is 10:02.")))
    edit = compare(prompt(history()), prompt(history(), described("Something else.")))
    assert clock is not None
    assert edit is not None
    assert (clock.cause, clock.part, clock.offset) == (Cause.TIMESTAMP, f"tools[{at}].function.description", 10)
    assert (edit.cause, edit.part) == (Cause.TOOLS_EDITED, f"tools[{at}].function.description")


def test_the_order_of_a_list_in_a_schema_matters() -> None:
    def needing(*names: str) -> tuple[Tool, ...]:
        return (Tool("read", None, {"type": "object", "required": list(names)}),)

    pair = prompt(history(), needing("a", "b")), prompt(history(), needing("b", "a"))
    found = compare(*pair, canonical_tools=True)
    assert found is not None
    assert (found.cause, found.part) == (Cause.TOOLS_EDITED, "tools[0].function.parameters.required[0]")


# -- history ---------------------------------------------------------------------------------------------------------


def long_history(turns: int = 6) -> tuple[Message, ...]:
    steps = [
        message
        for i in range(turns)
        for message in (call("run", f'{{"command": "step-{i}"}}'), result(f"out {i}" * 40))
    ]
    return (*history()[:2], *steps)


@pytest.mark.parametrize("first", [1, 2])
def test_a_window_that_drops_the_oldest_messages(first: int) -> None:
    said = long_history()
    later = (*said[:first], *said[first + 2 :], *NEXT)
    found = compare(prompt(said), prompt(later))
    assert found is not None
    assert (found.cause, found.part, found.detail) == (
        Cause.HISTORY_WINDOWED,
        f"messages[{first}]",
        "2 messages left out",
    )
    assert (found.openai_reason, found.anthropic_type) == ("context_compacted", "messages_changed")


@pytest.mark.parametrize("sent", [(), NEXT], ids=["as it was", "with a question"])
@pytest.mark.parametrize("first", [1, 2])
def test_a_window_over_a_history_whose_reply_is_not_sent_back(first: int, sent: tuple[Message, ...]) -> None:
    """Nothing but the oldest messages is missing of what was sent."""
    said = long_history()
    found = compare(prompt(said).with_reply(reply()), prompt((*said[:first], *said[first + 2 :], *sent)))
    assert found is not None
    assert (found.cause, found.detail) == (Cause.HISTORY_WINDOWED, "2 messages left out")


def test_a_window_over_a_history_whose_newest_message_changed() -> None:
    said = long_history()
    newest = Message(role="user", parts=("Look at it from the other side.",))
    found = compare(prompt(said).with_reply(reply()), prompt((said[0], *said[3:-1], newest)))
    assert found is not None
    assert (found.cause, found.detail) == (Cause.HISTORY_WINDOWED, "2 messages left out")


def test_a_message_that_comes_again_by_chance_is_no_window() -> None:
    again = Message(role="user", parts=("Go on.",))
    said = (history()[0], call("read", "{}"), result("One."), again, call("run", "{}"))
    found = compare(prompt(said).with_reply(reply()), prompt((history()[0], again, call("write", "{}"))))
    assert found is not None
    assert found.cause is not Cause.HISTORY_WINDOWED


def test_the_reply_is_not_counted_among_the_messages_sent() -> None:
    said = long_history()
    summary = Message(role="user", parts=("Summary: nothing found so far.",))
    found = compare(prompt(said).with_reply(reply()), prompt((*said[:2], summary)))
    assert found is not None
    assert (found.cause, found.detail) == (Cause.HISTORY_ELIDED, f"{len(said) - 2} messages became 1")


@pytest.mark.parametrize("first", [1, 2, 6])
def test_old_messages_that_became_a_summary(first: int) -> None:
    said = long_history()
    summary = Message(role="user", parts=("Summary: nothing found so far.",))
    found = compare(prompt(said), prompt((*said[:first], summary, *said[first + 4 :], *NEXT)))
    assert found is not None
    assert (found.cause, found.part, found.detail) == (
        Cause.HISTORY_ELIDED,
        f"messages[{first}]",
        "4 messages became 1",
    )
    everything = compare(prompt(said), prompt((*said[:first], summary)))
    assert everything is not None
    assert everything.cause is Cause.HISTORY_ELIDED


@pytest.mark.parametrize("index", [3, 7, 13])
@pytest.mark.parametrize("left", ["[old output omitted]", "", "out 1out 1"])
def test_an_old_output_that_was_shortened(index: int, left: str) -> None:
    said = list(long_history())
    said[index] = replace(said[index], parts=(("out 1" * 40) + "!",))
    later = list(said)
    later[index] = replace(said[index], parts=(left,))
    found = compare(prompt(tuple(said)), prompt((*later, *NEXT)))
    assert found is not None
    assert (found.cause, found.part) == (Cause.HISTORY_ELIDED, f"messages[{index}].content")


@pytest.mark.parametrize("index", [1, 5])
def test_a_message_put_into_the_history(index: int) -> None:
    said = history()
    note = Message(role="user", parts=("By the way: be quick.",))
    found = compare(prompt(said), prompt((*said[:index], note, *said[index:], *NEXT)))
    assert found is not None
    assert (found.cause, found.detail) == (Cause.HISTORY_EDITED, "1 message put in")


@pytest.mark.parametrize("index", [4, 6])
def test_reasoning_that_was_left_out(index: int) -> None:
    thinking = Message(role="assistant", parts=("I see.",), reasoning="What could it be?")
    said = (*history()[:index], thinking, *history()[index:])
    later = (*history()[:index], replace(thinking, reasoning=None), *history()[index:], *NEXT)
    found = compare(prompt(said), prompt(later))
    assert found is not None
    assert (found.cause, found.part) == (Cause.REASONING_DROPPED, f"messages[{index}].reasoning_content")


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        ('{"lines": 40, "path": "dates.py"}', Cause.KEY_ORDER),
        ('{"path":"dates.py","lines":40}', Cause.WHITESPACE),
        ('{"path": "times.py", "lines": 40}', Cause.HISTORY_EDITED),
    ],
)
def test_a_call_that_was_written_otherwise(sent: str, cause: Cause) -> None:
    later = list(history())
    later[2] = replace(later[2], tool_calls=(ToolCall("c1", "read", sent),))
    found = compare(prompt(history()), prompt((*later, *NEXT)))
    assert found is not None
    assert (found.cause, found.part) == (cause, "messages[2].tool_calls[0].function.arguments")


# -- the reply -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (Message(role="assistant", parts=("Done: the split is right now. ",)), Cause.WHITESPACE),
        (Message(role="assistant", parts=("Done: the split is right now.",)), Cause.REASONING_DROPPED),
        (
            Message(role="assistant", parts=("Done: the split is right.",), reasoning="Hm."),
            Cause.HISTORY_EDITED,
        ),
    ],
)
def test_a_reply_that_was_sent_back_otherwise(sent: Message, cause: Cause) -> None:
    thought = "Hm." if cause is not Cause.WHITESPACE else None
    found = compare(prompt(history()).with_reply(reply(reasoning=thought)), prompt((*history(), sent, *NEXT)))
    assert found is not None
    assert (found.cause, found.place) == (cause, Place.REPLY)
    assert found.part.startswith("messages[6].")
    assert found.anthropic_type == "messages_changed"


def test_a_reply_that_was_not_used_is_no_fault() -> None:
    for later in (Message(role="user", parts=("Again, please.",)), Message(role="assistant", parts=("No idea!",))):
        found = compare(prompt(history()).with_reply(reply()), prompt((*history(), later)))
        assert found is not None
        assert found.cause is Cause.BRANCHED


# -- what is not in the parts ----------------------------------------------------------------------------------------


def rendered(messages: tuple[Message, ...], text: str = "") -> Rendered:
    parts = prompt(messages)
    return Rendered(parts, text or "".join(f"<{m.role}>{m.text()}\n" for m in parts.messages))


def test_another_model() -> None:
    found = compare(prompt(history(), model="one"), prompt(history(), model="other"))
    assert found is not None
    assert (found.cause, found.openai_reason, found.anthropic_type) == (Cause.MODEL_CHANGED, *["model_changed"] * 2)


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_a_template_that_renders_the_history_otherwise(at: float) -> None:
    before, after = rendered(history()), rendered((*history(), *NEXT))
    cut = int(at * (len(before.text) - 1))
    after = after._replace(text=after.text[:cut] + "~" + after.text[cut:])
    found = compare_rendered(before, after)
    assert found is not None
    assert (found.cause, found.place, found.offset) == (Cause.TEMPLATE, Place.TEMPLATE, cut)


def branches() -> tuple[Rendered, Rendered]:
    """Two conversations that went on from different replies."""
    one, other = (
        rendered((*history()[:4], Message(role="assistant", parts=(said,)), Message(role="user", parts=(asked,))))
        for said, asked in (("It is the clock.", "Which one?"), ("The parser is at fault.", "Then repair it."))
    )
    return one, other


def test_another_reply_that_the_conversation_went_on_from_is_no_fault_of_the_template() -> None:
    found = compare_rendered(*branches())
    assert found is not None
    assert (found.cause, found.part) == (Cause.BRANCHED, "messages[4]")


def test_a_template_that_renders_what_is_before_a_branch_otherwise() -> None:
    before, after = branches()
    found = compare_rendered(before, after._replace(text="~" + after.text))
    assert found is not None
    assert found.cause is Cause.TEMPLATE


def test_a_template_that_drops_reasoning() -> None:
    before, after = rendered(history()), rendered((*history(), *NEXT))
    text = before.text.replace("I think", "<think>Months come before days.</think>I think")
    found = compare_rendered(before._replace(text=text), after)
    assert found is not None
    assert (found.cause, found.part) == (Cause.REASONING_DROPPED, "messages[4].reasoning_content")


def test_a_history_that_grew_in_text_and_parts_has_no_fault() -> None:
    found = compare_rendered(rendered(history()), rendered((*history(), *NEXT)))
    assert found is not None
    assert found.cause is Cause.APPENDED


def test_the_same_text_in_other_tokens() -> None:
    before, after = rendered(history()), rendered((*history(), *NEXT))
    found = compare_rendered(before, after, at=30)
    assert found is not None
    assert (found.cause, found.place, found.offset) == (Cause.RETOKENIZED, Place.TOKENS, 30)


def test_a_token_that_reaches_into_the_new_text_is_not_retokenised() -> None:
    before, after = Rendered(text_prompt("unhappy"), "unhappy"), Rendered(text_prompt("unhappiness"), "unhappiness")
    found = compare_rendered(before, after, at=0)
    assert found is not None
    assert found.cause is Cause.HISTORY_EDITED


def test_the_fault_that_comes_first_in_the_text_is_told() -> None:
    def both(system_first: bool, clock: str, tool: str) -> Rendered:
        said = (Message(role="system", parts=(SYSTEM.format(clock),)), *history()[1:])
        parts = prompt(said, (Tool(tool),))
        head = [parts.messages[0].text(), tool]
        return Rendered(parts, "\n".join(head if system_first else reversed(head)))

    for system_first, place in ((True, Place.SYSTEM), (False, Place.TOOLS)):
        found = compare_rendered(both(system_first, "It is 10:01.", "a"), both(system_first, "It is 10:02.", "b"))
        assert found is not None
        assert found.place is place


# -- properties ------------------------------------------------------------------------------------------------------

TEXTS = st.text(alphabet="ab 1:/-\n{}", max_size=30)
MESSAGES = st.builds(
    lambda role, text, thought: Message(role=role, parts=(text,), reasoning=thought),
    st.sampled_from(["user", "assistant", "tool"]),
    TEXTS,
    st.none() | TEXTS,
)


@given(st.lists(MESSAGES, min_size=1, max_size=6), st.lists(MESSAGES, max_size=4))
def test_appending_is_never_a_fault(said: list[Message], more: list[Message]) -> None:
    found = compare(prompt(tuple(said)), prompt((*said, *more)))
    assert found is None or (found.cause is Cause.APPENDED and found.index == len(said))


@given(st.lists(MESSAGES, min_size=1, max_size=6), st.lists(MESSAGES, min_size=1, max_size=6))
def test_a_difference_is_where_histories_part(one: list[Message], other: list[Message]) -> None:
    before, after = prompt(tuple(one)), prompt(tuple(other))
    found = compare(before, after)
    contents = [message.content for message in before.messages], [message.content for message in after.messages]
    if found is None:
        assert contents[0][: len(contents[1])] == contents[1]
    else:
        assert contents[0][: found.index] == contents[1][: found.index]
        assert contents[0][found.index : found.index + 1] != contents[1][found.index : found.index + 1]


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_beginnings_are_those_that_comparing_one_by_one_finds(pattern: list[int], items: list[int]) -> None:
    def common(start: int) -> int:
        pairs = zip(pattern, items[start:], strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(pattern), len(items) - start))

    assert _common_beginnings(pattern, items) == [common(start) for start in range(len(items))]


def test_long_histories_of_equal_messages_are_compared_in_linear_time() -> None:
    def sent(first: str) -> Prompt:
        return prompt((Message(role="user", parts=(first,)), *[Message(role="user", parts=("again",))] * 10_000))

    began = time.perf_counter()
    found = compare(sent("one"), sent("two"))
    assert time.perf_counter() - began < 8.0  # comparing from each message on takes a minute
    assert found is not None
    assert found.part == "messages[0].content"
