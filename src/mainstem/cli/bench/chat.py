"""`mainstem bench chat`: many short sessions in a pool too small for all of them."""

from __future__ import annotations

import argparse

from mainstem.cli.workload import configure_run, positive_number, run_workload, seed_number, whole_number

SUMMARY = "many short sessions in a pool too small for all of them"
DESCRIPTION = """\
People who come, say a few things with long pauses between, and go. System
prompts of 500 to 2,500 tokens times --scale are shared, the n-th as popular as
1/n. Unless --pool-tokens says otherwise, the pool holds 30 % of what all
sessions have, so that eviction decides what is found again. Pauses pass on the
workload's own clock; nobody waits for them.

examples:
  mainstem bench chat --out results/chat
  mainstem bench chat --cache-only --scale 1 --sessions 1000
  mainstem bench chat --cache-only --sessions 200 --pool-tokens 20000
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the workload's flags."""
    parser.add_argument("--scale", default="0.25", metavar="X", help="of every length [default: 0.25]")
    parser.add_argument("--sessions", default="24", metavar="N", help="how many [default: 24]")
    parser.add_argument("--system-prompts", default="20", metavar="N", help="different ones [default: 20]")
    parser.add_argument("--seed", default="0", metavar="N", help="fixes every token, length and pause [default: 0]")
    configure_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the workload on every arm."""
    from mainstem.bench.run import scarce_pool
    from mainstem.bench.workloads.chat import chat

    scale = positive_number("--scale", arguments.scale)
    sessions = whole_number("--sessions", arguments.sessions)
    system_prompts = whole_number("--system-prompts", arguments.system_prompts)
    seed = seed_number("--seed", arguments.seed)
    return run_workload(
        arguments,
        lambda vocab_size: chat(
            scale=scale, sessions=sessions, system_prompts=system_prompts, seed=seed, vocab_size=vocab_size
        ),
        scarce_pool,
    )
