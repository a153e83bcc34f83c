"""What is found out about a chat template, and that docs/templates.md says the same of the templates that it lists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from mainstem.model import ModelFiles
from mainstem.tokens import Tokenizer
from mainstem.tokens.hygiene import findings
from mainstem.tokens.rendering import ChatTemplate
from mainstem.tokens.templates import CHATML_WITH_TOOLS
from tests.support.tiny_models import save_tiny_tokenizer

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT.parent / "shared" / "data" / "chat-templates"
PAGE = (ROOT / "docs" / "templates.md").read_text(encoding="utf-8")

CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments }}){% endfor %}"
TOOLS = "{% if tools %}{{ tools | tojson }}\n{% endif %}"
PLAIN = "{{ m.role }}: {{ m.content }}" + CALLS + "\n"
END = "{% if add_generation_prompt %}assistant: {% endif %}"
SOUND = TOOLS + "{% for m in messages %}" + PLAIN + "{% endfor %}" + END
THINKING = SOUND.replace("assistant: {% endif", "assistant: <think>{% endif").replace(
    PLAIN,
    "{% if m.role == 'assistant' %}assistant: <think>%s</think>{{ m.content }}"
    + CALLS
    + "\n{% else %}"
    + PLAIN
    + "{% endif %}",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def found(folder: Path, source: str) -> dict[str, str]:
    """The findings of a template for a model that does not speak ChatML, by their kinds."""
    loaded = PreTrainedTokenizerFast.from_pretrained(folder, bos_token="<s>", eos_token="</s>")
    loaded.chat_template = source
    return dict(findings(ChatTemplate(loaded, speaks_chatml=False)))


@pytest.mark.parametrize("source", [SOUND, CHATML_WITH_TOOLS, THINKING.replace("%s", "{{ m.reasoning_content }}")])
def test_there_is_nothing_to_say_of_a_template_that_appends(folder: Path, source: str) -> None:
    assert found(folder, source) == {}


def test_the_embedded_models_template_appends(embedded_model: ModelFiles) -> None:
    assert findings(Tokenizer.load(embedded_model.folder).chat) == ()


def test_tools_before_the_last_question_are_moved(folder: Path) -> None:
    last = "{% for m in messages %}{% if tools and m == (messages | selectattr('role', 'eq', 'user') | list)[-1] %}"
    source = last + "{{ tools | tojson }}{% endif %}" + PLAIN + "{% endfor %}" + END
    assert found(folder, source) == {
        "tools": "breaks prefixes when the user speaks again: it moves the tools to the end"
    }


def test_instructions_that_come_last_are_moved(folder: Path) -> None:
    last = "{% if loop.last %}{{ messages[0].content }}\n{% endif %}" + PLAIN
    source = SOUND.replace("in messages", "in messages[1:]").replace(PLAIN, last)
    text = "when a tool has answered and when the user speaks again: it moves the system message to the end"
    assert found(folder, source) == {"system": f"breaks prefixes {text}"}


def test_tool_answers_that_are_cleared_are_dropped(folder: Path) -> None:
    kept = "{% if m.role != 'tool' or loop.revindex < 3 %}" + PLAIN + "{% endif %}"
    results = found(folder, SOUND.replace(PLAIN, kept))
    text = "when a tool has answered and when the user speaks again: it drops what tools answered"
    assert results == {"results": f"breaks prefixes {text}"}


@pytest.mark.parametrize(
    ("thought", "text"),
    [
        ("", "when a tool has answered and when the user speaks again: it leaves out what the model thought"),
        (
            "{{ m.reasoning_content if messages[-1].role != 'user' }}",
            "when the user speaks again: it drops what the model thought",
        ),
    ],
)
def test_thoughts_that_are_left_out_are_told(folder: Path, thought: str, text: str) -> None:
    assert found(folder, THINKING.replace("%s", thought)) == {"reasoning": f"breaks prefixes {text}"}


def test_without_room_for_thoughts_none_are_missed(folder: Path) -> None:
    source = THINKING.replace("assistant: <think>{% endif", "assistant: <think></think>{% endif").replace("%s", "")
    assert found(folder, source) == {}


def test_a_beginning_of_replies_that_the_history_has_not_is_told(folder: Path) -> None:
    assert found(folder, SOUND.replace("assistant: {% endif", "assistant: Sure! {% endif"))["opening"] == (
        "breaks prefixes when a tool has answered and when the user speaks again: it begins a reply with "
        "'assistant: Sure! ', but its history with 'assistant: probe_'"
    )


def test_any_other_change_is_shown(folder: Path) -> None:
    source = SOUND.replace(PLAIN, "<{{ loop.revindex }}>" + PLAIN)
    assert found(folder, source)["rewrites"].endswith(
        "'<2>system: probe instructions<' becomes '<4>system: probe instructions<'"
    )


@pytest.mark.parametrize(("form", "what"), [("%d %b %Y", "date"), ("%H:%M", "time")])
def test_a_clock_is_told(folder: Path, form: str, what: str) -> None:
    text = found(folder, "{{ strftime_now('" + form + "') }}" + SOUND)["clock"]
    assert text.startswith(f"writes the {what}: each conversation keeps the {what} it began with")
    assert ("share nothing" in text) == (what == "time")


@pytest.mark.parametrize(
    ("source", "kind", "text"),
    [
        (SOUND.replace(TOOLS, ""), "no-tools", "leaves tools out, so that"),
        (SOUND.replace(TOOLS, "{% if messages[1:] %}" + TOOLS + "{% endif %}"), "no-tools", "where there is no system"),
        (
            "{% if tools %}{{ raise_exception('no') }}{% endif %}" + SOUND,
            "no-tools",
            "refuses conversations with tools",
        ),
        (
            "{% if not tools %}{{ raise_exception('no') }}{% endif %}" + SOUND,
            "needs-tools",
            "refuses conversations with",
        ),
        (SOUND.replace(CALLS, ""), "no-calls", "leaves tool calls out"),
    ],
)
def test_what_a_template_does_not_take_is_told(folder: Path, source: str, kind: str, text: str) -> None:
    assert text in found(folder, source)[kind]


@cache
def documented() -> dict[str, list[str]]:
    """The kinds of findings that docs/templates.md gives for each template."""
    rows = re.findall(r"^\| `([^`]+\.jinja)` \| (.*) \|$", PAGE, re.MULTILINE)
    return {path: re.findall(r"`([a-z-]+)`", kinds) for path, kinds in rows}


@pytest.mark.skipif(not TEMPLATES.is_dir(), reason="needs the templates in ../shared/data/chat-templates")
@pytest.mark.parametrize("path", sorted(path.name for path in TEMPLATES.rglob("*.jinja")))
def test_a_template_of_a_known_model_is_classified(folder: Path, path: str) -> None:
    (file,) = TEMPLATES.rglob(path)
    kinds = list(found(folder, file.read_text(encoding="utf-8")))
    assert documented()[path] == kinds


def test_every_kind_is_explained() -> None:
    source = (ROOT / "src" / "mainstem" / "tokens" / "hygiene.py").read_text(encoding="utf-8")
    kinds = {kind for kinds in documented().values() for kind in kinds} | set(
        re.findall(r'Finding\("([a-z-]+)"', source)
    )
    explained = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE))
    assert kinds <= explained
    assert len(documented()) == 46
