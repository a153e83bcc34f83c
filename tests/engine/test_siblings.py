"""How much of a prompt was cached that has several replies: as the first of them found it."""

from __future__ import annotations

import numpy as np

from mainstem.engine.outputs import PromptUsage
from mainstem.engine.reply import Siblings
from mainstem.params import SamplingParams
from mainstem.scheduler import Request


def requests(siblings: Siblings, n: int) -> list[Request]:
    made = [Request(f"{i}", np.arange(10, dtype=np.int32), SamplingParams(), max_tokens=5) for i in range(n)]
    for request in made:
        siblings.add(request)
    return made


def let_in(request: Request, at: float, num_cached: int) -> None:
    request.admitted_at, request.num_cached = at, num_cached


def test_nothing_is_known_before_a_reply_is_let_in() -> None:
    siblings = Siblings()
    requests(siblings, 2)
    assert siblings.usage() is None


def test_the_first_that_is_let_in_counts_even_if_another_speaks_before() -> None:
    siblings = Siblings()
    one, two, _ = requests(siblings, 3)
    let_in(two, at=1.0, num_cached=3)
    let_in(one, at=2.0, num_cached=9)
    assert siblings.usage() == PromptUsage(3, None)


def test_what_was_told_once_stays() -> None:
    siblings = Siblings()
    one, two = requests(siblings, 2)
    let_in(two, at=1.0, num_cached=3)
    assert siblings.usage() == PromptUsage(3, None)
    let_in(one, at=1.0, num_cached=9)
    assert siblings.usage() == PromptUsage(3, None)
