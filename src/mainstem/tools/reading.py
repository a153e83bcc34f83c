"""A whole reply, given as tokens, as the message that a client would make of it."""

from __future__ import annotations

from mainstem.tokens import Conversation, Message, Tokenizer, ToolCall
from mainstem.tokens.tokenizer import TokenArray
from mainstem.tools.dialect import Dialect
from mainstem.tools.parser import ReplyParser
from mainstem.tools.segments import Call, Reasoning, Text


def read_reply(tokenizer: Tokenizer, dialect: Dialect, conversation: Conversation, ids: TokenArray) -> Message:
    """What a reply to a conversation says, thinks and calls.

    Args:
        tokenizer: of the model.
        dialect: of the same.
        conversation: that was replied to; the names of its tools tell calls from text.
        ids: int32[n], the reply.
    """
    stream = tokenizer.stream(continuation=True, spoken=dialect.spoken_token_ids)
    names = {tool.name for tool in conversation.tools}
    parser = ReplyParser(dialect.syntax if names else None, names, reasoning=dialect.reasoning)
    segments = parser.push("".join(map(stream.push, ids.tolist())) + stream.flush()) + parser.flush()
    said = "".join(segment.text for segment in segments if isinstance(segment, Text))
    thought = "".join(segment.text for segment in segments if isinstance(segment, Reasoning))
    calls = [ToolCall("", segment.name, segment.arguments) for segment in segments if isinstance(segment, Call)]
    return Message(role="assistant", parts=(said,) if said else (), reasoning=thought or None, tool_calls=tuple(calls))
