"""What is learnt of a chat template by rendering with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.errors import InvalidRequest
from mainstem.tokens import Conversation, Message, Tokenizer, Tool, ToolCall
from tests.support.tiny_models import CHAT_TEMPLATE, save_tiny_tokenizer

TOOL = Tool("look_up", "Finds things.", {"type": "object", "properties": {}})
ASKED = Message(role="user", parts=("Where?",))
ARGUMENTS = '{"b":1,  "a": "ü"}'
CALLED = Message(role="assistant", tool_calls=(ToolCall("call_abcdef", "look_up", ARGUMENTS),))
CALLS = "{% for m in messages %}{% for c in m.tool_calls or [] %}%s{% endfor %}{% endfor %}{{ tools[0].function.name }}"
PROBED = Conversation((ASKED, CALLED), (TOOL,))


def load(folder: Path, template: str) -> Tokenizer:
    return Tokenizer.load(save_tiny_tokenizer(folder, chat_template=template))


def rendered(folder: Path, of_call: str) -> str:
    return load(folder, CALLS.replace("%s", of_call)).chat.render(PROBED)


def test_arguments_are_given_as_they_were_generated_where_the_template_takes_text(tmp_path: Path) -> None:
    assert ARGUMENTS in rendered(tmp_path, "{{ c.function.arguments }}")


def test_arguments_are_given_as_an_object_where_text_would_be_encoded_once_more(tmp_path: Path) -> None:
    assert '{"b": 1, "a": "ü"}' in rendered(tmp_path, "{{ c.function.arguments | tojson }}")


def test_arguments_are_given_as_an_object_where_the_template_walks_through_them(tmp_path: Path) -> None:
    assert "b=1;a=ü;" in rendered(
        tmp_path, "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"
    )


def test_arguments_that_are_no_object_are_given_as_they_are(tmp_path: Path) -> None:
    template = load(tmp_path, CALLS.replace("%s", "{{ c.function.arguments | tojson }}"))
    called = Message(role="assistant", tool_calls=(ToolCall("1", "look_up", "{cut off"),))
    assert '"{cut off"' in template.chat.render(Conversation((ASKED, called), (TOOL,)))


def test_ids_are_shortened_for_templates_that_insist_on_it(tmp_path: Path) -> None:
    insists = "{% if c.id | length != 9 %}{{ raise_exception('nine!') }}{% endif %}{{ c.id }}"
    answered = Message(role="tool", parts=("x",), tool_call_id="call_abcdef")
    template = CALLS.replace("%s", insists) + "{{ messages[-1].tool_call_id }}"
    text = load(tmp_path, template).chat.render(Conversation((ASKED, CALLED, answered), (TOOL,)))
    first, second = text.split("look_up")
    assert first == second
    assert len(first) == 9


def test_a_template_is_not_asked_by_name_whether_it_mentions_tools(tmp_path: Path) -> None:
    unused = CHAT_TEMPLATE + "{# tools are not supported #}{% if tools is defined and false %}{{ tools }}{% endif %}"
    tokenizer = load(tmp_path, unused)
    assert not tokenizer.chat.mentions_tools
    assert '"look_up"' in tokenizer.chat.render(Conversation((ASKED,), (TOOL,)))


@pytest.mark.parametrize(("mark", "start"), [("</think>", "<think>"), ("[/THINK]", "[THINK]"), ("", None)])
def test_a_template_tells_whether_its_model_thinks(tmp_path: Path, mark: str, start: str | None) -> None:
    marks = load(tmp_path, "{{ messages[0].content.split('" + mark + "x') }}").chat.reasoning_marks
    assert (marks.start if marks else None) == start


def test_a_reply_can_go_on_where_the_last_message_stops(tmp_path: Path) -> None:
    begun = Message(role="assistant", parts=("To the",))
    text = load(tmp_path, CHAT_TEMPLATE).chat.render(Conversation((ASKED, begun), continues_last=True))
    assert text == "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\nTo the"


def test_only_what_a_template_may_see_of_a_tool_is_shown(tmp_path: Path) -> None:
    tool = {"function": {"strict": True, "parameters": {"b": 1, "a": 2}, "name": "f"}, "type": "function", "x": 1}
    text = load(tmp_path, "{{ tools | tojson }}").render_chat([{"role": "user", "content": "x"}], tools=[tool])
    assert text == '[{"type": "function", "function": {"name": "f", "parameters": {"a": 2, "b": 1}}}]'


def test_without_any_template_a_model_says_so(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path, chat_template=None)
    for path in (tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"):
        path.write_text(path.read_text().replace("<|im_start|>", "<|other|>"))
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer.load(tmp_path).chat.render(Conversation((ASKED,)))
