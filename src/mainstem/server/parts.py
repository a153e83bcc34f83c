"""A prompt's parts as ranges of its tokens: tools, messages' fields, what the template put between, the reply.

It knows texts and how tools may be written in them; it knows no template.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator

from mainstem.server.render import TEMPLATE, Piece, pieces, token_ends
from mainstem.tokens import Conversation, Tokenizer
from mainstem.tokens.conversation import Tool
from mainstem.tokens.placed import Places
from mainstem.tree import TokenArray

REPLY = "reply"
PROMPT = "prompt"

Part = tuple[str, int, int]


def parts_of(
    tokens: TokenArray,
    num_prompt: int,
    conversation: Conversation | None,
    tokenizer: Tokenizer,
    places: Places | None = None,
) -> list[Part]:
    """The name of each part, and the tokens that it begins with and ends before; from the first on, without a gap.

    Args:
        tokens: int32[n], a prompt and its reply.
        num_prompt: tokens of the prompt.
        conversation: that was rendered; None for a plain prompt.
        tokenizer: that made the tokens.
        places: where the conversation's texts stand in the caller's request; None for those of Chat Completions.
    """
    found: list[Part] = []
    if conversation is None:
        found.append((PROMPT, 0, min(num_prompt, len(tokens))))
    else:
        ids = tokens[:num_prompt].tolist()
        text = tokenizer.decode(ids, skip_special_tokens=False)
        ends = token_ends(tokenizer, ids, text)
        for piece in _with_tools(conversation, text, places):
            start = found[-1][2] if found else 0
            stop = len(ids) if piece.stop == len(text) else bisect_left(ends, piece.stop + 1)
            if stop > start:
                found.append((piece.source, start, stop))
    if len(tokens) > num_prompt:
        found.append((REPLY, num_prompt, len(tokens)))
    return found


def _with_tools(conversation: Conversation, text: str, places: Places | None) -> Iterator[Piece]:
    """`pieces`, with the tools that the template wrote in its own text."""
    tools = list(_tools(conversation.tools, text))
    for piece in pieces(conversation, text, places):
        if piece.source != TEMPLATE:
            yield piece
            continue
        at = piece.start
        for tool in tools:
            if at <= tool.start and tool.stop <= piece.stop:
                if at < tool.start:
                    yield Piece(TEMPLATE, at, tool.start)
                yield tool
                at = tool.stop
        if at < piece.stop:
            yield Piece(TEMPLATE, at, piece.stop)


def _tools(tools: tuple[Tool, ...], text: str) -> Iterator[Piece]:
    at = 0
    for i, tool in enumerate(tools):
        definition = tool.definition()
        for value in (definition, definition["function"]):
            for indent in (None, 4, 2):
                written = json.dumps(value, ensure_ascii=False, indent=indent)
                found = text.find(written, at)
                if found >= 0:
                    break
            else:
                continue
            at = found + len(written)
            yield Piece(f"tools[{i}]", found, at)
            break
