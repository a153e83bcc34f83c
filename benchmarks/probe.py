"""What a tenant finds out of another's prompts by asking for them: from usage, and from the time it takes.

The victim has sent half of some candidates. The prober sends each of them once and notes how many tokens were cached
and how long it took. How well either tells the sent ones from the others is the area under the ROC curve (AUC): 1/2 is
chance, and it counts the same above and below. By chance alone the AUC of 1,000 guesses deviates from 1/2 by 0.018.
The same with the victim's own key shows what there would be to find out without isolation.

A real server over a tiny random model, in this process; `tests/server/test_probe.py` runs the same.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import httpx
import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import keep
from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer

GUESSES, GUESSES_WITHOUT_ISOLATION = 1000, 200
PROMPT_TOKENS = 500
VICTIM_BATCH = 50
MODEL = "random:llama,layers=2,hidden=128,heads=4,kv_heads=2,context=2048"
VICTIM, PROBER = "victim-key", "prober-key"

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


@contextmanager
def victim_and_prober(model: str, kv_memory: str) -> Iterator[Asking]:
    """A server with two tenants, and a way to ask it as either; its pool must hold all that they send."""
    engine = AsyncEngine.load(EngineConfig(model=model, kv_memory=kv_memory, device="cpu"))
    config = ServerConfig(port=0, drain_seconds=0, api_key=f"{VICTIM},{PROBER}")
    with BackgroundServer(engine, config) as server, httpx.Client(base_url=server.url, timeout=300) as http:

        def ask(key: str, prompt: list[Any]) -> float:
            body: dict[str, Any] = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
            reply = http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}).json()
            return float(reply["usage"]["prompt_tokens_details"]["cached_tokens"])

        yield ask


def probe(ask: Asking, prober: str, guesses: int, seed: int) -> Guesses:
    """Have the victim send half of the candidates, and the prober all of them."""
    rng = np.random.default_rng(seed)
    candidates = rng.integers(3, 448, (guesses, PROMPT_TOKENS)).tolist()
    sent = rng.permutation(guesses) < guesses // 2
    theirs = [candidate for candidate, was_sent in zip(candidates, sent, strict=True) if was_sent]
    for first in range(0, len(theirs), VICTIM_BATCH):
        ask(VICTIM, theirs[first : first + VICTIM_BATCH])
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


def main() -> None:
    """Guess with a key of another tenant, then with the victim's own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--model", default=MODEL, help="that is served (default %(default)s)")
    parser.add_argument("--kv-memory", default="1600MiB", help="for all prompts (default %(default)s)")
    parser.add_argument("--guesses", type=int, default=GUESSES, help="of the other tenant (default %(default)s)")
    arguments = parser.parse_args()
    cases = []
    with victim_and_prober(arguments.model, arguments.kv_memory) as ask:
        for prober, guesses in ((PROBER, arguments.guesses), (VICTIM, GUESSES_WITHOUT_ISOLATION)):
            found = probe(ask, prober, guesses, seed=1 if prober == PROBER else 2)
            case = {
                "key": "another tenant's" if prober == PROBER else "the victim's own",
                "guesses": guesses,
                "prompt tokens": PROMPT_TOKENS,
                "AUC from usage": round(auc(found.sent, found.cached), 4),
                "AUC from time": round(auc(found.sent, found.seconds), 4),
                "most cached tokens": int(found.cached.max()),
                "median ms": {
                    "sent": round(1e3 * float(np.median(found.seconds[found.sent])), 3),
                    "not sent": round(1e3 * float(np.median(found.seconds[~found.sent])), 3),
                },
            }
            cases.append(case)
            print(
                f"{case['key']} key, {guesses:,} guesses: AUC {case['AUC from usage']:.3f} from usage, "
                f"{case['AUC from time']:.3f} from time",
                flush=True,
            )
    keep(arguments.out, {"probe": cases})


if __name__ == "__main__":
    main()
