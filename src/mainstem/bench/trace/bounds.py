"""What no cache can exceed: an infinite one, and the best one of a given size that knows the future.

Both take requests one at a time, in the order of the trace. Blocks are all of one size, and a block is of use only
while all blocks before it are cached too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mainstem.bench.trace.blocks import BlockRequest, BlockTrace

HitCounts: TypeAlias = npt.NDArray[np.int64]
"""int64[requests]: how many leading blocks of each prompt were cached when it came."""


class Reuse(NamedTuple):
    """Blocks of one request that are next used by the same later request.

    Attributes:
        at: index of that request.
        blocks: how many they are.
    """

    at: int
    blocks: int


def infinite_hits(trace: BlockTrace) -> HitCounts:
    """Hits of a cache that keeps everything: a block hits unless this is its first use."""
    seen = 0
    hits = np.zeros(len(trace.requests), np.int64)
    for index, request in enumerate(trace.requests):
        # Blocks are numbered in order of first use, so those not seen before are the ones with higher numbers.
        hits[index] = np.count_nonzero(request.blocks < seen)
        seen += len(request.blocks) - int(hits[index])
    return hits


def reuses(trace: BlockTrace) -> list[list[Reuse]]:
    """For each request, when its blocks are used again; blocks that never are, are left out."""
    never = len(trace.requests)
    next_use = np.full(trace.distinct, never, np.int64)
    found: list[list[Reuse]] = [[] for _ in trace.requests]
    for index in range(never - 1, -1, -1):
        blocks = trace.requests[index].blocks
        times, counts = np.unique(next_use[blocks], return_counts=True)
        found[index] = [Reuse(at, n) for at, n in zip(times.tolist(), counts.tolist(), strict=True) if at < never]
        next_use[blocks] = index
    return found


def clairvoyant_hits(
    requests: Sequence[BlockRequest], reused: Sequence[Sequence[Reuse]], capacity: int
) -> Iterator[int]:
    """Hits of the best possible cache of a size, one request after another.

    Leaf-first Belady: to make room, the blocks whose next use is farthest away go first, of equals the deepest. This is
    Belady's MIN (IBM Systems Journal 5(2), 1966), which is optimal for blocks of one size. Two rules are added, and it
    remains so:

    - All blocks of a prompt are in the cache while it runs, and none of them goes to make room for the others.
      If an optimal cache evicts another block than MIN does, exchange the two until the first of them is used again;
      neither belongs to a prompt in between, so this holds with whole prompts as it does with single blocks.
    - Only leaves go, so that what is cached is always whole prefixes. Whoever uses a block uses all those above it, so
      a block's next use is never earlier than its parent's, and MIN with the deepest of equals first does so anyway.

    For the same reason it needs no blocks, only counts: all blocks whose next use is the same request are a part of
    that prompt, and how many of them remain by then is how many of them hit.

    Args:
        requests: in the order in which they are sent, none longer than the capacity.
        reused: of each request, as `reuses` gives them.
        capacity: blocks in the cache.
    """
    due: dict[int, int] = {}  # cached blocks, by the request that uses them next
    farthest: list[int] = []  # a heap of the negated keys of `due`, and below them of past ones
    living = dead = 0  # cached blocks that are in `due`, and those that are never used again
    for now, (request, reuse) in enumerate(zip(requests, reused, strict=True)):
        hits = due.pop(now, 0)
        living -= hits
        room = capacity - len(request.blocks)
        while living > room:
            last = -farthest[0]
            gone = min(due[last], living - room)
            living -= gone
            due[last] -= gone
            if due[last] == 0:
                del due[last]
                heapq.heappop(farthest)
        dead = min(dead, room - living) + len(request.blocks)
        for at, blocks in reuse:
            if at not in due:
                heapq.heappush(farthest, -at)
            due[at] = due.get(at, 0) + blocks
            living += blocks
            dead -= blocks
        yield hits
