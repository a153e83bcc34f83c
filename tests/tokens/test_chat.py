"""Messages to prompts: what templates see, what they refuse, and where the built-in one helps out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from mainstem.errors import InvalidRequest
from mainstem.model import ModelFiles
from mainstem.tokens import Tokenizer
from tests.support.tiny_models import save_tiny_tokenizer

USER = {"role": "user", "content": "Where does the river run?"}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}


def load(folder: Path, template: str | None) -> Tokenizer:
    return Tokenizer.load(save_tiny_tokenizer(folder, chat_template=template))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def contents(*values: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": value} for value in values]


def test_the_models_own_template_is_used(tokenizer: Tokenizer) -> None:
    assert tokenizer.render_chat([USER]) == (
        "<|im_start|>user\nWhere does the river run?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_generation_prompt_can_be_left_out(tokenizer: Tokenizer) -> None:
    rendered = tokenizer.render_chat([USER], add_generation_prompt=False)
    assert rendered == "<|im_start|>user\nWhere does the river run?<|im_end|>\n"


def test_encoding_a_chat_is_that_of_transformers(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    reference = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template([USER], return_dict=False)
    assert tokenizer.encode_chat([USER]).tolist() == reference


def test_content_may_be_null_or_a_list_of_text_parts(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}]
    assert tokenizer.render_chat(contents(None, parts)) == tokenizer.render_chat(contents("", "one\ntwo"))


def test_cache_markers_never_reach_the_prompt(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, "{{ tools | tojson }}{{ messages | tojson }}")
    marker = {"cache_control": {"type": "ephemeral"}}
    marked = [{"role": "user", "content": [{"type": "text", "text": "hi", **marker}], **marker}]
    tools = [{**TOOL, **marker, "function": {**TOOL["function"], **marker}}]  # type: ignore[dict-item]
    plain = tokenizer.render_chat(contents("hi"), tools=[TOOL])
    assert tokenizer.render_chat(marked, tools=tools) == plain


def test_a_schema_keeps_a_property_that_is_named_like_a_marker(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, "{{ tools | tojson }}")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"cache_control": {}}}}}
    assert '"cache_control"' in tokenizer.render_chat([USER], tools=[tool])


def test_developer_becomes_system_unless_the_template_knows_it(tmp_path: Path) -> None:
    message = [{"role": "developer", "content": "Be brief."}]
    assert load(tmp_path / "a", "{{ messages[0].role }}").render_chat(message) == "system"
    knowing = "{% if messages[0].role == 'developer' %}yes{% endif %}"
    assert load(tmp_path / "b", knowing).render_chat(message) == "yes"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (5, "messages"),
        (["hello"], "messages[0]"),
        ([USER, {"content": "x"}], "messages[1].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        (contents([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]), "messages[0].content[1]"),
        (contents([{"type": "text"}]), "messages[0].content[0].text"),
        (contents([7]), "messages[0].content[0]"),
    ],
)
def test_a_malformed_message_is_refused_by_its_place(tokenizer: Tokenizer, messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tokenizer.render_chat(messages)
    assert refused.value.param == param


def test_a_tool_that_is_no_object_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match=r"tools\[1\] must be an object"):
        tokenizer.render_chat([USER], tools=[TOOL, "look_up"])  # type: ignore[list-item]


def test_what_a_template_raises_is_told_to_the_client(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        tokenizer.render_chat([USER])


def test_an_error_inside_a_template_is_the_requests_error(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, "{{ messages[0].tool_calls[0].function.name }}")
    with pytest.raises(InvalidRequest, match="chat template does not accept"):
        tokenizer.render_chat([USER])


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, "{{ messages.__class__.__mro__ }}")
    with pytest.raises(InvalidRequest):
        tokenizer.render_chat([USER])


def test_half_a_surrogate_pair_in_a_message_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        tokenizer.encode_chat(contents("\ud800"))


def test_a_chatml_vocabulary_without_a_template_gets_the_built_in_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    plain = load(tmp_path, None)
    assert plain.chat.exists
    system = {"role": "system", "content": "Be brief."}
    messages = [system, USER, {"role": "assistant", "content": "To the sea."}]
    assert plain.render_chat(messages) == tokenizer.render_chat(messages)


def test_a_model_that_knows_no_chats_says_so(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path, chat_template=None)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace("<|im_start|>", "<|other|>"))
    config = tmp_path / "tokenizer_config.json"
    config.write_text(config.read_text().replace("<|im_start|>", "<|other|>"))
    tokenizer = Tokenizer.load(tmp_path)
    assert not tokenizer.chat.exists
    with pytest.raises(InvalidRequest, match="no chat template"):
        tokenizer.render_chat([USER])


def test_tools_are_rendered_in_hermes_form_where_the_template_leaves_them_out(tokenizer: Tokenizer) -> None:
    call: dict[str, Any] = {
        "id": "1",
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"b": 1,  "a": 2}'},
    }
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "The sea."},
    ]
    rendered = tokenizer.render_chat(messages, tools=[TOOL])
    system, user, assistant, tool, prompt = rendered.split("<|im_end|>\n")[:5]
    assert system.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert '<tools>\n{"type": "function", "function": {"name": "look_up"' in system
    assert user == "<|im_start|>user\nWhere does the river run?"
    # Arguments appear exactly as they were generated: another spelling would be another prefix.
    expected = '<tool_call>\n{"name": "look_up", "arguments": {"b": 1,  "a": 2}}\n</tool_call>'
    assert assistant == f"<|im_start|>assistant\n{expected}"
    assert tool == "<|im_start|>user\n<tool_response>\nThe sea.\n</tool_response>"
    assert prompt == "<|im_start|>assistant\n"


def test_a_template_that_knows_tools_gets_them(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, "{{ tools[0].function.name }}")
    assert tokenizer.render_chat([USER], tools=[TOOL]) == "look_up"


def test_a_later_turn_begins_with_the_rendering_of_the_earlier_ones(embedded_model: ModelFiles) -> None:
    tokenizer = Tokenizer.load(embedded_model.folder)
    first = tokenizer.encode_chat([USER])
    later = [USER, {"role": "assistant", "content": "To the sea."}, {"role": "user", "content": "And then?"}]
    assert tokenizer.encode_chat(later)[: len(first)].tolist() == first.tolist()
    assert "You are a helpful AI assistant named SmolLM" in tokenizer.render_chat([USER])
