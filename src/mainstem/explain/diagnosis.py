"""From tokens back to texts: what changed where a prompt parts from an earlier one.

It turns a comparison of token sequences into one of requests, which `mainstem.diagnosis` classifies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mainstem.diagnosis import Difference, Prompt, Rendered, compare_rendered, message_of, prompt_of, text_prompt
from mainstem.explain.records import Comparison
from mainstem.tokens import Conversation, Message, Tokenizer
from mainstem.tree import TokenArray

ReadReply = Callable[[Conversation, str], Message]
"""What a reply to a conversation says, given its text."""

_AROUND = 24  # tokens on either side of the first difference


class FirstDifference(NamedTuple):
    """Where a prompt parts from an earlier one.

    Attributes:
        token: the first one that differs, counted from the prompt's beginning.
        earlier, now: the texts from a little before that token on, as the earlier and as the later one go on.
        change: of which class it is, and in which part; None where nothing but the end of the conversation differs.
    """

    token: int
    earlier: str
    now: str
    change: Difference | None


def first_difference(
    tokens: TokenArray,
    conversation: Conversation | None,
    comparison: Comparison,
    tokenizer: Tokenizer,
    read_reply: ReadReply,
) -> FirstDifference | None:
    """Where a request parts from the one it is compared with; None if it has all that the earlier one has.

    Takes milliseconds for each ten thousand tokens. Safe to call from any thread.

    Args:
        tokens: int32[n], the later prompt.
        conversation: that it was rendered from; None for a plain prompt.
        comparison: with the earlier one, whose tokens it has.
        tokenizer: of both.
        read_reply: for what the earlier request was answered.
    """
    theirs, at = comparison.earlier, comparison.common
    if theirs is None or at >= min(len(theirs), len(tokens)):
        return None
    earlier = Rendered(_prompt(theirs, comparison, tokenizer, read_reply), _text(theirs, tokenizer))
    text = _text(tokens, tokenizer)
    prompt = text_prompt(text) if conversation is None else prompt_of(conversation)
    start = max(0, at - _AROUND)
    return FirstDifference(
        token=at,
        earlier=_text(theirs[start : at + _AROUND], tokenizer),
        now=_text(tokens[start : at + _AROUND], tokenizer),
        change=compare_rendered(earlier, Rendered(prompt, text), at=len(_text(tokens[:at], tokenizer))),
    )


def _prompt(theirs: TokenArray, comparison: Comparison, tokenizer: Tokenizer, read_reply: ReadReply) -> Prompt:
    conversation = comparison.conversation
    if conversation is None:
        return text_prompt(_text(theirs, tokenizer))
    reply = tokenizer.decode(theirs[comparison.num_prompt :])
    prompt = prompt_of(conversation)
    return prompt.with_reply(message_of(read_reply(conversation, reply))) if reply else prompt


def _text(tokens: TokenArray, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=False)
