"""Small traces, written by hand or drawn at random."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from mainstem.bench.trace import BlockTrace
from mainstem.bench.trace.blocks import RecordedRequest, number_blocks


def trace_of(prompts: Iterable[Sequence[int]], block_size: int = 4) -> BlockTrace:
    """A trace of prompts of whole blocks, in this order; identities are of a block's content."""
    return number_blocks((RecordedRequest(0.0, len(ids) * block_size, "file", ids) for ids in prompts), block_size)


def traces(*, longest: int, requests: int) -> st.SearchStrategy[BlockTrace]:
    """Traces whose prompts often share their beginnings: few identities, short prompts."""
    prompt = st.lists(st.integers(0, 2), min_size=1, max_size=longest)
    return st.lists(prompt, min_size=1, max_size=requests).map(trace_of)
