"""Hit ratio against capacity: the caches of this project, and what bounds them.

It knows traces and policies; nothing of files, tables or pictures.

A hit is a leading block of a prompt that is cached when the request comes. Requests run one at a time, in the order of
the trace. **Block hits** count each block once, a last partial one like the others; **token hits** count the tokens in
the hit blocks, `min(hit blocks x block size, prompt tokens)` a prompt, over all tokens of all prompts. A repeat of a
whole prompt counts in full, although an engine computes its last token, or a block-hash cache its last block, again.
Replies are in a trace only as parts of later prompts. A capacity is given in blocks; a share of capacity is of all
distinct blocks of the trace.

One request at a time, the tree and the block hashes evict in the same order, and their curves are the same: what sets
them apart in an engine, whole blocks and requests that run side by side, is not in such a trace.

So counted, the Mooncake conversation trace has 0.3664 block hits and 0.3736 token hits with an infinite cache, and at
5 % (9,139 blocks) 0.1996 token hits with LRU and 0.3736 with the best choice of what to evict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from mainstem.bench.trace.blocks import BlockTrace
from mainstem.bench.trace.bounds import clairvoyant_hits, infinite_hits, reuses
from mainstem.bench.trace.sessions import EndBit, find_turns, hits_with_end_bit
from mainstem.tree import BlockHashCache, PrefixCache, RadixCache

ARMS: Mapping[str, Callable[[int], PrefixCache]] = {
    "radix": RadixCache,
    "block-hash": lambda capacity: BlockHashCache(capacity, block_size=1),
}
"""The caches that are measured: a maker each, from a capacity in tokens; a token of theirs is a block of the trace."""

CLAIRVOYANT = "clairvoyant"
SHARES = (0.5, 1, 2, 3, 5, 10, 20, 30, 50, 100)
"""Capacities that are measured by default, in percent of the distinct blocks."""

_ADVANCE_EVERY = 500

Advance: TypeAlias = Callable[[str, int], object]
"""Called with the name of a policy and a number of requests that it has just served."""


class Hits(NamedTuple):
    """What hit in a whole trace: blocks, and the tokens in them."""

    blocks: int
    tokens: int


class Curve(NamedTuple):
    """The hits of one policy, at each capacity that was measured."""

    policy: str
    hits: tuple[Hits, ...]


class TraceResult(NamedTuple):
    """What was measured on one trace.

    Attributes:
        trace: the trace itself.
        infinite: hits of a cache that keeps everything.
        capacities: in blocks, ascending.
        curves: one a policy, this project's caches first.
    """

    trace: BlockTrace
    infinite: Hits
    capacities: tuple[int, ...]
    curves: tuple[Curve, ...]


def choose_capacities(trace: BlockTrace) -> tuple[int, ...]:
    """The default capacities: `SHARES` of the distinct blocks, but none in which the longest prompt would not fit."""
    shares = {int(trace.distinct * share / 100) for share in SHARES}
    return tuple(sorted({max(capacity, trace.longest) for capacity in shares}))


def policies(end_bits: Sequence[EndBit] = ()) -> tuple[str, ...]:
    """The names of all that `measure` measures, in its order."""
    return (*ARMS, *(end_bit.name for end_bit in end_bits), CLAIRVOYANT)


def measure(
    trace: BlockTrace, capacities: Sequence[int], advance: Advance, end_bits: Sequence[EndBit] = ()
) -> TraceResult:
    """Serve the trace with every policy at every capacity.

    Args:
        trace: what is asked for.
        capacities: in blocks, ascending, each at least the longest prompt of the trace.
        advance: told of progress.
        end_bits: how requests say that their conversation is over, each a policy of its own.
    """
    reused = reuses(trace)
    turns = find_turns(trace) if end_bits else []
    by_name = {end_bit.name: end_bit for end_bit in end_bits}

    def hits(policy: str, capacity: int) -> Iterator[int]:
        if policy == CLAIRVOYANT:
            return clairvoyant_hits(trace.requests, reused, capacity)
        if policy in by_name:
            return hits_with_end_bit(trace, turns, by_name[policy], capacity)
        return cache_hits(trace, ARMS[policy](capacity))

    return TraceResult(
        trace=trace,
        infinite=_total(trace, infinite_hits(trace).tolist()),
        capacities=tuple(capacities),
        curves=tuple(
            Curve(name, tuple(_total(trace, _reporting(hits(name, size), name, advance)) for size in capacities))
            for name in policies(end_bits)
        ),
    )


def cache_hits(trace: BlockTrace, cache: PrefixCache) -> Iterator[int]:
    """Hits of a cache, in blocks, one request after another; each is looked up and then kept whole."""
    for request in trace.requests:
        view = cache.view()
        yield view.match_prefix(request.blocks).length
        view.insert(request.blocks)


def _reporting(hits: Iterable[int], policy: str, advance: Advance) -> Iterator[int]:
    since = 0
    for since, found in enumerate(hits, start=1):
        yield found
        if since % _ADVANCE_EVERY == 0:
            advance(policy, _ADVANCE_EVERY)
    advance(policy, since % _ADVANCE_EVERY)


def _total(trace: BlockTrace, hits: Iterable[int]) -> Hits:
    blocks = tokens = 0
    for request, found in zip(trace.requests, hits, strict=True):
        blocks += found
        tokens += trace.tokens_in(found, request)
    return Hits(blocks, tokens)
