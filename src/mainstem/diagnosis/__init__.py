"""Says what changed between two requests of a conversation, and of which class the change is.

    compare(prompt_of(earlier).with_reply(message_of(reply)), prompt_of(later))
    -> Difference(cause=Cause.TIMESTAMP, place=Place.SYSTEM, part='messages[0].content', offset=17, ...)

Needs nothing but the standard library and `tokens.conversation`. It knows requests and texts; no tokens, no caches, no
HTTP.
"""

from mainstem.diagnosis.bodies import prompt_of_body, reply_of_response, with_stand_ins
from mainstem.diagnosis.causes import Cause, Place, anthropic_type, fix_of, openai_reason
from mainstem.diagnosis.compare import Rendered, compare, compare_rendered, differences
from mainstem.diagnosis.difference import Difference
from mainstem.diagnosis.prompt import (
    REPLY,
    Field,
    Kind,
    MessagePart,
    Prompt,
    ToolPart,
    message_of,
    prompt_of,
    text_prompt,
)
from mainstem.diagnosis.texts import Change, changes

__all__ = [
    "REPLY",
    "Cause",
    "Change",
    "Difference",
    "Field",
    "Kind",
    "MessagePart",
    "Place",
    "Prompt",
    "Rendered",
    "ToolPart",
    "anthropic_type",
    "changes",
    "compare",
    "compare_rendered",
    "differences",
    "fix_of",
    "message_of",
    "openai_reason",
    "prompt_of",
    "prompt_of_body",
    "reply_of_response",
    "text_prompt",
    "with_stand_ins",
]
