"""`mainstem bench simulate --validate`: the step cost's predictions beside what this machine takes.

Knows flags, the terminal and files. How predictions are made is the business of `mainstem.bench`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from mainstem.bench.hardware import Hardware
from mainstem.bench.run import EngineArms, parse_arms
from mainstem.bench.simulate import LATE
from mainstem.bench.validate import CPU_EFFICIENCY, TOLERANCE, TurnCheck
from mainstem.bench.workloads.agent import TurnRange, agent
from mainstem.cli.bars import bars, report_table
from mainstem.cli.efficiency import read_efficiency
from mainstem.cli.options import read_settings
from mainstem.cli.workload import positive_number, seed_number, whole_number
from mainstem.config import BLOCK_SIZE, EngineConfig
from mainstem.errors import ConfigError, MainstemError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mainstem.bench.cost import RooflineCost

THIS = "this"


def run_validation(arguments: argparse.Namespace, console: Console) -> int:
    """Run the workload here, print predictions and times, and write them; returns the exit code."""
    if arguments.hardware not in (THIS, None):
        raise ConfigError("--validate runs on this machine; leave --hardware out, or say --hardware this")
    config = read_settings(EngineConfig, arguments)
    scale = positive_number("--scale", arguments.scale)
    repeats = whole_number("--repeats", arguments.repeats)
    seed = seed_number("--seed", arguments.seed)
    arms = parse_arms(arguments.arms)

    from mainstem.bench.cost import RooflineCost
    from mainstem.bench.drive import require_fit
    from mainstem.bench.limits import measure_limits
    from mainstem.bench.validate import efficiency_of, probe, sizes_of, this_machine, validate
    from mainstem.engine import build_engine

    with bars(console, "calls") as tell:
        built = build_engine(config, progress=tell)
        runner = built.core.runner
        # As many slots as every arm can use.
        pool = built.budget.pool_tokens - built.budget.pool_tokens % BLOCK_SIZE
        max_len = min(built.core.max_model_len, pool + 1)
        workload = agent(
            scale=scale, turns=TurnRange(LATE, LATE), agents=1, seed=seed, vocab_size=runner.shape.vocab_size
        )
        require_fit(workload, max_len)
        tell("measuring this machine", 0, None)
        rows = config.max_num_batched_tokens
        limits = measure_limits(runner.shape, rows, runner.device)
        engines = EngineArms(built, config, pool)
        engines.warm_up()
        found = probe(engines, rows, max_len, runner.shape.vocab_size)
        machine = this_machine(limits.or_better(measure_limits(runner.shape, rows, runner.device)), rows)
        sizes = sizes_of(built.model_name, runner.shape)
        stated = read_efficiency(arguments.efficiency, CPU_EFFICIENCY)
        costs = {
            "stated": RooflineCost(sizes, machine, stated),
            "probed": RooflineCost(sizes, machine, efficiency_of(found, sizes, machine)),
        }
        checks: dict[str, list[TurnCheck]] = {}
        for arm in arms:
            done = 0

            def on_end(_: int, arm: str = arm) -> None:
                nonlocal done
                done += 1
                tell(arm, done, repeats * len(workload.calls))

            checks[arm] = validate(
                engines, config, workload, costs, arm=arm, pool_tokens=pool, repeats=repeats, on_end=on_end
            )
    _print_validation(console, machine, costs, checks, repeats)
    if arguments.out is not None:
        _write_validation(arguments.out, machine, costs, checks, repeats, console)
    return 0


def _print_validation(
    console: Console,
    machine: Hardware,
    costs: Mapping[str, RooflineCost],
    checks: Mapping[str, Sequence[TurnCheck]],
    repeats: int,
) -> None:
    console.print(
        f"This machine reaches {machine.flops_per_s / 1e9:,.0f} GFLOP/s in a matrix product and "
        f"{machine.bytes_per_s / 1e9:.1f} GB/s in a copy."
    )
    for name, cost in costs.items():
        console.print(f"{name} shares of these:")
        for reason in cost.efficiency.reasons:
            console.print(f"  {reason}", markup=False)
    console.print(
        f"\nSeconds to the first token, turn by turn: measured {repeats} times, predicted, and the ratio of the two."
    )
    console.print(_validation_table(checks, tuple(costs)))
    for sentence in _verdicts(checks, tuple(costs)):
        console.print(sentence)


def _validation_table(checks: Mapping[str, Sequence[TurnCheck]], names: Sequence[str]) -> Table:
    table = report_table()
    table.add_column("arm", no_wrap=True)
    for name in ("turn", "prompt", "new", "measured", "shortest", "longest"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("ratio", justify="right", no_wrap=True)
    for arm, turns in checks.items():
        for check in turns:
            table.add_row(
                arm if check is turns[0] else "",
                str(check.turn),
                f"{check.prompt:,.0f}",
                f"{check.prefilled:,.0f}",
                f"{check.measured:.3f}",
                f"{check.fastest:.3f}",
                f"{check.slowest:.3f}",
                *(cell for name in names for cell in (f"{check.predicted[name]:.3f}", f"{check.ratio(name):.2f}")),
            )
        table.add_section()
    return table


def _verdicts(checks: Mapping[str, Sequence[TurnCheck]], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        for arm, turns in checks.items():
            ratios = [check.ratio(name) for check in turns]
            off = [check.turn for check in turns if abs(check.ratio(name) - 1) > TOLERANCE]
            verdict = (
                f"within {TOLERANCE:.0%} at every turn" if not off else f"further off at {len(off)} of {len(turns)}"
            )
            yield (
                f"{name}, {arm}: predicted over measured is {min(ratios):.2f} to {max(ratios):.2f}, "
                f"{median(ratios):.2f} in the median; {verdict}."
            )


def _write_validation(
    folder: Path,
    machine: Hardware,
    costs: Mapping[str, RooflineCost],
    checks: Mapping[str, Sequence[TurnCheck]],
    repeats: int,
    console: Console,
) -> None:
    from mainstem.bench.origin import origin

    turns = {
        arm: [{**check._asdict(), "ratio": {name: check.ratio(name) for name in costs}} for check in found]
        for arm, found in checks.items()
    }
    document = {
        **origin(["mainstem", *sys.argv[1:]]),
        "hardware": asdict(machine),
        "efficiency": {name: asdict(cost.efficiency) for name, cost in costs.items()},
        "repeats": repeats,
        "tolerance": TOLERANCE,
        "turns": turns,
    }
    path = folder / "validation.json"
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise MainstemError(f"cannot write into {folder}: {error.strerror}") from None
    console.print(f"written: {path}", soft_wrap=True)
