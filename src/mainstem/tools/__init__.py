"""Tool calls as text: how models write them, reading them out of a reply that is still coming, and forcing them.

It knows text, JSON and grammars. It knows nothing of models or HTTP, and of tokens only which ones are marks.
"""

from mainstem.tools.dialect import Dialect
from mainstem.tools.forcing import ToolChoice, json_grammar, reply_grammar
from mainstem.tools.meaning import ReplyMeaning
from mainstem.tools.parser import ReplyParser
from mainstem.tools.segments import Call, Reasoning, Segment, Text
from mainstem.tools.syntax import CallSyntax, recognise

__all__ = [
    "Call",
    "CallSyntax",
    "Dialect",
    "Reasoning",
    "ReplyMeaning",
    "ReplyParser",
    "Segment",
    "Text",
    "ToolChoice",
    "json_grammar",
    "recognise",
    "reply_grammar",
]
