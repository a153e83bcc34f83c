"""From tokens back to texts: what changed where a prompt parts from an earlier one.

It turns a comparison of token sequences into one of requests, which `mainstem.diagnosis` classifies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mainstem.diagnosis import Difference, Prompt, Rendered, compare_rendered, message_of, prompt_of, text_prompt
from mainstem.explain.records import Comparison
from mainstem.tokens.conversation import Conversation, Message
from mainstem.tokens.placed import Places
from mainstem.tree import TokenArray

Decode = Callable[[TokenArray], str]
"""The text of tokens, special ones included."""
ReadReply = Callable[[Conversation, TokenArray], Message]
"""What a reply to a conversation says, given its tokens."""

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
    decode: Decode,
    read_reply: ReadReply,
    *,
    places: Places | None = None,
    canonical_tools: bool = False,
) -> FirstDifference | None:
    """Where a request parts from the one it is compared with; None if it has all that the earlier one has.

    Takes milliseconds for each ten thousand tokens. Safe to call from any thread.

    Args:
        tokens: int32[n], the later prompt.
        conversation: that it was rendered from; None for a plain prompt.
        comparison: with the earlier one, whose tokens it has.
        decode: for both.
        read_reply: for what the earlier request was answered.
        places: where the later request's texts stand in its body; None for those of Chat Completions.
        canonical_tools: the order of keys in tools' schemas does not matter.
    """
    theirs, at = comparison.earlier, comparison.common
    if theirs is None or at >= min(len(theirs), len(tokens)):
        return None
    earlier = Rendered(_prompt(theirs, comparison, decode, read_reply), decode(theirs))
    text = decode(tokens)
    prompt = text_prompt(text) if conversation is None else prompt_of(conversation, places)
    start = max(0, at - _AROUND)
    return FirstDifference(
        token=at,
        earlier=decode(theirs[start : at + _AROUND]),
        now=decode(tokens[start : at + _AROUND]),
        change=compare_rendered(
            earlier, Rendered(prompt, text), at=len(decode(tokens[:at])), canonical_tools=canonical_tools
        ),
    )


def _prompt(theirs: TokenArray, comparison: Comparison, decode: Decode, read_reply: ReadReply) -> Prompt:
    conversation = comparison.conversation
    if conversation is None:
        return text_prompt(decode(theirs))
    reply = theirs[comparison.num_prompt :]
    prompt = prompt_of(conversation, comparison.places)
    return prompt.with_reply(message_of(read_reply(conversation, reply))) if len(reply) else prompt
