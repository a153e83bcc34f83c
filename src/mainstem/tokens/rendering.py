"""Chat templates: from a conversation to the text of its prompt, and what a template does, found by rendering with it.

Templates are programs that come with models. What one expects and writes is learnt from small probe conversations,
never from the model's name. It knows nothing of token ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from mainstem.errors import InvalidRequest, ModelLoadError
from mainstem.tokens.canonical import canonical_schema
from mainstem.tokens.clock import ConversationClock
from mainstem.tokens.conversation import Conversation, Message, Tool, ToolCall
from mainstem.tokens.render_memory import RenderMemory
from mainstem.tokens.template_reads import TemplateReads, pin, reads_of
from mainstem.tokens.templates import CHATML_WITH_TOOLS

_ASKED = Message(role="user", parts=("probe question",))
# With all that templates expect of a tool.
PROBE_TOOL = Tool(
    "probe_tool",
    "A probe.",
    {
        "type": "object",
        "properties": {"probe_key": {"type": "string", "description": "any text"}},
        "required": ["probe_key"],
    },
)
_PROBE_ARGUMENTS = '{"probe_key": "probe value"}'
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


class Marks(NamedTuple):
    """The texts around something in a reply."""

    start: str
    end: str


_REASONING_MARKS = (Marks("<think>", "</think>"), Marks("[THINK]", "[/THINK]"))


class ChatTemplate:
    """A model's chat template, or the built-in one where the model's own does not do.

    Args:
        loaded: the `transformers` tokenizer that carries the template, if there is one.
        speaks_chatml: the model has ChatML's tokens, so that the built-in template may take over.
        canonical_tools: show the keys of tools' schemas in one order, whatever order they come in.
        now: the clock.

    Raises:
        ModelLoadError: when the template draws random values.
    """

    def __init__(
        self,
        loaded: Any,
        *,
        speaks_chatml: bool,
        canonical_tools: bool = True,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._loaded = loaded
        self._speaks_chatml = speaks_chatml
        self._canonical_tools = canonical_tools
        self._now = now
        self._clock = ConversationClock(now)
        self._memory = RenderMemory()
        _refuse_random(reads.random for reads in self.reads.values())

    @property
    def exists(self) -> bool:
        """Whether chats can be rendered at all."""
        return bool(self._loaded.chat_template) or self._speaks_chatml

    @cached_property
    def reads(self) -> dict[str, TemplateReads]:
        """What the model's own templates, one or two, read beside a conversation, by their source."""
        own = (self._own(uses_tools=uses_tools) for uses_tools in (False, True))
        return {source: reads_of(source) for source in own if source is not None}

    @cached_property
    def mentions_tools(self) -> bool:
        """Whether the model's own template puts the tools it is given into the prompt."""
        return PROBE_TOOL.name in (self._probe((_ASKED,), (PROBE_TOOL,), self._own(uses_tools=True)) or "")

    @cached_property
    def call_example(self) -> str:
        """How a reply that calls `probe_tool` with `probe_key` is written in the history; empty if it cannot be."""
        return self._rendered_call(as_objects=self._arguments_as_objects) or ""

    @cached_property
    def reasoning_marks(self) -> Marks | None:
        """The marks around a model's thoughts, where its template knows of thoughts."""
        source = self._own(uses_tools=False) or ""
        return next((marks for marks in _REASONING_MARKS if marks.end in source), None)

    def remember_at_most(self, characters: int) -> None:
        """Bound the texts that are kept so that a conversation which goes on need not be rendered from its start."""
        self._memory.remember_at_most(characters)

    def offered(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """The tools as the prompt shows them."""
        if not self._canonical_tools:
            return tuple(tools)
        return tuple(map(_canonical, tools))

    def render(
        self, conversation: Conversation, *, add_generation_prompt: bool = True, at: datetime | None = None
    ) -> str:
        """The prompt of a conversation. Text of special tokens inside a message is not escaped, as in `transformers`.

        Args:
            conversation: to render.
            add_generation_prompt: end with what a reply begins with.
            at: what the time is; by default what it was when the conversation began.

        Raises:
            InvalidRequest: when the template refuses the conversation.
        """
        uses_tools = bool(conversation.tools) or any(message.tool_calls for message in conversation.messages)
        template = self._template_for(uses_tools=uses_tools)
        as_objects = uses_tools and self._arguments_as_objects

        def see(message: Message) -> dict[str, Any]:
            return self._as_template_sees(message, template, as_objects=as_objects)

        if at is None and reads_of(template).clock:
            at = self._clock.time_of(conversation)
        definitions = [tool.definition() for tool in self.offered(conversation.tools)]
        pinned = pin(template, at or self._now(), definitions)
        variables = {
            **self._loaded.special_tokens_map,
            "tools": definitions or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **pinned.variables,
        }
        try:
            if not conversation.continues_last:
                return self._memory.render(pinned.source, conversation, variables, see)
            messages = [see(message) for message in conversation.messages]
            tools = self.offered(conversation.tools)
            return self._apply(
                template, messages, tools, at=at, add_generation_prompt=False, continue_final_message=True
            )
        except Exception as error:  # a template is a program: what it raises depends on what it does with the messages
            raise InvalidRequest(
                f"The model's chat template does not accept these messages: {error}", param="messages"
            ) from error

    def _own(self, *, uses_tools: bool) -> str | None:
        if not self._loaded.chat_template:
            return None
        try:
            template: str = self._loaded.get_chat_template(tools=[{}] if uses_tools else None)
        except ValueError:  # it has several, none of them for this
            return None
        return template

    def _template_for(self, *, uses_tools: bool) -> str:
        own = self._own(uses_tools=uses_tools)
        if own is not None and (not uses_tools or not self._speaks_chatml or self.mentions_tools):
            return own
        if not self._speaks_chatml:
            raise InvalidRequest(
                "This model has no chat template. Send a plain prompt to /v1/completions instead.", param="messages"
            )
        return CHATML_WITH_TOOLS

    def _as_template_sees(self, message: Message, template: str, *, as_objects: bool) -> dict[str, Any]:
        role = "system" if message.role == "developer" and "developer" not in template else message.role
        seen: dict[str, Any] = {"role": role, "content": message.text}
        if message.name is not None:
            seen["name"] = message.name
        if message.reasoning is not None:
            # Both names are in use.
            seen = {"thinking": message.reasoning, **seen, "reasoning_content": message.reasoning}
        if message.tool_call_id is not None:
            seen["tool_call_id"] = self._id(message.tool_call_id)
        if message.tool_calls:
            seen["tool_calls"] = [self._call(call, as_objects=as_objects) for call in message.tool_calls]
        return seen

    def _call(self, call: ToolCall, *, as_objects: bool) -> dict[str, Any]:
        arguments = _as_object(call.arguments) if as_objects else call.arguments
        return {
            "id": self._id(call.id),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }

    def _id(self, call_id: str) -> str:
        """The id as the template takes it; some insist on nine letters and digits."""
        if not self._ids_are_short or _SHORT_ID.fullmatch(call_id):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]

    @cached_property
    def _ids_are_short(self) -> bool:
        return (
            self._rendered_call(as_objects=True, call_id="probe-call-id") is None
            and self._rendered_call(as_objects=True, call_id="probe1234") is not None
        )

    @cached_property
    def _arguments_as_objects(self) -> bool:
        """Whether the template spoils arguments given as text, as one does that encodes them once more."""
        rendered = self._rendered_call(as_objects=False)
        return rendered is None or _PROBE_ARGUMENTS not in rendered

    def _rendered_call(self, *, as_objects: bool, call_id: str = "probe1234") -> str | None:
        """A conversation that ends in a call, without what the same one renders to before the call."""
        function = {"name": PROBE_TOOL.name, "arguments": _as_object(_PROBE_ARGUMENTS)}
        if not as_objects:
            function["arguments"] = _PROBE_ARGUMENTS
        call = {"id": call_id, "type": "function", "function": function}
        asked = {"role": "user", "content": _ASKED.text}
        answered = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            template = self._template_for(uses_tools=True)
            before = self._apply(template, [asked], (PROBE_TOOL,), add_generation_prompt=True)
            whole = self._apply(template, [asked, answered], (PROBE_TOOL,), add_generation_prompt=False)
        except Exception:  # a template that cannot do it says so in its own way
            return None
        shared = next((i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
        return whole[shared:]

    def _probe(self, messages: tuple[Message, ...], tools: tuple[Tool, ...], template: str | None) -> str | None:
        if template is None:
            return None
        try:
            plain = [{"role": message.role, "content": message.text} for message in messages]
            return self._apply(template, plain, tools, add_generation_prompt=True)
        except Exception:  # as above
            return None

    def _apply(
        self,
        template: str,
        messages: list[dict[str, Any]],
        tools: tuple[Tool, ...],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        at: datetime | None = None,
    ) -> str:
        definitions = [tool.definition() for tool in tools]
        pinned = pin(template, at or self._now(), definitions)
        rendered = self._loaded.apply_chat_template(
            messages,
            tools=definitions or None,
            chat_template=pinned.source,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tokenize=False,
            **pinned.variables,
        )
        return str(rendered)


def _canonical(tool: Tool) -> Tool:
    if tool.parameters is None:
        return tool
    made: Tool | None = tool.derived.get("canonical")
    if made is None:
        made = tool.derived["canonical"] = replace(tool, parameters=canonical_schema(tool.parameters))
    return made


def _refuse_random(found: Iterable[Sequence[str]]) -> None:
    names = sorted({name for names in found for name in names})
    if names:
        raise ModelLoadError(
            f"The model's chat template draws random values ({', '.join(names)}): no prompt would begin like the one "
            "before it. Put a template that does not into the model's folder, as chat_template.jinja."
        )


def _as_object(arguments: str) -> Any:
    """The arguments as templates take them; as they are when they are no JSON object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
