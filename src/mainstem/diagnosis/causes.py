"""What can change between two requests of a conversation, and what the hosted APIs call it.

The literals are those of the types in the `openai` and `anthropic` packages. It knows nothing of how a change is found.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

OpenAIReason: TypeAlias = Literal["model_changed", "tools_changed", "context_compacted", "input_changed"]
AnthropicType: TypeAlias = Literal["model_changed", "tools_changed", "system_changed", "messages_changed"]


class Place(StrEnum):
    """The region of a prompt in which something changed."""

    MODEL = "model"
    TOOLS = "tools"
    SYSTEM = "system"
    MESSAGES = "messages"
    REPLY = "reply"  # the model's own last reply, as the client sent it back
    TEMPLATE = "template"  # what the chat template made of parts that are the same
    TOKENS = "tokens"  # the same text in other tokens


class Cause(StrEnum):
    """The class of a change. `APPENDED` and `BRANCHED` are how conversations go on, and no fault."""

    # Something that is different at every request, in a text.
    TIMESTAMP = "timestamp"
    DATE = "date"
    UUID = "uuid"  # any random identifier
    COUNTER = "counter"  # any number
    PATH = "path"  # a working directory, a temporary file
    LISTING = "listing"  # entries of a list of files or the like came, went or changed places
    # The same thing in another spelling.
    KEY_ORDER = "key_order"  # the same JSON value
    WHITESPACE = "whitespace"
    # The tools.
    TOOLS_ADDED = "tools_added"
    TOOLS_REMOVED = "tools_removed"
    TOOLS_REORDERED = "tools_reordered"
    TOOLS_EDITED = "tools_edited"
    # The instructions.
    SYSTEM_EDITED = "system_edited"
    # The history.
    HISTORY_EDITED = "history_edited"
    HISTORY_ELIDED = "history_elided"  # old messages shortened, or replaced by a summary
    HISTORY_WINDOWED = "history_windowed"  # the oldest messages dropped
    REASONING_DROPPED = "reasoning_dropped"
    # What is not in the request's parts.
    MODEL_CHANGED = "model_changed"
    TEMPLATE = "template"
    RETOKENIZED = "retokenized"
    # No faults.
    APPENDED = "appended"
    BRANCHED = "branched"  # another question on the same history

    @property
    def is_fault(self) -> bool:
        """Whether tokens that could have been reused cannot be."""
        return self not in (Cause.APPENDED, Cause.BRANCHED)

    @property
    def label(self) -> str:
        """For people."""
        return _LABELS.get(self, self.value.replace("_", " "))


_LABELS = {
    Cause.UUID: "random id",
    Cause.PATH: "path or working directory",
    Cause.KEY_ORDER: "key order only",
    Cause.WHITESPACE: "whitespace only",
    Cause.SYSTEM_EDITED: "system text changed",
    Cause.HISTORY_WINDOWED: "oldest messages dropped",
    Cause.RETOKENIZED: "re-tokenised",
}


_BY_PLACE: dict[Place, Literal["model_changed", "tools_changed"]] = {
    Place.MODEL: "model_changed",
    Place.TOOLS: "tools_changed",
}
"""What both APIs call the same."""


def openai_reason(cause: Cause, place: Place) -> OpenAIReason | None:
    """`reason` of OpenAI's `prompt_cache_diagnostics` of type `cache_miss`; None where nothing was lost."""
    if not cause.is_fault:
        return None
    is_shortened = cause in (Cause.HISTORY_ELIDED, Cause.HISTORY_WINDOWED)
    return _BY_PLACE.get(place) or ("context_compacted" if is_shortened else "input_changed")


def anthropic_type(cause: Cause, place: Place) -> AnthropicType | None:
    """`type` of Anthropic's `cache_miss_reason`; None where nothing was lost."""
    if not cause.is_fault:
        return None
    return _BY_PLACE.get(place) or ("system_changed" if place is Place.SYSTEM else "messages_changed")


_VOLATILE_FIX = "move it to the end of the newest message"
_FIXES = {
    Cause.TIMESTAMP: f"leave the clock out, send the date alone, or {_VOLATILE_FIX}",
    Cause.DATE: "a date costs one miss a day; take it once for each conversation to lose nothing",
    Cause.UUID: f"make the id once for each conversation, or {_VOLATILE_FIX}",
    Cause.COUNTER: f"leave the number out, or {_VOLATILE_FIX}",
    Cause.PATH: f"use one stable directory, a relative path, or {_VOLATILE_FIX}",
    Cause.LISTING: f"sort the entries, take the listing once for each conversation, or {_VOLATILE_FIX}",
    Cause.KEY_ORDER: "serialise JSON with one fixed order of keys, and send calls back exactly as they came",
    Cause.WHITESPACE: "send the text back byte for byte: no trimming, no other indentation",
    Cause.TOOLS_ADDED: "offer all tools from the first request on; choose among them with tool_choice",
    Cause.TOOLS_REMOVED: "keep offering the same tools; forbid calls with tool_choice instead",
    Cause.TOOLS_REORDERED: "sort the tools by name before they are sent",
    Cause.TOOLS_EDITED: "fix names, descriptions and schemas of tools for the whole conversation",
    Cause.SYSTEM_EDITED: "keep the instructions the same; put what changes into a new message",
    Cause.HISTORY_EDITED: "send earlier messages back unchanged; put what changes into a new message",
    Cause.HISTORY_ELIDED: "shorten the history seldom and much at a time, not a little at every request",
    Cause.HISTORY_WINDOWED: "drop old messages seldom and many at a time, not one at every request",
    Cause.REASONING_DROPPED: "send the reasoning back, or use a template that never renders it in the history",
    Cause.MODEL_CHANGED: "keep one model for a conversation: nothing cached by one serves another",
    Cause.TEMPLATE: "use a template that renders earlier messages the same at every turn",
    Cause.RETOKENIZED: "send replies back exactly as they came",
}


def fix_of(cause: Cause) -> str:
    """What to do about it, in one clause; empty where there is nothing to do."""
    return _FIXES.get(cause, "")
