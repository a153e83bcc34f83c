"""A search over thoughts: one root, k branches of short thoughts, then k more below the best of them.

At full scale the root has 12,000 tokens. A branch appends a thought of 20 to 100 tokens, which scale does not change,
to what its parent has said, and the model goes on for 20 to 60. All branches of a node are asked at once; which one is
the best is drawn. Nothing else is asked of the root before its branches, so the first ones meet a cold cache together.
(Tree of Thoughts: Yao et al. 2023, arXiv 2305.10601.)
"""

from __future__ import annotations

import numpy as np

from mainstem.bench.workload import Call, Workload
from mainstem.bench.workloads.drawing import Drawing, require_calls, require_positive

ROOT = 12_000
THOUGHT, REPLY = (20, 100), (20, 60)


def branch(
    *,
    scale: float = 0.25,
    branches: int = 8,
    depth: int = 3,
    trees: int = 1,
    seed: int = 0,
    vocab_size: int,
) -> Workload:
    """Searches that do not know of each other.

    Args:
        scale: of the root.
        branches: thoughts below a node that is expanded.
        depth: how many nodes are expanded one below the other, the root among them.
        trees: how many searches run at once.
        seed: fixes tokens, lengths and what is best.
        vocab_size: of the model.

    Raises:
        ConfigError: when these make no workload.
    """
    require_positive(scale=scale, branches=branches, depth=depth, trees=trees)
    require_calls(trees * branches * depth)
    draw = Drawing(seed, vocab_size)
    calls: list[Call] = []
    for session in range(trees):
        root = draw.tokens(max(1, round(ROOT * scale)))
        best: int | None = None
        for level in range(1, depth + 1):
            first = len(calls)
            for _ in range(branches):
                thought = draw.tokens(draw.length(*THOUGHT))
                calls.append(
                    Call(
                        session=session,
                        turn=level,
                        after=best,
                        extends=best is not None,
                        appended=thought if best is not None else np.concatenate([root, thought]),
                        reply_tokens=draw.length(*REPLY),
                    )
                )
            best = first + int(draw.rng.integers(branches))
    settings: dict[str, object] = {
        "scale": scale,
        "branches": branches,
        "depth": depth,
        "trees": trees,
        "seed": seed,
    }
    return Workload(name="branch", settings=settings, calls=tuple(calls), vocab_size=vocab_size)
