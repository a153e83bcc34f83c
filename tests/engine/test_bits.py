"""Tests that a token's numbers are the same bits however it is run: cached or not, alone or not, in any chunks."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.engine import LLM
from mainstem.native import native_library
from tests.engine.bits import KINDS, differing, said, tiny_engines
from tests.engine.support import greedy, random_tokens

pytestmark = pytest.mark.skipif(native_library() is None, reason="the native extension was not built: no C compiler")

# Random schedules for each kind of tiny model; tests/engine/bits.py runs many more by command.
SCHEDULES = 300


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_the_same_bits_however_a_token_is_run(kind: tuple[str, str], tmp_path: Path) -> None:
    engines = tiny_engines(tmp_path, *kind)
    assert differing(engines, SCHEDULES, seed=7) == 0
    for llm in engines[1:]:
        assert llm.stats().cached_tokens > 2000
    assert engines[3].stats().preemptions > 0
    assert engines[5].stats().accepted_tokens > 0


def test_a_context_of_many_blocks_gives_the_same_bits(tiny_model: Path) -> None:
    prompt = random_tokens(1500, seed=5).tolist()
    params = greedy(20, logprobs=0)
    expected = said(LLM(str(tiny_model), kv_memory="4MiB", prefix_cache="none").generate([prompt], params)[0])
    llm = LLM(str(tiny_model), kv_memory="4MiB", max_num_batched_tokens=111)
    for _ in range(3):
        together = llm.generate([prompt, [*prompt[:1200], 7, 8], prompt[:900], [*prompt[:1111], 9]], params)
        assert said(together[0]) == expected
    assert llm.stats().cached_tokens > 0
