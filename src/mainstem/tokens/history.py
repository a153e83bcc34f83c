"""The exact token ids of what was said before: no history is tokenized twice, nor otherwise than it was generated.

A model's reply is tokens; clients send it back as text, which a tokenizer may cut otherwise. This remembers, in a
bounded memory, the ids of each reply and of each part of the prompts before it. A prompt that begins with known parts
takes their ids, and only what is new is tokenized. A reply that comes back is recognised

- by its text as the client was shown it, which may lack marks that the model wrote;
- by its meaning, where the rendered form differs in white space or in the spelling of a tool call;
- by its beginning, where it was cut or edited. What follows the change is tokenized.

In the first two cases the text that was generated is the prompt's. The ids of a prompt always spell its text.
Namespaces have nothing in common: what one was told is of no use to another. It knows tokens and texts; what makes two
replies equal is the caller's business, and so is where replies come from.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from mainstem.tokens.seams import Seams
from mainstem.tokens.tokenizer import TokenArray, Tokenizer

Meaning: TypeAlias = Callable[[str, str], Hashable]
"""What a reply says, given the end of its prompt and its text; replies that say the same have equal ones."""

Origin: TypeAlias = Literal["generated", "known", "new"]

# Replies that are looked at where the text of none is just that of the message; the latest first.
MAX_COMPARED = 16
# Ends of prompts that are looked at after one history; templates write one, or a few.
MAX_OPENINGS = 16
_NOTHING: TokenArray = np.empty(0, np.int32)
# About what Python needs for an entry, beside its texts and ids.
ENTRY_BYTES = 600


class Span(NamedTuple):
    """A stretch of a prompt.

    Attributes:
        origin: `generated` has ids that the model generated, in a reply that came back (and the marks around it);
            `known` has those of an earlier prompt; `new` was tokenized for this one.
        start, stop: characters of the prompt's text.
        first, end: tokens, as a range.
    """

    origin: Origin
    start: int
    stop: int
    first: int
    end: int


class _Part(NamedTuple):
    """A part of a prompt: as the template writes it, as it is used, and its ids."""

    rendered: str
    text: str
    ids: TokenArray
    origin: Origin


@dataclass(frozen=True, slots=True)
class KnownPrompt:
    """A prompt's text and ids, and where they are from. `TokenHistory.remember` takes it with the reply.

    Attributes:
        ids: int32[n].
        text: what they spell, which differs from the rendered text where a reply's own spelling was kept.
        namespace: whose history it used.
        settled, opening: its parts; the last one is where the reply begins.
    """

    ids: TokenArray
    text: str
    namespace: tuple[Hashable, ...]
    settled: tuple[_Part, ...]
    opening: _Part

    @property
    def spans(self) -> tuple[Span, ...]:
        """The prompt from its beginning to its end, in stretches of one origin."""
        spans: list[Span] = []
        at = token = 0
        for part in (*self.settled, self.opening):
            stop, end = at + len(part.text), token + len(part.ids)
            if spans and spans[-1].origin == part.origin != "generated":
                spans[-1] = spans[-1]._replace(stop=stop, end=end)
            elif part.text:
                spans.append(Span(part.origin, at, stop, token, end))
            at, token = stop, end
        return tuple(spans)

    @property
    def tokenized(self) -> int:
        """How many of the tokens were made for this prompt."""
        return sum(len(part.ids) for part in (*self.settled, self.opening) if part.origin == "new")


class HistoryStats(NamedTuple):
    """What is remembered, and what came of it; all but the first two count since the start.

    Attributes:
        entries: parts of prompts and replies.
        bytes: that they take, about.
        prompts: that were encoded.
        known_tokens: of these prompts, with ids that were known.
        new_tokens: of these prompts, that were tokenized.
    """

    entries: int
    bytes: int
    prompts: int
    known_tokens: int
    new_tokens: int


@dataclass(slots=True, eq=False)
class _Node:
    """What is known after a history: the part that it ends with, what came next, and what was replied to it.

    Attributes:
        parent: the history before that part; None at a namespace's root.
        namespace: whose root it is, if it is one.
        openings: what the prompts wrote after this history before the reply began, with the replies by their text.
    """

    parent: _Node | None
    part: _Part
    namespace: tuple[Hashable, ...] = ()
    children: dict[str, _Node] = field(default_factory=dict)
    openings: OrderedDict[str, _Opening] = field(default_factory=OrderedDict)

    @property
    def size(self) -> int:
        own = 0 if self.part.text is self.part.rendered else len(self.part.text)
        return ENTRY_BYTES + len(self.part.rendered) + own + self.part.ids.nbytes


class _Opening(NamedTuple):
    part: _Part
    replies: OrderedDict[str, _Reply]


@dataclass(slots=True, eq=False)
class _Reply:
    """A reply, as far as its tokens spell what the client was shown.

    Attributes:
        node, opening: where it is kept.
        shown: its text.
        ids: of the tokens that spell its beginning.
        ends: how many characters of what was shown the tokens up to and with each make; -1 within a character.
        text: what the tokens spell, with marks that were not shown.
        end_id: the end of turn that the model generated; None if the reply stopped otherwise.
        meaning: None as long as nobody asked.
    """

    node: _Node
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


class _Kept(NamedTuple):
    """How much of a reply is in a message: its ids, the text they spell, and what of the message comes after."""

    reply: _Reply
    ids: TokenArray
    text: str
    rest: str


class _Candidate(NamedTuple):
    """A message that may be a reply: the end of the prompt that it would be to, replies to that, and what it says."""

    opening: _Opening
    body: str
    meaning: Meaning | None


class TokenHistory:
    """Remembers conversations of one tokenizer. Safe to use from several threads.

    Args:
        tokenizer: of the model.
        max_entries: parts of prompts and replies that are kept; 0 remembers nothing.
        max_bytes: that they may take, about.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_entries: int, max_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._seams = Seams(tokenizer)
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._roots: dict[tuple[Hashable, ...], _Node] = {}
        # The least recently used first. What hangs on a node is used before it, so the first entry is always a leaf.
        self._entries: OrderedDict[_Node | _Reply, int] = OrderedDict()
        self._bytes = 0
        self._prompts = self._known_tokens = self._new_tokens = 0

    def stats(self) -> HistoryStats:
        """Sizes and counts so far."""
        with self._lock:
            return HistoryStats(len(self._entries), self._bytes, self._prompts, self._known_tokens, self._new_tokens)

    def cut(self, text: str) -> list[str]:
        """A rendered prompt in the parts that `encode` takes."""
        return self._seams.cut(text)

    def encode(
        self, parts: Sequence[str], *, namespace: tuple[Hashable, ...] = (), meaning: Meaning | None = None
    ) -> KnownPrompt:
        """Ids of a prompt: those that are known, and those of what is new.

        Args:
            parts: the rendered prompt as `cut` cuts it.
            namespace: whose history is used.
            meaning: tells replies that say the same; None to go by their text alone.

        Raises:
            InvalidRequest: when a text is not valid Unicode.
        """
        with self._lock:
            used = list(self._known(parts, namespace, meaning))
        new = parts[len(used) :]
        encoded = self._seams.encode(new, at_start=not used)
        used += [_Part(part, part, ids, "new") for part, ids in zip(new, encoded, strict=True)]
        ids = np.concatenate([part.ids for part in used])
        prompt = KnownPrompt(ids, "".join([part.text for part in used]), namespace, tuple(used[:-1]), used[-1])
        with self._lock:
            self._prompts += 1
            self._new_tokens += prompt.tokenized
            self._known_tokens += len(ids) - prompt.tokenized
        return prompt

    def remember(self, prompt: KnownPrompt, ids: Iterable[int], text: str) -> None:
        """Keep what was generated.

        Args:
            prompt: what it was a reply to.
            ids: every generated token, whatever ended the reply.
            text: as the caller was shown it.
        """
        if self._max_entries == 0:
            return
        generated = list(ids)
        end_id = generated.pop() if generated and generated[-1] in self._seams.end_ids else None
        shown = self._tokenizer.spell(generated, shown=text)
        count = _tokens_within(shown.ends, _common(shown.text, text))
        if count < len(generated):
            end_id = None
        with self._lock:
            node = self._root(prompt.namespace)
            for part in prompt.settled:
                node = self._child(node, part)
            if count:
                kept = np.array(generated[:count], np.int32)
                said = self._tokenizer.spell(kept).text
                ends = shown.ends[:count].copy()
                self._add(_Reply(node, prompt.opening.rendered, text, kept, ends, said, end_id), prompt.opening)
            self._touch(node)
            while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
                self._drop(next(iter(self._entries)))

    # -- looking up ---------------------------------------------------------------------------------------------------

    def _known(self, parts: Sequence[str], namespace: tuple[Hashable, ...], meaning: Meaning | None) -> Iterator[_Part]:
        """The parts that are known, from the first on."""
        node = self._roots.get(namespace)
        if node is None:
            return
        for part in parts[:-1]:
            child = node.children.get(part)
            if child is None:
                break
            yield child.part
            node = child
        else:
            part = parts[-1]
        replied = self._replied(node, part, meaning)
        if replied is not None:
            yield replied
        self._touch(node)

    def _replied(self, node: _Node, part: str, meaning: Meaning | None) -> _Part | None:
        """A part that has a reply in it, with the ids that were generated; None if there is none that is known."""
        candidates = []
        for opening in islice(reversed(node.openings.values()), MAX_OPENINGS):
            start = len(opening.part.rendered)
            if len(part) > start and part.startswith(opening.part.rendered):
                end = self._seams.find_end(part, start)
                candidates.append(_Candidate(opening, part[start : end.start if end else len(part)], meaning))
        for find in (_same_text, _cut, _same_meaning, _edited):
            for candidate in candidates:
                kept = find(candidate, self._tokenizer)
                replied = None if kept is None else self._assemble(part, candidate, kept)
                if kept is not None and replied is not None:
                    self._entries.move_to_end(kept.reply)
                    return replied
        return None

    def _assemble(self, part: str, candidate: _Candidate, kept: _Kept) -> _Part | None:
        """The part with the reply's own ids in it; None if the text after them has no ids that spell it."""
        opening = candidate.opening.part
        stop = len(opening.rendered) + len(candidate.body)
        end, tail, ids = self._seams.find_end(part, stop), part[stop:], [opening.ids, kept.ids]
        if kept.rest:
            exact = self._seams.encode_exactly(kept.rest + tail)
            if exact is None:
                return None
            ids.append(exact)
        elif end is not None and end.token_id == kept.reply.end_id:
            ids.append(np.array([end.token_id], np.int32))
            ids += self._seams.encode([part[end.stop :]] if end.stop < len(part) else [], at_start=False)
        else:
            ids += self._seams.encode([tail] if tail else [], at_start=False)
        text = opening.text + kept.text + kept.rest + tail
        return _Part(part, text, np.concatenate(ids), "generated")

    # -- keeping ------------------------------------------------------------------------------------------------------

    def _root(self, namespace: tuple[Hashable, ...]) -> _Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = _Node(None, _Part("", "", _NOTHING, "known"), namespace)
            self._note(root)
        return root

    def _child(self, node: _Node, part: _Part) -> _Node:
        child = node.children.get(part.rendered)
        if child is None:
            # A new part of this prompt is a known one of the next.
            kept = part._replace(origin="known") if part.origin == "new" else part
            child = node.children[part.rendered] = _Node(node, kept)
            self._note(child)
        return child

    def _add(self, reply: _Reply, opening: _Part) -> None:
        openings = reply.node.openings
        replies = openings.setdefault(reply.opening, _Opening(opening, OrderedDict())).replies
        openings.move_to_end(reply.opening)
        if reply.shown in replies:
            # The latest tokens of a text are the ones most likely to be cached.
            self._drop(replies[reply.shown])
            openings[reply.opening] = _Opening(opening, replies)
        replies[reply.shown] = reply
        self._note(reply)

    def _note(self, entry: _Node | _Reply) -> None:
        self._entries[entry] = entry.size
        self._bytes += entry.size

    def _touch(self, node: _Node | None) -> None:
        """Count a history as used: what hangs on it first."""
        while node is not None:
            self._entries.move_to_end(node)
            node = node.parent

    def _drop(self, entry: _Node | _Reply) -> None:
        self._bytes -= self._entries.pop(entry)
        if isinstance(entry, _Reply):
            openings = entry.node.openings
            replies = openings[entry.opening].replies
            del replies[entry.shown]
            if not replies:
                del openings[entry.opening]
        elif entry.parent is not None:
            del entry.parent.children[entry.part.rendered]
        else:
            del self._roots[entry.namespace]


