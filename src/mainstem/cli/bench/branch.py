"""`mainstem bench branch`: a search over thoughts below one root."""

from __future__ import annotations

import argparse

from mainstem.cli.workload import configure_run, positive_number, run_workload, seed_number, whole_number

SUMMARY = "a search over thoughts below one root"
DESCRIPTION = """\
A tree of thoughts: branches of 20 to 100 tokens below a root of 12,000 tokens
times --scale, all asked at once on a cold cache; then as many more below the
best one, and so on down. In the tables a turn is a level of the tree.

examples:
  mainstem bench branch --out results/branch
  mainstem bench branch --branches 32 --depth 2
  mainstem bench branch --cache-only --scale 1 --trees 20 --depth 10
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the workload's flags."""
    parser.add_argument("--scale", default="0.25", metavar="X", help="of the root [default: 0.25]")
    parser.add_argument("--branches", default="8", metavar="N", help="thoughts below a node [default: 8]")
    parser.add_argument("--depth", default="3", metavar="N", help="levels of thoughts [default: 3]")
    parser.add_argument("--trees", default="1", metavar="N", help="searches at once, a root each [default: 1]")
    parser.add_argument("--seed", default="0", metavar="N", help="fixes every token and length [default: 0]")
    configure_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the workload on every arm."""
    from mainstem.bench.run import ample_pool
    from mainstem.bench.workloads.branch import branch

    scale = positive_number("--scale", arguments.scale)
    branches = whole_number("--branches", arguments.branches)
    depth = whole_number("--depth", arguments.depth)
    trees = whole_number("--trees", arguments.trees)
    seed = seed_number("--seed", arguments.seed)
    return run_workload(
        arguments,
        lambda vocab_size: branch(
            scale=scale, branches=branches, depth=depth, trees=trees, seed=seed, vocab_size=vocab_size
        ),
        ample_pool,
    )
