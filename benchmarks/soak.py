"""A server under random clients for a long time: the tree stays intact, memory stays where it is, everyone is answered.

    python -m benchmarks.soak --minutes 20 --out benchmarks/results/soak.json

The server runs here, over a tiny model with random weights (`--model smollm2` for the embedded one) and a pool of a few
thousand slots, so that requests wait for room, are preempted and evict one another all the time. The clients are
`benchmarks.soak_clients`, in a process of their own, so that the memory measured here is the server's. What the server
remembers of conversations is bounded tightly, so that it is full early, and what the tokenizer's library remembers is
filled first. Every few seconds the whole tree is verified between two steps. The command fails when a request was not
answered in full or refused for an expected reason, when an invariant is broken, when slots are held at the end, or, in
a run of ten minutes or more, when memory goes on growing after the first third of it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

import httpx
import numpy as np

from benchmarks.measuring import keep
from benchmarks.soak_clients import OPERATOR, TENANTS
from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer, share_one_heap
from mainstem.server.workers import NUM_WORKERS
from tests.support.tiny_models import make_tiny_model

WARM_UP = 1 / 3
MOST_GROWTH_MIB_PER_MINUTE = 0.5
# In less, the one megabyte that an allocator takes at some time is a slope.
FEWEST_MINUTES_FOR_GROWTH = 10.0
PAGE_BYTES = 4096
MODEL = "soaked"


class Sample(NamedTuple):
    """The server's memory at some time.

    Attributes:
        seconds: since the clients began.
        rss: bytes of it that are in memory.
        blocks: of Python's allocator that are in use; an object takes one or a few.
    """

    seconds: float
    rss: int
    blocks: int


class Soaked(NamedTuple):
    """What came of it.

    Attributes:
        clients: what they say.
        samples: of memory.
        checks: how often the tree was verified.
        engine: its counts at the end.
        broken: what was wrong with the server itself, in words.
    """

    clients: dict[str, Any]
    samples: list[Sample]
    checks: int
    engine: dict[str, int]
    broken: list[str]

    def slope(self, name: str) -> float:
        """How fast a figure of the samples grew after the warm-up, a minute: the least squares line through them."""
        end = self.samples[-1].seconds
        late = [sample for sample in self.samples if sample.seconds >= WARM_UP * end]
        if len(late) < 3:
            return 0.0
        per_second, _ = np.polyfit([s.seconds for s in late], [getattr(s, name) for s in late], 1)
        return float(per_second) * 60


def soak(
    folder: Path,
    *,
    seconds: float,
    seed: int = 0,
    clients: int = 12,
    model: str | None = None,
    check_every_s: float = 5,
) -> Soaked:
    """Serve random clients for some time.

    Args:
        folder: for the tiny model and the file of keys.
        model: another model than the tiny one.
    """
    keys = folder / "keys"
    keys.write_text("".join(f"{name} {key}{' operator' * (name == OPERATOR)}\n" for name, key in TENANTS.items()))
    config = EngineConfig(
        model=model or str(make_tiny_model(folder / "tiny")),
        kv_memory="1.5MiB" if model is None else "192MiB",
        max_model_len=2048,
        max_num_batched_tokens=256,
        max_num_seqs=16,
        history_memory="256KiB",
        share_after=3,
        device="cpu",
    )
    served = ServerConfig(port=0, drain_seconds=0, served_model_name=MODEL, api_key_file=str(keys), stored_responses=20)
    engine = AsyncEngine.load(config)
    with _log() as logged, BackgroundServer(engine, served) as server:
        _fill_memory_of_words(server.url)
        command = [sys.executable, "-m", "benchmarks.soak_clients", server.url, "--model", MODEL]
        command += ["--seconds", str(seconds), "--seed", str(seed), "--clients", str(clients)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            samples, broken = _watch(engine, process, check_every_s)
            said, _ = process.communicate()
        broken += ["the clients ended with an error"] if process.returncode else []
        broken += _at_rest(engine)
        stats = engine.stats()
    broken += [f"logged: {line}" for line in logged[:10]]
    counts = {
        name: getattr(stats, name)
        for name in ("steps", "preemptions", "requests_finished", "requests_aborted", "prefilled_tokens")
    }
    counts |= {"capacity": stats.cache.capacity, "evicted": stats.cache.evicted}
    return Soaked(json.loads(said or "{}"), samples, len(samples), counts, broken)


def _fill_memory_of_words(url: str) -> None:
    """Have every thread of the server that tokenizes see more words than the 10,000 that its tokenizer remembers: 5 MiB
    a thread, which would take many minutes to fill from what a random model says.
    """
    rng = random.Random(0)
    words = ["".join(rng.choices(ascii_lowercase, k=rng.randint(2, 8))) for _ in range(25_000)]
    pieces = [" ".join(words[i : i + 2_000]) for i in range(0, len(words), 2_000)]

    def ask(path: str, **fields: Any) -> None:
        headers = {"Authorization": f"Bearer {TENANTS[OPERATOR]}"}
        response = httpx.post(url + path, json={"model": MODEL, **fields}, headers=headers, timeout=60)
        if response.json().get("error", {}).get("code") != "context_length_exceeded":
            raise RuntimeError(f"a prompt that is far too long was answered with {response.text[:200]}")

    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        for first, second in pairwise(pieces):  # not all at once, which would leave room in the heap
            ask("/v1/completions", prompt=first)  # short enough for the event loop
            list(pool.map(lambda text: ask("/v1/completions", prompt=text), [f"{first} {second}"] * 2 * NUM_WORKERS))
            # Messages are tokenized side by side, on threads of the library.
            ask("/v1/chat/completions", messages=[{"role": "user", "content": text} for text in (first, second) * 2])


@contextmanager
def _log() -> Iterator[list[str]]:
    """What is logged as an error meanwhile."""
    lines: list[str] = []

    class Errors(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Errors(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(handler)


def _watch(engine: AsyncEngine, clients: subprocess.Popen[str], every_s: float) -> tuple[list[Sample], list[str]]:
    """Sample memory and verify the tree until the clients end."""
    gc.collect()
    gc.freeze()  # what was there before need not be looked at each time
    begin = time.monotonic()
    samples, broken = [], []
    while clients.poll() is None:
        try:
            asyncio.run(engine.check_integrity())
        except AssertionError as error:
            broken.append(f"after {time.monotonic() - begin:.0f} s: {error}")
        gc.collect()
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
        # Not the objects themselves: who lists them holds tuples that others are still filling, which makes those fail.
        samples.append(Sample(round(time.monotonic() - begin, 1), rss, sys.getallocatedblocks()))
        try:
            clients.wait(every_s)
        except subprocess.TimeoutExpired:
            continue
    gc.unfreeze()
    return samples, broken


def _at_rest(engine: AsyncEngine) -> list[str]:
    """What is wrong once nobody asks any more."""
    deadline = time.monotonic() + 10
    while (stats := engine.stats()).running + stats.waiting and time.monotonic() < deadline:
        time.sleep(0.02)
    wrong = []
    if stats.running + stats.waiting:
        wrong.append(f"{stats.running} requests still run and {stats.waiting} wait though nobody asks")
    try:
        asyncio.run(engine.check_integrity())
        asyncio.run(engine.reset_cache())
        asyncio.run(engine.check_integrity())
    except AssertionError as error:
        wrong.append(f"at the end: {error}")
    cache = engine.stats().cache
    if cache.free != cache.capacity:
        wrong.append(f"after a reset {cache.capacity - cache.free} slots are not free")
    return wrong


def faults(soaked: Soaked, *, memory: bool = True) -> list[str]:
    """Why a soak failed; nothing if it did not.

    Args:
        memory: whether it took long enough for its growth to mean anything.
    """
    found = list(soaked.broken)
    if soaked.clients.get("num_faults") != 0:
        found += [f"answer: {fault}" for fault in soaked.clients.get("faults", ["the clients said nothing"])]
    growth = soaked.slope("rss") / 2**20
    if memory and growth > MOST_GROWTH_MIB_PER_MINUTE:
        found.append(f"memory grew by {growth:.2f} MiB a minute after the warm-up")
    return found


def main() -> int:
    """Soak, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--model", help="another model than the tiny one, such as smollm2")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    share_one_heap()  # as `mainstem serve` does
    with tempfile.TemporaryDirectory() as folder:
        soaked = soak(
            Path(folder),
            seconds=arguments.minutes * 60,
            seed=arguments.seed,
            clients=arguments.clients,
            model=arguments.model,
        )
    wrong = faults(soaked, memory=arguments.minutes >= FEWEST_MINUTES_FOR_GROWTH)
    figures = {
        "minutes": arguments.minutes,
        "model": arguments.model or "tiny, random weights",
        "rss_mib": [[sample.seconds, round(sample.rss / 2**20, 1)] for sample in soaked.samples],
        "rss_slope_mib_per_minute": round(soaked.slope("rss") / 2**20, 3),
        "blocks": [sample.blocks for sample in soaked.samples],
        "blocks_slope_per_minute": round(soaked.slope("blocks"), 1),
        "warm_up_share": round(WARM_UP, 2),
        "integrity_checks": soaked.checks,
        "engine": soaked.engine,
        "clients": soaked.clients,
        "wrong": wrong,
    }
    keep(arguments.out, figures)
    sys.stdout.write(json.dumps({**figures, "rss_mib": figures["rss_mib"][-1:], "blocks": None}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