# -- ways in which a message is a reply -------------------------------------------------------------------------------


def _same_text(candidate: _Candidate, _: Tokenizer) -> _Kept | None:
    reply = candidate.opening.replies.get(candidate.body)
    return None if reply is None else _whole(reply)


def _cut(candidate: _Candidate, tokenizer: Tokenizer) -> _Kept | None:
    """The beginning of a reply, and nothing else."""
    common, reply = _closest(candidate)
    return _beginning(reply, common, candidate.body, tokenizer) if common == len(candidate.body) else None


def _same_meaning(candidate: _Candidate, _: Tokenizer) -> _Kept | None:
    if candidate.meaning is None or not candidate.opening.replies:
        return None
    opening = candidate.opening.part.text
    meant = candidate.meaning(opening, candidate.body)
    for reply in islice(reversed(candidate.opening.replies.values()), MAX_COMPARED):
        if reply.meaning is None:
            reply.meaning = candidate.meaning(opening, reply.shown)
        if meant is not None and reply.meaning == meant:
            return _whole(reply)
    return None


def _edited(candidate: _Candidate, tokenizer: Tokenizer) -> _Kept | None:
    """The beginning of a reply, up to the end of a word: what comes after it is tokenized, in words that are whole."""
    body = candidate.body
    common, reply = _closest(candidate)
    while common and not body[common : common + 1].isspace():
        common -= 1
    return _beginning(reply, common, body, tokenizer)


