"""Tool calls as text: how models write them, reading them out of a reply that is still coming, and forcing them.

It knows text, JSON and grammars. It knows nothing of tokens, models or HTTP.
"""

from mainstem.tools.forcing import ToolChoice, json_grammar, reply_grammar
from mainstem.tools.parser import ReplyParser
from mainstem.tools.segments import Call, Reasoning, Segment, Text
from mainstem.tools.syntax import CallSyntax, recognise

__all__ = [
    "Call",
    "CallSyntax",
    "Reasoning",
    "ReplyParser",
    "Segment",
    "Text",
    "ToolChoice",
    "json_grammar",
    "recognise",
    "reply_grammar",
]
