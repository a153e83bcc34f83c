"""Finds what breaks the prefixes of an agent's prompts, from recorded requests, before a server has to.

    lint_conversations(read([Path("requests.jsonl")]).conversations, Sizes(estimate))

It knows requests and texts; of models only how a text is counted in tokens. No engine, no HTTP.
"""

from mainstem.lint.conversations import Conversation, Place, Request, group
from mainstem.lint.findings import Finding, Level, LintResult, Occurrence, Scope, lint_conversations
from mainstem.lint.reading import ReadResult, read
from mainstem.lint.sizes import Sizes

__all__ = [
    "Conversation",
    "Finding",
    "Level",
    "LintResult",
    "Occurrence",
    "Place",
    "ReadResult",
    "Request",
    "Scope",
    "Sizes",
    "group",
    "lint_conversations",
    "read",
]