def _closest(candidate: _Candidate) -> tuple[int, _Reply | None]:
    """The reply that has most in common with a message, of the latest, and how many characters that are."""
    latest = islice(reversed(candidate.opening.replies.values()), MAX_COMPARED)
    return max(((_common(reply.shown, candidate.body), reply) for reply in latest), key=_first, default=(0, None))


def _beginning(reply: _Reply | None, length: int, body: str, tokenizer: Tokenizer) -> _Kept | None:
    """As many of a reply's tokens as make no more than so many characters of a message; None if that is none."""
    count = 0 if reply is None else _tokens_within(reply.ends, length)
    if reply is None or not count:
        return None
    ids = reply.ids[:count]
    stop = int(reply.ends[count - 1])
    return _Kept(reply, ids, tokenizer.spell(ids).text, body[stop:])


def _whole(reply: _Reply) -> _Kept:
    return _Kept(reply, reply.ids, reply.text, reply.shown[int(reply.ends[-1]) :])


def _first(pair: tuple[int, _Reply]) -> int:
    return pair[0]


def _tokens_within(ends: TokenArray, length: int) -> int:
    """How many of the first tokens spell no more than so many characters, and stop between two."""
    within = np.flatnonzero((ends >= 0) & (ends <= length))
    return int(within[-1]) + 1 if len(within) else 0


def _common(a: str, b: str) -> int:
    """How many characters two texts have in common at their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
