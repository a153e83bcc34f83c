"""Whether a message is a reply that is remembered: by its text, its beginning, or its meaning.

Ids of such a message are those that were generated, as far as it goes. It knows replies and texts; it knows nothing of
prompts, and what makes two replies equal in meaning is the caller's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias

import numpy as np

from mainstem.tokens.known_prompt import Part
from mainstem.tokens.tokenizer import TokenArray, Tokenizer

Meaning: TypeAlias = Callable[[str, str], Hashable]
"""What a reply says, given the end of its prompt and its text; replies that say the same have equal ones."""

# Replies that are looked at where the text of none is just that of the message; the latest first.
MAX_COMPARED = 16
# About what Python needs for an entry of a history, beside its texts and ids.
ENTRY_BYTES = 600


class Opening(NamedTuple):
    """The end of a prompt, where a reply begins, and the replies to it by their text, the latest last."""

    part: Part
    replies: OrderedDict[str, Reply]


@dataclass(slots=True, eq=False)
class Reply:
    """A reply, as far as its tokens spell what the client was shown.

    Attributes:
        openings, opening: where it is kept: in which openings of a history, under which text.
        shown: its text.
        ids: of the tokens that spell its beginning.
        ends: how many characters of what was shown the tokens up to and with each make; -1 within a character.
        text: what the tokens spell, with marks that were not shown.
        end_id: the end of turn that the model generated; None if the reply stopped otherwise.
        meaning: None as long as nobody asked.
    """

    openings: OrderedDict[str, Opening]
    opening: str
    shown: str
    ids: TokenArray
    ends: TokenArray
    text: str
    end_id: int | None
    meaning: Hashable = None

    @property
    def size(self) -> int:
        return ENTRY_BYTES + len(self.opening) + len(self.shown) + len(self.text) + self.ids.nbytes + self.ends.nbytes


class Kept(NamedTuple):
    """How much of a reply is in a message: its ids, the text they spell, and what of the message comes after."""

    reply: Reply
    ids: TokenArray
    text: str
    rest: str


class Candidate(NamedTuple):
    """A message that may be a reply: the end of the prompt that it would be to, replies to that, and what it says.

    One that has not `ended` is to be continued, so that each of its characters counts.
    """

    opening: Opening
    body: str
    meaning: Meaning | None
    ended: bool


def _same_text(candidate: Candidate, _: Tokenizer) -> Kept | None:
    reply = candidate.opening.replies.get(candidate.body)
    return None if reply is None else _whole(reply)


def _cut(candidate: Candidate, tokenizer: Tokenizer) -> Kept | None:
    """The beginning of a reply, and nothing else."""
    common, reply = _closest(candidate)
    return _beginning(reply, common, candidate.body, tokenizer) if common == len(candidate.body) else None


def _same_meaning(candidate: Candidate, _: Tokenizer) -> Kept | None:
    if candidate.meaning is None or not candidate.ended or not candidate.opening.replies:
        return None
    opening = candidate.opening.part.text
    meant = candidate.meaning(opening, candidate.body)
    for reply in islice(reversed(candidate.opening.replies.values()), MAX_COMPARED):
        if reply.meaning is None:
            reply.meaning = candidate.meaning(opening, reply.shown)
        if meant is not None and reply.meaning == meant and not _adds_space(candidate.body, reply.shown):
            return _whole(reply)
    return None


def _adds_space(body: str, shown: str) -> bool:
    """Whether a message has white space around it that the reply did not have: then its text is another.

    Clients and templates strip replies, which says nothing; and some templates write a space before them.
    """
    before, after = _space_around(body)
    shown_before, shown_after = _space_around(shown)
    return not (before == " " or shown_before.endswith(before)) or not shown_after.startswith(after)


def _space_around(text: str) -> tuple[str, str]:
    stripped = text.lstrip()
    return text[: len(text) - len(stripped)], stripped[len(stripped.rstrip()) :]


def _edited(candidate: Candidate, tokenizer: Tokenizer) -> Kept | None:
    """The beginning of a reply, up to the end of a word: what comes after it is tokenized, in words that are whole."""
    body = candidate.body
    common, reply = _closest(candidate)
    while common and not body[common : common + 1].isspace():
        common -= 1
    return _beginning(reply, common, body, tokenizer)


def _closest(candidate: Candidate) -> tuple[int, Reply | None]:
    """The reply that has most in common with a message, of the latest, and how many characters that are."""
    latest = islice(reversed(candidate.opening.replies.values()), MAX_COMPARED)
    return max(((common_length(reply.shown, candidate.body), reply) for reply in latest), key=_first, default=(0, None))


def _beginning(reply: Reply | None, length: int, body: str, tokenizer: Tokenizer) -> Kept | None:
    """As many of a reply's tokens as make no more than so many characters of a message; None if that is none."""
    count = 0 if reply is None else tokens_within(reply.ends, length)
    if reply is None or not count:
        return None
    ids = reply.ids[:count]
    stop = int(reply.ends[count - 1])
    return Kept(reply, ids, tokenizer.spell(ids).text, body[stop:])


def _whole(reply: Reply) -> Kept:
    return Kept(reply, reply.ids, reply.text, reply.shown[int(reply.ends[-1]) :])


def _first(pair: tuple[int, Reply]) -> int:
    return pair[0]


def tokens_within(ends: TokenArray, length: int) -> int:
    """How many of the first tokens spell no more than so many characters, and stop between two."""
    within = np.flatnonzero((ends >= 0) & (ends <= length))
    return int(within[-1]) + 1 if len(within) else 0


def common_length(a: str, b: str) -> int:
    """How many characters two texts have in common at their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# The likeliest first.
WAYS = (_same_text, _cut, _same_meaning, _edited)
