"""What a tenant finds out of another's prompts by asking for them: from usage, and from the time it takes, nothing.

The victim has sent half of some candidates. The prober sends each of them once and notes how many tokens were cached
and how long it took. How well either tells the sent ones from the others is the area under the ROC curve (AUC): 1/2 is
chance, and it counts the same above and below. By chance alone the AUC of 1,000 guesses deviates from 1/2 by 0.018.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.server.conftest import MODEL

GUESSES = 1000
GUESSES_WITHOUT_ISOLATION = 200
PROMPT_TOKENS = 500
VICTIM_BATCH = 50
KV_BYTES_PER_TOKEN = 512
MOST_AUC = 0.55
LEAST_AUC_OF_A_LEAK = 0.9


Asking: TypeAlias = Callable[[str, list[Any]], float]
"""Sends a prompt, or several, with a key, and returns how many tokens were cached."""


class Guesses(NamedTuple):
    """What a prober saw, one entry a candidate.

    Attributes:
        sent: whether the victim had sent it.
        cached: tokens that its usage calls cached.
        seconds: that the answer took.
    """

    sent: NDArray[np.bool_]
    cached: NDArray[np.float64]
    seconds: NDArray[np.float64]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[BackgroundServer]:
    """Replaces the open server: two tenants, and a pool that holds all that they send."""
    pool = KV_BYTES_PER_TOKEN * 3 * GUESSES * PROMPT_TOKENS
    engine = AsyncEngine.load(EngineConfig(model=str(tiny_model), kv_memory=f"{pool}b", device="cpu"))
    config = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL, api_key="victim-key,prober-key")
    with BackgroundServer(engine, config) as running:
        yield running


@pytest.fixture
def asking(http: httpx.Client) -> Asking:
    def ask(key: str, prompt: list[Any]) -> float:
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        reply = http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}).json()
        return float(reply["usage"]["prompt_tokens_details"]["cached_tokens"])

    return ask


def probe(ask: Asking, prober: str, guesses: int, seed: int) -> Guesses:
    rng = np.random.default_rng(seed)
    candidates = rng.integers(3, 448, (guesses, PROMPT_TOKENS)).tolist()
    sent = rng.permutation(guesses) < guesses // 2
    theirs = [candidate for candidate, was_sent in zip(candidates, sent, strict=True) if was_sent]
    for first in range(0, len(theirs), VICTIM_BATCH):
        ask("victim-key", theirs[first : first + VICTIM_BATCH])
    cached, seconds = [], []
    for candidate in candidates:
        began = time.perf_counter()
        cached.append(ask(prober, candidate))
        seconds.append(time.perf_counter() - began)
    return Guesses(sent, np.array(cached), np.array(seconds))


def auc(positive: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """How often the score of a positive is above that of another, ties counting half; never below 1/2."""
    above = np.sign(score[positive][:, None] - score[~positive][None, :]).mean()
    return 0.5 + abs(float(above)) / 2


def test_another_tenant_guesses_no_better_than_chance(asking: Asking) -> None:
    found = probe(asking, "prober-key", GUESSES, seed=1)
    assert found.cached.max() < 10  # its own guesses may begin alike
    assert auc(found.sent, found.cached) <= MOST_AUC
    timed = auc(found.sent, found.seconds)
    if timed > MOST_AUC:  # once in 160 times by chance; what leaks does so again
        again = probe(asking, "prober-key", GUESSES, seed=2)
        timed = auc(again.sent, again.seconds)
    assert timed <= MOST_AUC


def test_the_same_guesses_tell_all_where_nothing_is_isolated(asking: Asking) -> None:
    found = probe(asking, "victim-key", GUESSES_WITHOUT_ISOLATION, seed=3)
    assert auc(found.sent, found.cached) == 1
    timed = auc(found.sent, found.seconds)
    if timed < LEAST_AUC_OF_A_LEAK:  # something else kept the machine busy
        again = probe(asking, "victim-key", GUESSES_WITHOUT_ISOLATION, seed=4)
        timed = auc(again.sent, again.seconds)
    assert timed > LEAST_AUC_OF_A_LEAK
