"""What a tenant finds out of another's prompts by asking for them is nothing: `benchmarks/probe.py` has the guesses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.probe import GUESSES, GUESSES_WITHOUT_ISOLATION, PROBER, VICTIM, Asking, auc, probe, victim_and_prober

MOST_AUC = 0.55
LEAST_AUC_OF_A_LEAK = 0.9


@pytest.fixture(scope="module")
def asking(tiny_model: Path) -> Iterator[Asking]:
    with victim_and_prober(str(tiny_model), "768MB") as ask:
        yield ask


def test_another_tenant_guesses_no_better_than_chance(asking: Asking) -> None:
    found = probe(asking, PROBER, GUESSES, seed=1)
    assert found.cached.max() < 10  # its own guesses may begin alike
    assert auc(found.sent, found.cached) <= MOST_AUC
    timed = auc(found.sent, found.seconds)
    if timed > MOST_AUC:  # once in 160 times by chance; what leaks does so again
        again = probe(asking, PROBER, GUESSES, seed=2)
        timed = auc(again.sent, again.seconds)
    assert timed <= MOST_AUC


def test_the_same_guesses_tell_all_where_nothing_is_isolated(asking: Asking) -> None:
    found = probe(asking, VICTIM, GUESSES_WITHOUT_ISOLATION, seed=3)
    assert auc(found.sent, found.cached) == 1
    timed = auc(found.sent, found.seconds)
    for seed in range(4, 10):
        if timed > LEAST_AUC_OF_A_LEAK:
            break
        # Something else kept the machine busy.
        again = probe(asking, VICTIM, GUESSES_WITHOUT_ISOLATION, seed=seed)
        timed = auc(again.sent, again.seconds)
    assert timed > LEAST_AUC_OF_A_LEAK
