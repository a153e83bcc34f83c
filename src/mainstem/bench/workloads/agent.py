"""Coding agents at work on one repository: a long common head, a task each, and a history that grows with every tool.

At full scale each begins with 2,000 tokens of system prompt, 1,500 of tool schemas and 6,000 of repository, which all
share, and a task of its own. Every turn replies with about 425 tokens and appends about 500 of tool output, so that
turn 10 has about 18,000. The agents start together and their tools answer at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mainstem.bench.workload import Call, Workload
from mainstem.bench.workloads.drawing import Drawing, require_calls, require_positive
from mainstem.errors import ConfigError

SYSTEM_PROMPT, TOOL_SCHEMAS, REPOSITORY, TASK = 2000, 1500, 6000, 150
TOOL_OUTPUT, REPLY = (350, 650), (325, 525)


class TurnRange(NamedTuple):
    """Fewest and most turns of an agent."""

    fewest: int
    most: int


DEFAULT_TURNS = TurnRange(8, 15)


def agent(
    *,
    scale: float = 0.25,
    turns: TurnRange = DEFAULT_TURNS,
    agents: int = 2,
    seed: int = 0,
    vocab_size: int,
) -> Workload:
    """Several agents over one head.

    Args:
        scale: of every length above.
        turns: agents have numbers of turns spread evenly over this range, in a random order.
        agents: how many.
        seed: fixes tokens, lengths and the order.
        vocab_size: of the model.

    Raises:
        ConfigError: when these make no workload.
    """
    require_positive(scale=scale, turns=turns.fewest, agents=agents)
    if turns.most < turns.fewest:
        raise ConfigError(f"turns must go up, got {turns.fewest}-{turns.most}")
    require_calls(agents * turns.most)
    draw = Drawing(seed, vocab_size)
    head = draw.tokens(sum(round(part * scale) for part in (SYSTEM_PROMPT, TOOL_SCHEMAS, REPOSITORY)))
    calls: list[Call] = []
    for session, length in enumerate(draw.rng.permutation(_spread(turns, agents)).tolist()):
        for turn in range(1, length + 1):
            first = turn == 1
            appended = (
                np.concatenate([head, draw.tokens(max(1, round(TASK * scale)))])
                if first
                else draw.tokens(draw.length(TOOL_OUTPUT[0] * scale, TOOL_OUTPUT[1] * scale))
            )
            calls.append(
                Call(
                    session=session,
                    turn=turn,
                    after=None if first else len(calls) - 1,
                    extends=not first,
                    appended=appended,
                    reply_tokens=draw.length(REPLY[0] * scale, REPLY[1] * scale),
                )
            )
    settings: dict[str, object] = {"scale": scale, "turns": list(turns), "agents": agents, "seed": seed}
    return Workload(name="agent", settings=settings, calls=tuple(calls), vocab_size=vocab_size)


def _spread(turns: TurnRange, agents: int) -> list[int]:
    """Numbers of turns in the middles of equal parts of the range."""
    width = (turns.most - turns.fewest) / agents
    return [round(turns.fewest + (index + 0.5) * width) for index in range(agents)]
