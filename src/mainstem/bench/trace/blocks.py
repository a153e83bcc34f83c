"""A trace as requests made of blocks, each block numbered by its place in the trie of all prompts.

It knows no file format, no cache and no clock but the trace's own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mainstem.tree import TokenArray


class RecordedRequest(NamedTuple):
    """One request as a file has it.

    Attributes:
        time_s: when it was sent, in seconds from the start of its file.
        tokens: length of its prompt.
        scope: what its block identities are relative to; equal identities of two scopes are different blocks.
        block_ids: identities of the prompt's blocks, in order.
    """

    time_s: float
    tokens: int
    scope: Hashable
    block_ids: Sequence[int]


class BlockRequest(NamedTuple):
    """One request.

    Attributes:
        time_s: when it was sent.
        tokens: length of its prompt, in tokens.
        blocks: int32[n], the blocks of its prompt. A block's number stands for the whole prefix that ends with it, so
            equal numbers are equal prefixes.
    """

    time_s: float
    tokens: int
    blocks: TokenArray


class BlockTrace(NamedTuple):
    """Requests in the order in which they were sent.

    Attributes:
        block_size: tokens in a block; the last block of a prompt may have fewer.
        requests: all of them.
        distinct: how many different blocks there are; they are numbered from 0 in order of first use.
    """

    block_size: int
    requests: tuple[BlockRequest, ...]
    distinct: int

    @property
    def references(self) -> int:
        """Blocks of all prompts together."""
        return sum(len(request.blocks) for request in self.requests)

    @property
    def tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(request.tokens for request in self.requests)

    @property
    def longest(self) -> int:
        """Blocks of the longest prompt."""
        return max(len(request.blocks) for request in self.requests)

    def tokens_in(self, blocks: int, request: BlockRequest) -> int:
        """How many tokens the first `blocks` blocks of a prompt have."""
        return min(blocks * self.block_size, request.tokens)


def number_blocks(requests: Iterable[RecordedRequest], block_size: int) -> BlockTrace:
    """Put requests in order of time and number their blocks by prefix.

    Files may give a block the hash of its own content or of the whole prefix; here both come to mean the prefix.
    """
    numbers: dict[tuple[Hashable, int], int] = {}
    numbered: list[BlockRequest] = []
    for recorded in sorted(requests, key=lambda request: request.time_s):
        blocks: list[int] = []
        # The first block is found by its scope, every other one by the block before it.
        above: Hashable = ("scope", recorded.scope)
        for block_id in recorded.block_ids:
            above = numbers.setdefault((above, block_id), len(numbers))
            blocks.append(above)
        numbered.append(BlockRequest(recorded.time_s, recorded.tokens, np.array(blocks, np.int32)))
    return BlockTrace(block_size, tuple(numbered), len(numbers))
