"""Which syntax a chat template writes calls in."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.tokens import Tokenizer
from mainstem.tools import recognise
from mainstem.tools.syntax import BareJson, Hermes, Mistral, Pythonic
from tests.support.tiny_models import save_tiny_tokenizer

TEMPLATES = Path(__file__).parents[3] / "shared" / "data" / "chat-templates"


@pytest.mark.parametrize(
    ("example", "kind"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>', Hermes),
        ('<think>\n\n</think>\n\n<tool_call>\n{"name": "f"}', Hermes),
        ('[TOOL_CALLS] [{"name": "f", "arguments": {}}]</s>', Mistral),
        ('[TOOL_CALLS]f[ARGS]{"a": 1}</s>', Mistral),
        ('{"name": "f", "parameters": {}}<|eot_id|>', BareJson),
        ('[f(a="b")]<|eot_id|>', Pythonic),
        ("<tool_call>\n<function=f>\n</function>\n</tool_call>", type(None)),
        ("no call", type(None)),
        ("", type(None)),
    ],
)
def test_a_call_tells_its_syntax(example: str, kind: type[object]) -> None:
    assert type(recognise(example)) is kind


def test_the_key_of_the_arguments_is_taken_from_the_template() -> None:
    bare = recognise('{"name": "f", "arguments": {}}')
    assert isinstance(bare, BareJson)
    assert bare.key == "arguments"


def test_the_later_form_of_mistral_is_told_from_the_earlier() -> None:
    earlier, later = recognise('[TOOL_CALLS] [{"name": "f"}]'), recognise("[TOOL_CALLS]f[ARGS]{}")
    assert isinstance(earlier, Mistral)
    assert isinstance(later, Mistral)
    assert (earlier.named, later.named) == (False, True)


def test_a_template_without_tools_gives_way_to_one_in_the_hermes_form(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save_tiny_tokenizer(tmp_path))
    assert not tokenizer.chat.mentions_tools
    assert isinstance(recognise(tokenizer.chat.call_example), Hermes)


@pytest.mark.skipif(not TEMPLATES.is_dir(), reason="needs the collection of chat templates beside the checkout")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama.cpp/models/templates/Qwen-Qwen2.5-7B-Instruct.jinja", Hermes),
        ("llama.cpp/models/templates/NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja", Hermes),
        ("vllm/rust/src/chat/tests/templates/qwen3.jinja", Hermes),
        ("llama.cpp/models/templates/meta-llama-Llama-3.1-8B-Instruct.jinja", BareJson),
        ("vllm/examples/tool_chat_template_llama3.2_json.jinja", BareJson),
        ("vllm/examples/tool_chat_template_phi4_mini.jinja", BareJson),
        ("llama.cpp/models/templates/mistralai-Mistral-Nemo-Instruct-2407.jinja", Mistral),
        ("vllm/examples/tool_chat_template_mistral3.jinja", Mistral),
        ("vllm/examples/tool_chat_template_llama3.2_pythonic.jinja", Pythonic),
        ("vllm/examples/tool_chat_template_llama4_pythonic.jinja", Pythonic),
        ("vllm/examples/tool_chat_template_toolace.jinja", Pythonic),
    ],
)
def test_templates_of_real_models_are_recognised(tmp_path: Path, name: str, kind: type[object]) -> None:
    tokenizer = Tokenizer.load(save_tiny_tokenizer(tmp_path, chat_template=(TEMPLATES / name).read_text()))
    assert tokenizer.chat.mentions_tools
    assert type(recognise(tokenizer.chat.call_example)) is kind
