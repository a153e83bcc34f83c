"""Tests of what is counted as shared, against a plain count of prefixes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainstem.bench.distinct import LiveTokens
from mainstem.bench.machines import Holding

SEQUENCES = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=6)


@given(sequences=SEQUENCES, data=st.data())
def test_distinct_tokens_are_the_different_prefixes(sequences: list[list[int]], data: st.DataObject) -> None:
    """Prompts grow by replies, calls come and go, and what has KV is any beginning of what is known."""
    live = LiveTokens()
    known: dict[int, list[int]] = {}
    for call, sequence in enumerate(sequences):
        live.add(call, np.array(sequence, np.int32))
        known[call] = list(sequence)
        for grown in data.draw(st.lists(st.sampled_from(sorted(known)), max_size=3)):
            token = data.draw(st.integers(0, 1))
            live.append(grown, token)
            known[grown].append(token)
        if len(known) > 1 and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(known)))
            live.remove(gone)
            del known[gone]
        running = data.draw(st.lists(st.sampled_from(sorted(known)), unique=True))
        holdings = [Holding(call, data.draw(st.integers(0, len(known[call])))) for call in running]
        prefixes = {tuple(known[call][:end]) for call, tokens in holdings for end in range(1, tokens + 1)}
        assert live.distinct(holdings) == len(prefixes)
