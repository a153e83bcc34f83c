"""People who chat: many short sessions over system prompts of unequal popularity, with long pauses, in a small pool.

At full scale there are 20 system prompts of 500 to 2,500 tokens, the n-th as popular as 1/n (Zipf). A session has 1 to
6 turns, each with 20 to 150 tokens of the user's and a reply of 30 to 150. Sessions begin at random, 5 seconds apart
in the mean; a person thinks for 86 seconds in the median and for 21 minutes one time in ten, as was recorded of people
who work with coding agents. Most of what a session left in the cache must last while others come and go.
"""

from __future__ import annotations

import math

import numpy as np

from mainstem.bench.workload import Call, Workload
from mainstem.bench.workloads.drawing import Drawing, require_positive

SYSTEM_PROMPT, USER, REPLY = (500, 2500), (20, 150), (30, 150)
TURNS = (1, 6)
MEDIAN_PAUSE_S, LONG_PAUSE_S = 86.0, 1260.0
BETWEEN_SESSIONS_S = 5.0
# The 90th percentile of a standard normal distribution.
_Z90 = 1.2816


def chat(
    *,
    scale: float = 0.25,
    sessions: int = 24,
    system_prompts: int = 20,
    seed: int = 0,
    vocab_size: int,
) -> Workload:
    """Sessions that come and go.

    Args:
        scale: of every length above.
        sessions: how many.
        system_prompts: how many different ones.
        seed: fixes tokens, lengths, popularity and pauses.
        vocab_size: of the model.

    Raises:
        ConfigError: when these make no workload.
    """
    require_positive(scale=scale, sessions=sessions, system_prompts=system_prompts)
    draw = Drawing(seed, vocab_size)
    heads = [draw.tokens(_scaled(draw, SYSTEM_PROMPT, scale)) for _ in range(system_prompts)]
    popularity = 1 / np.arange(1, system_prompts + 1)
    popularity /= popularity.sum()
    sigma = math.log(LONG_PAUSE_S / MEDIAN_PAUSE_S) / _Z90
    calls: list[Call] = []
    begins = 0.0
    for session in range(sessions):
        begins += float(draw.rng.exponential(BETWEEN_SESSIONS_S))
        head = heads[int(draw.rng.choice(system_prompts, p=popularity))]
        for turn in range(1, draw.length(*TURNS) + 1):
            first = turn == 1
            said = draw.tokens(_scaled(draw, USER, scale))
            pause = float(draw.rng.lognormal(math.log(MEDIAN_PAUSE_S), sigma))
            calls.append(
                Call(
                    session=session,
                    turn=turn,
                    after=None if first else len(calls) - 1,
                    extends=not first,
                    appended=np.concatenate([head, said]) if first else said,
                    reply_tokens=_scaled(draw, REPLY, scale),
                    wait=begins if first else pause,
                )
            )
    settings: dict[str, object] = {
        "scale": scale,
        "sessions": sessions,
        "system_prompts": system_prompts,
        "seed": seed,
    }
    return Workload(name="chat", settings=settings, calls=tuple(calls), vocab_size=vocab_size)


def _scaled(draw: Drawing, lengths: tuple[int, int], scale: float) -> int:
    return draw.length(lengths[0] * scale, lengths[1] * scale)
