"""The exact token ids of what was said before: no history is tokenized twice, nor otherwise than it was generated.

A model's reply is tokens; clients send it back as text, which a tokenizer may cut otherwise. This remembers, in a
bounded memory, the ids of each reply and of each part of the prompts before it. A prompt that begins with known parts
takes their ids, and only what is new is tokenized. A reply that comes back is recognised

- by its text as the client was shown it, which may lack marks that the model wrote;
- by its meaning, where the rendered form differs in white space or in the spelling of a tool call;
- by its beginning, where it was cut or edited. What follows the change is tokenized.

In the first two cases the text that was generated is the prompt's. The ids of a prompt always spell its text.
Namespaces have nothing in common: what one was told is of no use to another. When something must be forgotten, it is of
the tenant that has most: nobody's history is pushed out by another's. It knows tokens and texts; what makes two
replies equal is the caller's business, and so is where replies come from.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

from mainstem.owned import Owned
from mainstem.tokens.conversation import TENANT_PARTS
from mainstem.tokens.known_prompt import KnownPrompt, Part, Piece
from mainstem.tokens.matching import (
    ENTRY_BYTES,
    WAYS,
    Candidate,
    Kept,
    Meaning,
    Opening,
    Reply,
    common_length,
    tokens_within,
)
from mainstem.tokens.seams import Seams
from mainstem.tokens.tokenizer import TokenArray, Tokenizer
from mainstem.tokens.trails import LOOK_AFTER, MAX_TRAILS, SHORTEST, Trail, longest

# Ends of prompts that are looked at after one history; templates write one, or a few.
MAX_OPENINGS = 16
_NOTHING: TokenArray = np.empty(0, np.int32)


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
        trails: long histories in one piece that begin with this one.
        trail: this history in one piece.
    """

    parent: _Node | None
    part: Part
    namespace: tuple[Hashable, ...] = ()
    children: dict[str, _Node] = field(default_factory=dict)
    openings: OrderedDict[str, Opening] = field(default_factory=OrderedDict)
    trails: list[Trail] = field(default_factory=list)
    trail: Trail | None = None

    @property
    def size(self) -> int:
        own = 0 if self.part.text is self.part.rendered else len(self.part.text)
        return ENTRY_BYTES + len(self.part.rendered) + own + self.part.ids.nbytes


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
        # What hangs on a node is used before it, so of each owner the first entry is always a leaf.
        self._entries: Owned[_Node | Reply] = Owned()
        self._prompts = self._known_tokens = self._new_tokens = 0

    def stats(self) -> HistoryStats:
        """Sizes and counts so far."""
        with self._lock:
            entries = self._entries
            return HistoryStats(len(entries), entries.size, self._prompts, self._known_tokens, self._new_tokens)

    def encode(self, text: str, *, namespace: tuple[Hashable, ...] = (), meaning: Meaning | None = None) -> KnownPrompt:
        """Ids of a prompt: those that are known, and those of what is new.

        Args:
            text: the rendered prompt.
            namespace: whose history is used.
            meaning: tells replies that say the same; None to go by their text alone.

        Raises:
            InvalidRequest: when a text is not valid Unicode.
        """
        with self._lock:
            used, rest, trail = self._known(text, namespace, meaning)
        new = [] if rest is None else self._seams.cut(rest)
        encoded = self._seams.encode(new, at_start=not used)
        used += [Part.of(part, ids, "new") for part, ids in zip(new, encoded, strict=True)]
        after = used if trail is None else used[len(trail.parts) :]
        ids = np.concatenate([*([] if trail is None else [trail.ids]), *[part.ids for part in after]])
        whole = "".join([*([] if trail is None else [trail.text]), *[part.text for part in after]])
        prompt = KnownPrompt(ids, whole, namespace, tuple(used[:-1]), used[-1], text, trail)
        tokenized = sum([part.tokenized for part in after])
        with self._lock:
            self._prompts += 1
            self._new_tokens += tokenized
            self._known_tokens += len(ids) - tokenized
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
        count = tokens_within(shown.ends, common_length(shown.text, text))
        if count < len(generated):
            end_id = None
        with self._lock:
            node = self._settle(prompt)
            if count:
                kept = np.array(generated[:count], np.int32)
                said = self._tokenizer.spell(kept).text
                ends = shown.ends[:count].copy()
                reply = Reply(node.openings, prompt.opening.rendered, text, kept, ends, said, end_id)
                self._add(reply, prompt.opening, prompt.namespace)
            self._touch(node)
            while len(self._entries) > self._max_entries or self._entries.size > self._max_bytes:
                self._drop(self._entries.first(by_size=self._entries.size > self._max_bytes))

    # -- looking up ---------------------------------------------------------------------------------------------------

    def _known(
        self, text: str, namespace: tuple[Hashable, ...], meaning: Meaning | None
    ) -> tuple[list[Part], str | None, Trail | None]:
        """The parts that are known, from the first on, and the text after them, which is None if the last part is
        known too; and what the first of them were known by, if it was in one piece.
        """
        used: list[Part] = []
        node = self._roots.get(namespace)
        if node is None:
            return used, text, None
        at = 0
        trail: Trail | None = None
        while (child := self._next(node, text, at)) is not None:
            used.append(child.part)
            at += len(child.part.rendered)
            node = child
            if node.trails and (trail := longest(node.trails, text)) is not None:
                used, at, node = list(trail.parts), len(trail.rendered), trail.node
        end = self._seams.find_end(text, at)
        stop = len(text) if end is None else end.stop
        replied = self._replied(node, text[at:stop], meaning)
        if trail is None:  # long histories count as used once they are replied to: it takes a step a part
            self._touch(node)
        if replied is None:
            return used, text[at:], trail
        return [*used, replied], None if end is None else text[stop:], trail

    def _next(self, node: _Node, text: str, at: int) -> _Node | None:
        """What is known of the part of a text that begins at a place."""
        if len(node.children) == 1:
            # Comparing is faster than hashing, and most histories went on in one way only.
            (child,) = node.children.values()
            return child if text.startswith(child.part.rendered, at) else None
        end = self._seams.find_end(text, at) if node.children else None
        return None if end is None else node.children.get(text[at : end.stop])

    def _replied(self, node: _Node, part: str, meaning: Meaning | None) -> Part | None:
        """A part that has a reply in it, with the ids that were generated; None if there is none that is known."""
        candidates = []
        for opening in islice(reversed(node.openings.values()), MAX_OPENINGS):
            start = len(opening.part.rendered)
            if len(part) > start and part.startswith(opening.part.rendered):
                end = self._seams.find_end(part, start)
                body = part[start : end.start if end else len(part)]
                candidates.append(Candidate(opening, body, meaning, ended=end is not None))
        for find in WAYS:
            for candidate in candidates:
                kept = find(candidate, self._tokenizer)
                replied = None if kept is None else self._assemble(part, candidate, kept)
                if kept is not None and replied is not None:
                    self._entries.use(kept.reply)
                    return replied
        return None

    def _assemble(self, part: str, candidate: Candidate, kept: Kept) -> Part | None:
        """The part with the reply's own ids in it; None if the text after them has no ids that spell it."""
        opening = candidate.opening.part
        stop = len(opening.rendered) + len(candidate.body)
        end, tail, more = self._seams.find_end(part, stop), part[stop:], kept.rest + part[stop:]
        own, ended = kept.ids, 0
        if kept.rest:
            new = self._seams.encode_exactly(more)
            if new is None:
                return None
        else:
            if end is not None and end.token_id == kept.reply.end_id:
                own = np.append(own, np.int32(end.token_id))
                ended = end.stop - stop
            (new,) = self._seams.encode([tail[ended:]], at_start=False) if tail[ended:] else (_NOTHING,)
        pieces = (
            Piece("known", len(opening.text), len(opening.ids)),
            Piece("generated", len(kept.text) + ended, len(own)),
            Piece("new", len(more) - ended, len(new)),
        )
        return Part(part, opening.text + kept.text + more, np.concatenate([opening.ids, own, new]), pieces)

    # -- keeping ------------------------------------------------------------------------------------------------------

    def _settle(self, prompt: KnownPrompt) -> _Node:
        """Keep the parts before a prompt's opening; returns where they end."""
        trail = prompt.trail if prompt.trail is not None and prompt.trail.node in self._entries else None
        node: _Node = self._root(prompt.namespace) if trail is None else trail.node
        parts = [] if trail is None else list(trail.parts)
        start = None if trail is None else trail.start
        same = True
        for part in prompt.settled[len(parts) :]:
            node = self._child(node, part, prompt.namespace)
            same = same and node.part.ids is part.ids
            parts.append(node.part)
            start = node if len(parts) == LOOK_AFTER else start
        if same and start is not None and len(parts) >= SHORTEST and node.trail is None:
            self._put_together(prompt, start, node, tuple(parts))
        return node

    def _put_together(self, prompt: KnownPrompt, start: _Node, node: _Node, parts: tuple[Part, ...]) -> None:
        opening = prompt.opening
        rendered = prompt.rendered[: len(prompt.rendered) - len(opening.rendered)]
        text = prompt.text[: len(prompt.text) - len(opening.text)]
        ids = prompt.ids[: len(prompt.ids) - len(opening.ids)]
        trail = Trail(start, node, rendered, rendered if text == rendered else text, ids, parts)
        if prompt.trail in start.trails:
            self._part(prompt.trail)
        elif len(start.trails) == MAX_TRAILS:
            self._part(start.trails[0])
        start.trails.append(trail)
        node.trail = trail
        self._entries.resize(node, trail.size)

    def _part(self, trail: Trail) -> None:
        """Keep a history no longer in one piece."""
        trail.start.trails.remove(trail)
        trail.node.trail = None
        self._entries.resize(trail.node, -trail.size)

    def _root(self, namespace: tuple[Hashable, ...]) -> _Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = _Node(None, Part.of("", _NOTHING, "known"), namespace)
            self._note(root, namespace)
        return root

    def _child(self, node: _Node, part: Part, namespace: tuple[Hashable, ...]) -> _Node:
        child = node.children.get(part.rendered)
        if child is None:
            child = node.children[part.rendered] = _Node(node, part.settled())
            self._note(child, namespace)
        return child

    def _add(self, reply: Reply, opening: Part, namespace: tuple[Hashable, ...]) -> None:
        openings = reply.openings
        replies = openings.setdefault(reply.opening, Opening(opening, OrderedDict())).replies
        openings.move_to_end(reply.opening)
        if reply.shown in replies:
            # The latest tokens of a text are the ones most likely to be cached.
            self._drop(replies[reply.shown])
            openings[reply.opening] = Opening(opening, replies)
        replies[reply.shown] = reply
        self._note(reply, namespace)

    def _note(self, entry: _Node | Reply, namespace: tuple[Hashable, ...]) -> None:
        self._entries.add(entry, namespace[:TENANT_PARTS], entry.size)

    def _touch(self, node: _Node | None) -> None:
        """Count a history as used: what hangs on it first."""
        while node is not None:
            self._entries.use(node)
            node = node.parent

    def _drop(self, entry: _Node | Reply) -> None:
        self._entries.remove(entry)
        if isinstance(entry, _Node) and entry.trail is not None:
            entry.trail.start.trails.remove(entry.trail)
        if isinstance(entry, Reply):
            openings = entry.openings
            replies = openings[entry.opening].replies
            del replies[entry.shown]
            if not replies:
                del openings[entry.opening]
        elif entry.parent is not None:
            del entry.parent.children[entry.part.rendered]
        else:
            del self._roots[entry.namespace]
