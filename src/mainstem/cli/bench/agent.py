"""`mainstem bench agent`: coding agents over one long common head."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mainstem.cli.workload import configure_run, positive_number, run_workload, seed_number, whole_number
from mainstem.errors import ConfigError

if TYPE_CHECKING:
    from mainstem.bench.workloads.agent import TurnRange

SUMMARY = "coding agents over one long common head"
DESCRIPTION = """\
Several coding agents at work at once: 2,000 tokens of system prompt, 1,500 of
tool schemas and 6,000 of repository in common, a task each; every turn replies
with about 425 tokens and appends about 500 of tool output, so that turn 10 has
about 18,000. --scale shrinks all of it, by default to a quarter, which the
embedded model's context of 8,192 tokens can hold.

examples:
  mainstem bench agent --out results/agent
  mainstem bench agent --cache-only --scale 1 --agents 50
  mainstem bench agent --scale 1 --model random:llama,layers=8 --repeats 1
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the workload's flags."""
    parser.add_argument("--scale", default="0.25", metavar="X", help="of every length [default: 0.25]")
    parser.add_argument(
        "--turns",
        default="8-15",
        metavar="N|N-M",
        help="turns of an agent; a range is spread evenly over the agents [default: 8-15]",
    )
    parser.add_argument("--agents", default="2", metavar="N", help="how many [default: 2]")
    parser.add_argument("--seed", default="0", metavar="N", help="fixes every token and length [default: 0]")
    configure_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the workload on every arm."""
    from mainstem.bench.run import ample_pool
    from mainstem.bench.workloads.agent import agent

    scale = positive_number("--scale", arguments.scale)
    turns = parse_turns(arguments.turns)
    agents = whole_number("--agents", arguments.agents)
    seed = seed_number("--seed", arguments.seed)
    return run_workload(
        arguments,
        lambda vocab_size: agent(scale=scale, turns=turns, agents=agents, seed=seed, vocab_size=vocab_size),
        ample_pool,
    )


def parse_turns(text: str) -> TurnRange:
    """A number of turns, or a range such as 8-15.

    Raises:
        ConfigError: when it is neither.
    """
    from mainstem.bench.workloads.agent import TurnRange

    fewest, dash, most = text.partition("-")
    turns = TurnRange(whole_number("--turns", fewest), whole_number("--turns", most if dash else fewest))
    if turns.most < turns.fewest:
        raise ConfigError(f"--turns must go up, got {text}")
    return turns
