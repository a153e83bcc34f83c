"""Notes for each request, as it is admitted, which of its tokens were not cached, and why: one cause for each.

The causes are asked for in this order, each where the one before it ends:

1. another running request is computing the tokens, or holds them until its end;
2. the cache's ghosts have them: evicted, expired, reset;
3. they are known, but only whole pages are matched, and the last token must be computed for its logits.

What is left nobody has computed behind this beginning. Of this, stretches that the closest earlier request has too are
there again only because something before them changed: they diverged. The rest is seen for the first time. That is what
the caller is told. An operator is told the same, but for what is seen for the first time here and cached in another
namespace.

It observes a scheduler from within the engine's thread and changes nothing. It knows no text.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mainstem.explain.causes import MissCause
from mainstem.explain.overlap import Fingerprint, fingerprint, shared_with
from mainstem.explain.records import Comparison, Miss, Origin, Record
from mainstem.explain.sequences import Found, Sequences
from mainstem.explain.texts import size_of, size_of_places
from mainstem.owned import Owned
from mainstem.scheduler import Request, SchedulerOutput
from mainstem.scheduler.observer import SchedulerObserver
from mainstem.tree import (
    EvictionReason,
    Namespace,
    NoPrefixCache,
    PrefixCache,
    TokenArray,
    common_length,
    namespace_key,
)
from mainstem.tree.ghosts import Fate, ghosts_of
from mainstem.tree.keys import NamespaceKey

# Distinct tokens of all records together, and of the ghosts; four bytes each.
MAX_TOKENS = 4_000_000
# Of all conversations that records keep together, and of their places, about.
MAX_TEXT_BYTES = 128 * 2**20
# What left a pool longer ago than it takes to fill it so many times is forgotten.
GHOSTS_PER_SLOT = 8
# Most requests of a session, or with a key, that a new one is compared with.
PEERS = 4
# Most records whose comparisons keep the earlier request's tokens.
FULL_COMPARISONS = 32
_GONE = {EvictionReason.EXPIRED: MissCause.EXPIRED, EvictionReason.RESET: MissCause.RESET}


class _Search:
    """How far the causes of a request's uncached tokens are known.

    Args:
        request: that was admitted.
        tokens: int32[n], its prompt.
        page: tokens in a page.

    Attributes:
        misses: found so far, without a gap.
        at: where the next one begins.
    """

    def __init__(self, request: Request, tokens: TokenArray, page: int) -> None:
        self.request = request
        self.tokens = tokens
        self.misses: list[Miss] = []
        self.at = self._known = request.num_cached
        self._page = page
        self._limit = request.num_reusable - request.num_reusable % page

    @property
    def at_limit(self) -> bool:
        """Whether nothing of what is left could have been reused."""
        return self.at >= self._limit

    def knows(self, length: int) -> None:
        """So many leading tokens were computed once, or are being computed."""
        self._known = max(self._known, length)

    def reusable(self, length: int) -> int:
        """How many tokens could be reused where so many leading ones are cached: whole pages, and never the last."""
        return min(self._limit, length - length % self._page)

    def add(self, length: int, cause: MissCause, fate: Fate | None = None, other: str | None = None) -> None:
        """They could have been reused, but for this cause, as far as whole pages go."""
        stop = self.reusable(length)
        if stop > self.at:
            self.misses.append(Miss(self.at, stop, cause, fate, other))
            self.at = stop

    def round(self) -> None:
        """Give what is known and yet cannot be reused its cause."""
        if self.at == min(self._limit, self._known - self._known % self._page) and self.at < self._known:
            self.misses.append(Miss(self.at, self._known, MissCause.ROUNDING))
            self.at = self._known


class _Compared(NamedTuple):
    """A comparison, and which tokens of the later request the earlier one has in another place: bool[n]."""

    comparison: Comparison
    lost: npt.NDArray[np.bool_]


class Recorder(SchedulerObserver):
    """The records of a scheduler's requests.

    Args:
        cache: the scheduler's.
        limit: how many requests are remembered.
        clock: that of the cache's times of use.
        ghosts_per_slot: how many tokens that left are remembered for each slot of the cache.

    Attributes:
        counts: uncached tokens of all requests since the start, by cause.
    """

    def __init__(
        self,
        cache: PrefixCache,
        limit: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        ghosts_per_slot: int = GHOSTS_PER_SLOT,
    ) -> None:
        self.counts = dict.fromkeys(MissCause, 0)
        self._cache = cache
        self._limit = limit
        self._clock = clock
        self._ghosts = ghosts_of(cache, min(MAX_TOKENS, ghosts_per_slot * cache.stats().capacity), clock)
        self._sequences: Sequences[Record] = Sequences()
        self._kept: OrderedDict[int, Record] = OrderedDict()
        # The same by tenant, with the tokens of their prompts and the bytes of what they keep: of who has most of what
        # there is too much of, the oldest goes.
        self._tokens: Owned[Record] = Owned()
        self._texts: Owned[Record] = Owned()
        self._by_id: dict[str, list[Record]] = {}
        self._by_group: dict[tuple[object, ...], deque[Record]] = {}
        self._by_window: dict[int, Record] = {}
        self._windows: dict[int, Fingerprint] = {}
        self._full: Owned[Record] = Owned()
        self._orders = count()

    # -- what others ask ------------------------------------------------------------------------------------------

    def of(self, request_id: str) -> list[Record]:
        """The records with this id, one a reply, oldest first; none if it is not remembered. From any thread."""
        return list(self._by_id.get(request_id, ()))

    def latest(self, accept: Callable[[Record], bool]) -> Record | None:
        """The youngest record that is accepted."""
        return next((record for record in reversed(self._kept.values()) if accept(record)), None)

    def tokens_of(self, record: Record) -> TokenArray:
        """All tokens of a request, with those of its reply if it has ended; none if it is not remembered any more."""
        return self._sequences.tokens_of(record)

    # -- what the scheduler tells ---------------------------------------------------------------------------------

    def needs_room(self, request: Request) -> None:
        if self._ghosts is not None:
            self._ghosts.room_for = _name_of(request)

    def admitted(self, request: Request, running: Sequence[Request]) -> None:
        tokens = request.tokens.array[: request.num_prompt]
        origin = request.origin if isinstance(request.origin, Origin) else None
        record = Record(
            id=_name_of(request),
            order=next(self._orders),
            namespace=namespace_key(request.namespace),
            created=time.time(),
            noted=self._clock(),
            num_prompt=len(tokens),
            num_cached=request.num_cached,
            origin=origin,
            text_bytes=0 if origin is None else _text_bytes(origin),
        )
        found = self._sequences.find(tokens, record.namespace)
        windows = fingerprint(tokens, hash(record.namespace))
        if record.num_uncached and isinstance(self._cache, NoPrefixCache):
            record.misses = record.public_misses = (Miss(0, len(tokens), MissCause.NEVER_CACHED),)
        elif record.num_uncached:
            self._explain(record, request, tokens, running, found, windows)
        for miss in record.misses:
            self.counts[miss.cause] += miss.stop - miss.start
        if origin is not None and origin.compare_with is not None:
            earlier = next((r for r in self.of(origin.compare_with) if r.tenant == record.tenant), None)
            record.asked = None if earlier is None else self._comparison(tokens, earlier).comparison
        self._keep(record, request, tokens, windows)
        if record.closest is not None or record.asked is not None:
            self._full.add(record, record.tenant, 1)
            if len(self._full) > FULL_COMPARISONS:
                oldest = self._full.first(by_size=False)
                self._full.remove(oldest)
                oldest.forget_tokens()

    def finished(self, request: Request) -> None:
        self._computed(request)

    def preempted(self, request: Request) -> None:
        self._computed(request)

    def _computed(self, request: Request) -> None:
        """A request stops, for good or for now: note what it said and how much of it all was computed."""
        record = request.record
        if not isinstance(record, Record):
            return
        if record.end is not None:
            self._sequences.extend(record, request.tokens.array[record.num_prompt + record.num_reply :])
            self._sequences.computed(record, request.num_computed)
            self._shrink()
        record.num_reply = request.num_generated

    def stepped(self, output: SchedulerOutput, seconds: float) -> None:
        """A step took this long; each prompt in it took its share."""
        if self._ghosts is not None:
            self._ghosts.room_for = None
        total = sum(stop - start for _, start, stop in output.scheduled)
        for request, start, stop in output.scheduled:
            if start < request.num_prompt and isinstance(request.record, Record):
                request.record.prefill_s += seconds * (stop - start) / total

    # -- causes ---------------------------------------------------------------------------------------------------

    def _explain(
        self,
        record: Record,
        request: Request,
        tokens: TokenArray,
        running: Sequence[Request],
        found: Found[Record],
        windows: Fingerprint,
    ) -> None:
        """Find the causes of a request's uncached tokens, as its caller and as an operator may be told them."""
        search = self._known(request, tokens, running, found.own_computed)
        lost = np.zeros(0, np.bool_)
        if search.at < len(tokens):
            lost = self._compare(record, tokens, self._closest(record, tokens, found, windows))
        record.misses = record.public_misses = (*search.misses, *_unknown(lost, search.at))
        first_seen = any(miss.cause is MissCause.FIRST_SEEN for miss in record.misses)
        if first_seen and found.other is not None and found.other_length > search.at:
            # What a request may not read must not show in any other cause, so it is looked for after all of them.
            cached = self._cache.peek(tokens[: found.other_length], _plain(found.other.namespace)).length
            record.misses = tuple(_elsewhere(record.public_misses, search.reusable(cached), found.other.id))

    def _known(self, request: Request, tokens: TokenArray, running: Sequence[Request], computed: int) -> _Search:
        """The causes of tokens that somebody computed, or is computing, behind the same beginning."""
        search = _Search(request, tokens, self._cache.page_size)
        self._in_flight(search, running)
        if self._ghosts is not None:
            for lost in self._ghosts.find(tokens, request.view, request.namespace, search.at):
                search.knows(lost.stop)
                search.add(lost.stop, _GONE.get(lost.fate.reason, MissCause.EVICTED), lost.fate)
        if search.at_limit:
            search.knows(request.view.peek(tokens).length)
        search.knows(computed)
        search.round()
        return search

    def _in_flight(self, search: _Search, running: Sequence[Request]) -> None:
        """Of the running requests, the one that has most of the tokens tells of them."""
        at, tokens, namespace = search.at, search.tokens, search.request.namespace
        best, length = None, at
        for other in running:
            theirs = other.tokens.array
            if len(theirs) > at and theirs[at] == tokens[at] and other.namespace == namespace:
                common = common_length(theirs, tokens)
                if common > length:
                    best, length = other, common
        if best is not None:
            search.knows(length)
            search.add(length, MissCause.IN_FLIGHT, other=_name_of(best))

    def _closest(self, record: Record, tokens: TokenArray, found: Found[Record], windows: Fingerprint) -> Record | None:
        """The earlier request of the same session, key or root that has most in common with this one.

        It agrees with this one as far as the cache does, or it could not say why the cache went no further.
        """
        votes = self._votes(record, windows)
        candidates = self._peers(record) or {
            *([] if found.own is None else [found.own]),
            *([max(votes, key=votes.__getitem__)] if votes else []),
        }
        best, nearness = None, (-1, -1)
        for earlier in candidates:
            common = common_length(self._sequences.tokens_of(earlier), tokens)
            near = (max(common, votes.get(earlier, 0)), earlier.order)
            if common >= record.num_cached and near > nearness:
                best, nearness = earlier, near
        return best or found.own

    def _votes(self, record: Record, windows: Fingerprint) -> dict[Record, int]:
        """By earlier record of the same namespace, about how many tokens it has in common with this one, anywhere."""
        votes: dict[Record, int] = {}
        for window in windows.hashes:
            earlier = self._by_window.get(window)
            if earlier is not None and earlier.namespace == record.namespace:
                votes[earlier] = votes.get(earlier, 0) + windows.every
        return votes

    def _peers(self, record: Record) -> Collection[Record]:
        """The latest records of the same session; of those with the same key, if there is none."""
        return next((peers for group in _groups(record) if (peers := self._by_group.get(group))), ())

    def _compare(self, record: Record, tokens: TokenArray, earlier: Record | None) -> npt.NDArray[np.bool_]:
        """Note what a request has in common with an earlier one; which of its tokens that has too, elsewhere."""
        if earlier is None:
            return np.zeros(len(tokens), np.bool_)
        compared = self._comparison(tokens, earlier)
        record.closest = compared.comparison
        return compared.lost

    def _comparison(self, tokens: TokenArray, earlier: Record) -> _Compared:
        theirs = self._sequences.tokens_of(earlier)
        common = common_length(theirs, tokens)
        lost = np.zeros(len(tokens), np.bool_)
        if common < len(theirs):
            lost[common:] = shared_with(tokens[common:], theirs[common:])
        comparison = Comparison(
            id=earlier.id,
            position=earlier.position,
            common=common,
            length=len(theirs),
            num_prompt=earlier.num_prompt,
            lost=int(lost.sum()),
            earlier=theirs,
            conversation=earlier.conversation,
            places=earlier.places,
            text_bytes=earlier.text_bytes,
        )
        return _Compared(comparison, lost)

    # -- what is kept ---------------------------------------------------------------------------------------------

    def _keep(self, record: Record, request: Request, tokens: TokenArray, windows: Fingerprint) -> None:
        request.record = record
        self._sequences.add(record, tokens)
        self._kept[record.order] = record
        self._tokens.add(record, record.tenant, record.num_prompt)
        self._texts.add(record, record.tenant, record.kept_bytes)
        for name in record.names:
            self._by_id.setdefault(name, []).append(record)
        for group in _groups(record):
            self._by_group.setdefault(group, deque(maxlen=PEERS)).append(record)
        self._windows[record.order] = windows
        for window in windows.hashes:
            self._by_window[window] = record
        self._shrink()

    def _shrink(self) -> None:
        while len(self._kept) > 1:
            if len(self._kept) > self._limit:
                self._drop(self._tokens.first(by_size=False))
            elif self._sequences.size > MAX_TOKENS:
                self._drop(self._tokens.first(by_size=True))
            elif self._texts.size > MAX_TEXT_BYTES:
                self._drop(self._texts.first(by_size=True))
            else:
                return

    def _drop(self, oldest: Record) -> None:
        """Forget a tenant's oldest record."""
        for kept in (self._tokens, self._texts):
            kept.remove(oldest)
        del self._kept[oldest.order]
        self._sequences.remove(oldest)
        for name in oldest.names:
            same = self._by_id[name]
            same.remove(oldest)
            if not same:
                del self._by_id[name]
        for group in _groups(oldest):
            peers = self._by_group.get(group)
            if peers and peers[0] is oldest:
                peers.popleft()
                if not peers:
                    del self._by_group[group]
        for window in self._windows.pop(oldest.order).hashes:
            if self._by_window.get(window) is oldest:
                del self._by_window[window]


