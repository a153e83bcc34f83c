"""Rendering: the text is that of `transformers`, also where it goes on from an earlier prompt."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mainstem.errors import InvalidRequest
from mainstem.tokens import Conversation, Message, Tool, ToolCall
from mainstem.tokens.program import program
from mainstem.tokens.rendering import ChatTemplate
from mainstem.tokens.resuming import Rendered, render
from mainstem.tokens.templates import CHATML_WITH_TOOLS
from tests.support.tiny_models import save_tiny_tokenizer

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "chat-templates"
KNOWN = sorted(FOLDER.rglob("*.jinja"))
# Templates that take none of the conversations here.
REFUSING = {"CohereForAI-c4ai-command-r-plus-tool_use"}
MOMENT = datetime(2026, 3, 4, 12, 0, 0)
TOOL = Tool("look_up", "Finds <things>.", {"type": "object", "properties": {"where": {"type": "string"}}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def chat_of(folder: Path, source: str) -> ChatTemplate:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = source
    return ChatTemplate(tokenizer, speaks_chatml=False)


def as_transformers(chat: ChatTemplate, conversation: Conversation) -> str | None:
    """The text by `apply_chat_template`; None if the template refuses the conversation."""
    uses_tools = bool(conversation.tools) or any(message.tool_calls for message in conversation.messages)
    template = chat._template_for(uses_tools=uses_tools)
    as_objects = uses_tools and chat._arguments_as_objects
    messages = [chat._as_template_sees(m, template, as_objects=as_objects) for m in conversation.messages]
    tools = chat.offered(conversation.tools)
    try:
        return chat._apply(template, messages, tools, add_generation_prompt=True, at=MOMENT)
    except Exception:  # a template refuses in its own way
        return None


def by_mainstem(chat: ChatTemplate, conversation: Conversation) -> str | None:
    try:
        return chat.render(conversation, at=MOMENT)
    except InvalidRequest:
        return None


def grown(rng: random.Random, messages: list[Message], turns: int, *, tools: bool) -> None:
    """Append so many turns."""
    for _ in range(turns):
        number = len(messages)
        messages.append(Message(role="user", parts=(f"question {number} <{rng.random()}>",)))
        for _ in range(rng.randrange(3) if tools else 0):
            call = ToolCall(f"call{len(messages):05}", "look_up", f'{{"where": "ü {rng.random()}", "n": [1, true]}}')
            thought = rng.choice([None, "a thought"])
            messages.append(Message(role="assistant", parts=("so",), reasoning=thought, tool_calls=(call,)))
            messages.append(Message(role="tool", parts=("found",), tool_call_id=call.id, name="look_up"))
        messages.append(Message(role="assistant", parts=(f" reply {number}\n",), reasoning=rng.choice([None, "hm"])))


def conversations(seed: int, *, tools: bool) -> list[Conversation]:
    """One that grows, one message more at a time, and branches of it that change or drop what was said."""
    rng = random.Random(seed)
    messages: list[Message] = [Message(role="system", parts=("instructions",))] if seed % 3 else []
    grown(rng, messages, 4, tools=tools)
    offered = (TOOL,) if tools else ()
    found = []
    for stop in range(1, len(messages) + 1):
        found.append(Conversation(tuple(messages[:stop]), offered))
        if rng.random() < 0.3:
            changed = list(messages[:stop])
            at = rng.randrange(stop)
            changed[at] = replace(changed[at], parts=("changed",))
            found.append(Conversation(tuple(changed[: rng.randint(at + 1, stop)]), offered))
    return found


@pytest.mark.skipif(not KNOWN, reason="needs the templates in ../shared/data/chat-templates")
@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_known_templates_write_what_transformers_makes_of_them(folder: Path, path: Path) -> None:
    chat = chat_of(folder, path.read_text(encoding="utf-8"))
    accepted = 0
    for tools in (False, True):
        for seed in range(2):
            for conversation in conversations(seed, tools=tools):
                expected = as_transformers(chat, conversation)
                assert by_mainstem(chat, conversation) == expected
                accepted += expected is not None
    assert accepted > 0 or path.stem in REFUSING


# -- which templates take up new messages only -------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "templates.md"


class Counted(list[Any]):
    """Messages that count how many of them are taken, each time."""

    taken = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Counted.taken += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self) -> Iterator[Any]:
        Counted.taken += len(self)
        return super().__iter__()


def talk(turns: int, *, calls: bool, system: bool) -> tuple[Message, ...]:
    """A conversation of so many turns."""
    said = [Message(role="system", parts=("instructions",))] if system else []
    said.append(Message(role="user", parts=("question",)))
    for i in range(turns):
        if calls:
            call = ToolCall(f"call{i:05}", "look_up", '{"where": "x"}')
            said.append(Message(role="assistant", tool_calls=(call,)))
            said.append(Message(role="tool", parts=("found",), tool_call_id=call.id, name="look_up"))
        else:
            said += [Message(role="assistant", parts=("reply",)), Message(role="user", parts=("question",))]
    return tuple(said)


def taken_at_the_last_turn(chat: ChatTemplate, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> int | None:
    """How many messages a template takes up at the last turn of a conversation; None if it refuses it."""
    try:
        chat.render(Conversation(messages[:-2], tools), at=MOMENT)
        Counted.taken = 0
        chat.render(Conversation(messages, tools), at=MOMENT)
    except InvalidRequest:
        return None
    return Counted.taken


def takes_only_new(folder: Path, source: str) -> bool:
    """Whether a template takes no more messages up in a long conversation than in a short one, if it knows calls."""
    for calls, system in ((True, True), (True, False), (False, True), (False, False)):
        counts = []
        for turns in (10, 50):
            tools = (TOOL,) if calls else ()
            counts.append(
                taken_at_the_last_turn(chat_of(folder, source), talk(turns, calls=calls, system=system), tools)
            )
        if counts[0] is not None:
            return counts[0] == counts[1]
    return False


@pytest.mark.skipif(not KNOWN, reason="needs the templates in ../shared/data/chat-templates")
def test_the_page_says_which_templates_take_up_new_messages_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def counting(source: str, messages: Messages, variables: dict[str, Any], **earlier: Any) -> Rendered:
        return render(source, Counted(messages), variables, **earlier)

    monkeypatch.setattr("mainstem.tokens.render_memory.render", counting)
    others = [path.name for path in KNOWN if not takes_only_new(folder, path.read_text(encoding="utf-8"))]
    page = PAGE.read_text(encoding="utf-8")
    section = page.split("## Templates in long conversations", 1)[1].split("\n## ", 1)[0]
    assert re.findall(r"`([^`]+\.jinja)`", section) == others
    assert f"{len(KNOWN) - len(others)} of the {len(KNOWN)} templates" in section


# -- what may be passed over ------------------------------------------------------------------------------------------

Messages = list[dict[str, Any]]
UNSEEN = {"role": "never seen", "content": "never seen"}
BODY = "{{ m.role }}: {{ m.content }}\n"
OVER = "{% for m in messages %}" + BODY + "{% endfor %}"


def said(*texts: str) -> Messages:
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]


def plainly(source: str, messages: Messages, variables: dict[str, Any]) -> str | None:
    try:
        return "".join(program(source).write({**variables, "messages": messages}))
    except Exception:  # whatever a template raises
        return None


def passed_over(source: str, messages: Messages, more: Messages) -> int:
    """How many messages are not looked at again once there are more of them."""
    earlier = render(source, messages, {})
    whole = plainly(source, messages + more, {})
    hidden = 0
    for hidden in range(len(messages) + 1):
        shown = [UNSEEN] * (hidden + 1) + (messages + more)[hidden + 1 :]
        if render(source, shown, {}, earlier=earlier, common=len(messages)).text != whole:
            break
    return hidden


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (OVER, 4),
        (OVER.replace(BODY, BODY + "{% if loop.last %}.{% endif %}"), 3),
        (OVER.replace(BODY, "{{ loop.index }}" + BODY), 4),
        (OVER.replace(BODY, "{{ loop.previtem }}" + BODY), 3),
        (OVER.replace(BODY, BODY + "{{ messages[loop.index0 + 1].role if not loop.last }}"), 3),
        ("{% set n = namespace(c=0) %}" + OVER.replace(BODY, BODY + "{% set n.c = n.c + 1 %}{{ n.c }}"), 4),
        ("{% if messages | length > 1 %}x{% endif %}" + OVER + "{{ messages[-1].content }}", 4),
        ("{% if true %}" + OVER + "{% endif %}", 4),
        # What tells how many messages there are is not passed over.
        (OVER.replace(BODY, BODY + "{{ loop.length }}"), 0),
        (OVER.replace(BODY, BODY + "{{ loop.revindex }}"), 0),
        (OVER.replace(BODY, BODY + "{{ messages[-1].role }}"), 0),
        ("{% set n = messages | length %}" + OVER.replace(BODY, BODY + "{{ n }}"), 0),
        ("{% set last = messages[-1] %}" + OVER.replace(BODY, "{{ 'x' if m == last }}" + BODY), 0),
        # Nor is what keeps a count that is not known.
        (OVER.replace(BODY, BODY + "{{ loop.changed(m.role) }}"), 0),
        ("{% set j = joiner() %}" + OVER.replace(BODY, BODY + "{{ j() }}"), 0),
        ("{% set x %}" + OVER + "{% endset %}{{ x }}", 0),
        (OVER.replace("in messages", "in messages if m.content"), 0),
    ],
)
def test_messages_are_passed_over_where_the_template_would_write_the_same(source: str, expected: int) -> None:
    assert passed_over(source, said("a", "b", "c", "d"), said("e", "f")) == expected


def test_the_built_in_template_passes_over_what_it_has_written() -> None:
    assert passed_over(CHATML_WITH_TOOLS, said("a", "b", "c", "d"), said("e")) == 4


def test_other_tools_are_another_prompt(folder: Path) -> None:
    chat = chat_of(folder, "{{ tools | tojson }}" + OVER.replace(BODY, BODY + "{{ tools[0].function.parameters.x }}"))
    asked = (Message(role="user", parts=("a",)), Message(role="assistant", parts=("b",)))
    for value in (1, True, 1.0, "1", None):
        conversation = Conversation(asked, (Tool("f", None, {"x": value}),))
        assert chat.render(conversation, at=MOMENT) == as_transformers(chat, conversation)


PRELUDES = (
    "",
    "{% set n = namespace(c=0, last=0, s='') %}",
    "{% set n = namespace(c=0, last=0, s='') %}{% for m in messages[::-1] %}{% if m.role == 'user' and not n.last %}"
    "{% set n.last = messages | length - loop.index0 %}{% endif %}{% endfor %}",
    "{% if messages[0].role == 'system' %}{% set messages = messages[1:] %}{{ messages | length > 0 }}{% endif %}",
    "{% macro show(m) %}[{{ m.content }}{{ messages[0].content }}]{% endmacro %}",
    "{% for m in messages %}{% if m.content == 'b' %}{{ loop.index }}{% endif %}{% endfor %}",
    "{% set first = messages[0] %}{% set rest = messages[1:3] %}",
)
PIECES = (
    "{{ m.content }}",
    "{{ m.role[0] }}{{ loop.index }}",
    "{% if loop.first %}^{% endif %}",
    "{% if loop.last %}${% endif %}",
    "{{ loop.previtem.content if loop.previtem is defined }}",
    "{{ loop.nextitem.content }}",
    "{{ loop.revindex0 }}",
    "{{ messages[-1].content }}",
    "{{ messages[loop.index0 - 1].content }}",
    "{{ messages[loop.index0 + 1].content }}",
    "{{ messages | length }}",
    "{{ messages | map(attribute='content') | join }}",
    "{% set n.c = n.c + 1 %}{{ n.c }}",
    "{% set n.s = n.s ~ m.content %}",
    "{{ n.last }}{{ n.s }}",
    "{{ show(m) }}",
    "{{ first.content }}{{ rest }}",
    "{% if m.content == 'b' %}{% continue %}{% endif %}",
    "{% if m.content == 'c' %}{% break %}{% endif %}",
    "{% for x in messages %}{{ x.content if x == m }}{% endfor %}",
    "{% for c in m.content %}{{ loop.index }}{{ c }}{% endfor %}",
    "{{ loop.cycle('p', 'q') }}",
    "{{ messages }}",
    "{% generation %}{% set y = m.content %}{{ y }}{% endgeneration %}{{ y }}",
)
POSTLUDES = ("", "{{ n.c }}{{ n.s }}", "{{ messages[-1].content }}", "{% if more %}>{% endif %}")
LOOPS = (
    "{% for m in messages %}%s{% endfor %}",
    "{% for m in messages %}%s{% else %}none{% endfor %}",
    "{% for m in messages[1:] %}%s{% endfor %}",
    "{% for m in messages[:-1] %}%s{% endfor %}",
    "{% if messages | length > 2 %}{% for m in messages %}%s{% endfor %}"
    "{% else %}{% for m in messages %}-%s{% endfor %}{% endif %}",
)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_a_prompt_that_goes_on_from_another_is_what_it_is_by_itself(data: st.DataObject) -> None:
    pieces = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)
    loops = [
        data.draw(st.sampled_from(LOOPS)).replace("%s", data.draw(pieces)) for _ in range(data.draw(st.integers(1, 2)))
    ]
    source = data.draw(st.sampled_from(PRELUDES)) + "|".join(loops) + data.draw(st.sampled_from(POSTLUDES))
    message = st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "user", "assistant"]),
        st.sampled_from(["a", "b", "c", ""]),
    )
    earlier = Rendered("")
    before: Messages = []
    for _ in range(4):
        kept = data.draw(st.integers(0, len(before)))
        messages: Messages = before[:kept] + data.draw(st.lists(message, min_size=0 if kept else 1, max_size=3))
        expected = plainly(source, messages, {"more": True})
        if expected is None:
            continue
        common = next((i for i, (a, b) in enumerate(zip(before, messages, strict=False)) if a != b), None)
        if common is None:
            common = min(len(before), len(messages))
        earlier = render(source, messages, {"more": True}, earlier=earlier, common=common)
        assert earlier.text == expected
        before = messages
