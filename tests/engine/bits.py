"""Random schedules under which a token's bits must not change: the cases of test_bits.py, and many more by command.

python -m tests.engine.bits --schedules 10000 --embedded 200 --out benchmarks/results/bits.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mainstem.bench.origin import origin
from mainstem.engine import LLM, Generation
from tests.engine.support import greedy, kv_memory_for, random_tokens
from tests.support.tiny_models import make_tiny_model

KINDS = [("llama", "float32"), ("qwen3", "float32"), ("llama", "float16")]
"""Tiny models, and the numbers that weights and KV are kept in."""
ROOTS = [random_tokens(n, seed=1000 + n).tolist() for n in (3, 70, 130)]
LONGEST_REPLY = 12


class Said(NamedTuple):
    """A reply, and the log-probabilities it was chosen by."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def said(generation: Generation) -> Said:
    """What a generation says."""
    reply = generation.replies[0]
    return Said(tuple(generation.token_ids), tuple(entry.chosen.logprob for entry in reply.logprobs))


def prompts_of(generator: np.random.Generator) -> list[list[int]]:
    """A few prompts that share beginnings, and now and then all of it."""
    prompts = []
    for _ in range(generator.integers(1, 6)):
        root = ROOTS[generator.integers(len(ROOTS))]
        tail = random_tokens(int(generator.choice([1, 2, 17, 60])), seed=int(generator.integers(6))).tolist()
        prompts.append([*root[: generator.integers(1, len(root) + 1)], *tail])
    return prompts


def engines_of(model: str, number: str, scarce: str, ample: str = "4MiB") -> list[LLM]:
    """Engines over one model that cut the work up in different ways; the first keeps nothing and runs alone.

    Args:
        model: as for `LLM`.
        number: that weights and KV are kept in, or "auto".
        scarce: a size of the pool in which requests preempt one another.
        ample: one in which they do not.
    """
    make = partial(LLM, model, weights=number, kv_dtype=number, deterministic="on")
    return [
        make(kv_memory=ample, prefix_cache="none", max_num_batched_tokens=2048),
        make(kv_memory=ample, max_num_batched_tokens=37),
        make(kv_memory=ample, max_num_batched_tokens=512, cascade=False),
        make(kv_memory=scarce, cache_reserve=0.0, max_num_batched_tokens=64),
        make(kv_memory=ample, prefix_cache="block-hash"),
        make(kv_memory=ample, speculate="tree,ngram"),
    ]


def tiny_engines(folder: Path, architecture: str, number: str) -> list[LLM]:
    """`engines_of` a tiny model that is made in a folder."""
    scarce = kv_memory_for(215 if number == "float32" else 108)  # as many tokens of half the size
    return engines_of(str(make_tiny_model(folder, architecture)), number, scarce)


def differing(
    engines: Sequence[LLM], schedules: int, *, seed: int, tell: Callable[[int], None] = lambda _: None
) -> int:
    """Run schedules, and count the replies that differ in a bit from those of the first engine, which runs alone."""
    alone, *others = engines
    generator = np.random.default_rng(seed)
    known: dict[tuple[int, ...], Said] = {}
    found = 0
    for number in range(schedules):
        llm = others[number % len(others)]
        if number % 23 == 0:
            llm.reset_cache()
        prompts, params = prompts_of(generator), greedy(int(generator.integers(1, LONGEST_REPLY)), logprobs=0)
        for prompt, generation in zip(prompts, llm.generate(prompts, params), strict=True):
            key = tuple(prompt)
            if key not in known:
                known[key] = said(alone.generate([prompt], greedy(LONGEST_REPLY, logprobs=0))[0])
            expected, got = known[key], said(generation)
            n = len(got.token_ids)
            found += got != Said(expected.token_ids[:n], expected.logprobs[:n])
        tell(number + 1)
    return found


def _summary(engines: Sequence[LLM], schedules: int, differences: int, seconds: float) -> dict[str, Any]:
    stats = [llm.stats() for llm in engines[1:]]
    return {
        "schedules": schedules,
        "replies_that_differ": differences,
        "cached_tokens": sum(s.cached_tokens for s in stats),
        "preemptions": sum(s.preemptions for s in stats),
        "accepted_drafts": sum(s.accepted_tokens for s in stats),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000, help="on tiny models, in sum [default: 10,000]")
    parser.add_argument("--embedded", type=int, default=200, help="on the embedded model [default: 200]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}

    def run(name: str, engines: list[LLM], schedules: int) -> None:
        begin = time.perf_counter()
        differences = differing(engines, schedules, seed=arguments.seed)
        figures[name] = _summary(engines, schedules, differences, time.perf_counter() - begin)
        print(name, figures[name], flush=True)
        for llm in engines:
            llm.close()

    for number, (architecture, kind) in enumerate(KINDS):
        share = arguments.schedules // len(KINDS) + (number < arguments.schedules % len(KINDS))
        with tempfile.TemporaryDirectory() as folder:
            run(f"tiny {architecture}, {kind}", tiny_engines(Path(folder), architecture, kind), share)
    if arguments.embedded:
        # 23,040 bytes a token in float16: room for little more than the longest request.
        run("embedded model, as it is served", engines_of("smollm2", "auto", "5.5MiB", "64MiB"), arguments.embedded)
    if arguments.out is not None:
        command = ["python", "-m", "tests.engine.bits", "--schedules", str(arguments.schedules)]
        command += ["--embedded", str(arguments.embedded), "--seed", str(arguments.seed)]
        arguments.out.write_text(json.dumps({**origin(command), "runs": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