def _unknown(lost: npt.NDArray[np.bool_], at: int) -> Iterator[Miss]:
    """The causes of tokens from `at` on that nobody computed behind this beginning; `lost` by position."""
    if at >= len(lost):
        return
    edges = np.flatnonzero(np.diff(lost[at:])) + at + 1
    for start, stop in pairwise([at, *edges.tolist(), len(lost)]):
        yield Miss(start, stop, MissCause.DIVERGED if lost[start] else MissCause.FIRST_SEEN)


def _elsewhere(misses: Sequence[Miss], length: int, other: str) -> Iterator[Miss]:
    """The same misses; what is first seen of the `length` leading tokens is cached in the namespace of `other`."""
    for miss in misses:
        stop = min(miss.stop, length)
        if miss.cause is not MissCause.FIRST_SEEN or stop <= miss.start:
            yield miss
            continue
        yield Miss(miss.start, stop, MissCause.OTHER_NAMESPACE, other=other)
        if stop < miss.stop:
            yield miss._replace(start=stop)


def _groups(record: Record) -> Iterator[tuple[object, ...]]:
    """What a request has in common with others by its own word, the narrowest first."""
    origin = record.origin
    if origin is not None:
        for kind, name in (("session", origin.session), ("key", origin.key)):
            if name is not None:
                yield record.namespace, kind, name


def _name_of(request: Request) -> str:
    return request.origin.id if isinstance(request.origin, Origin) else request.id


def _text_bytes(origin: Origin) -> int:
    """What is kept of a conversation, and of where it stands."""
    texts = 0 if origin.conversation is None else size_of(origin.conversation)
    return texts + (0 if origin.places is None else size_of_places(origin.places))


def _plain(namespace: NamespaceKey) -> Namespace:
    return tuple(part for _, part in namespace)  # type: ignore[misc]  # as it was before its types were noted
