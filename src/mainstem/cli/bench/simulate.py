"""`mainstem bench simulate`: agents on a machine that is not here, beside what is claimed of it.

Knows flags, the terminal and files. What a step costs is the business of `mainstem.bench`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.bench.hardware import GPU_EFFICIENCY, hardware
from mainstem.bench.run import ARMS, parse_arms
from mainstem.bench.shapes import known_models, model_sizes
from mainstem.bench.simulate import (
    CLAIMED_HARDWARE,
    CLAIMED_MODEL,
    CLAIMS,
    EARLY,
    LATE,
    ArmResult,
    LoadResult,
    Setting,
    differences,
    floor_of,
    simulate_arms,
    sweep,
)
from mainstem.cli.bars import bars, report_console, report_table
from mainstem.cli.efficiency import read_efficiency
from mainstem.cli.extras import require_bench_extras, require_extras
from mainstem.cli.options import add_options
from mainstem.cli.validation import THIS, run_validation
from mainstem.cli.workload import positive_number, seed_number, whole_number
from mainstem.config import EngineConfig
from mainstem.errors import ConfigError, MainstemError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mainstem.bench.cost import RooflineCost

SUMMARY = "agents on a machine that is not here, by its data sheet"
DESCRIPTION = """\
Runs the real scheduler and the real caches on a virtual clock, on which a step
takes what a roofline says: weights, KV and arithmetic at stated shares of the
machine's peaks, and the all-reduces between its devices. Of the default model
and machine there are figures in circulation; prints them beside what comes out,
and where the two differ. With
--agents, adds agents until the pool no longer holds them. With --validate,
runs the engine on this machine instead, and compares it with the prediction.

examples:
  mainstem bench simulate --model llama-3.1-70b --hardware 8xh100
  mainstem bench simulate --agents 1000 --rate 2 --arms radix,block-hash --out results/simulate
  mainstem bench simulate --validate --scale 0.1
"""
# Of the two loads of the table.
TABLE_AGENTS, TABLE_RATE = 64, 0.05


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the workload's flags."""
    parser.add_argument(
        "--model",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help=f"one of {', '.join(known_models())} [default: {CLAIMED_MODEL}]; with --validate any model that "
        "'mainstem serve' takes [default: smollm2; env: MAINSTEM_MODEL]",
    )
    parser.add_argument(
        "--hardware",
        metavar="NAME",
        help=f"a device, or several as in 8xh100; with --validate only 'this' [default: {CLAIMED_HARDWARE}]",
    )
    arms = ",".join(ARMS)
    parser.add_argument("--arms", default=arms, metavar="LIST", help=f"kinds of prefix cache [default: {arms}]")
    parser.add_argument("--agents", metavar="N", help="also add agents, twice as many each time, up to so many")
    parser.add_argument("--rate", default="2", metavar="R", help="agents that come in a second, then [default: 2]")
    parser.add_argument(
        "--tool-wait", default="2", metavar="SECONDS", help="mean wait for a tool, exponential [default: 2]"
    )
    parser.add_argument(
        "--efficiency",
        default="",
        metavar="LIST",
        help="other shares of the peaks, as in gemm=0.7,attention=0.5,memory=0.8,link=0.7,step_overhead_s=0.002",
    )
    parser.add_argument(
        "--price-per-hour", metavar="DOLLARS", help="of the whole machine; by default a round figure for renting it"
    )
    parser.add_argument("--seed", default="0", metavar="N", help="of tokens, lengths and times [default: 0]")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="write result.json there, with --agents plots, with --validate validation.json",
    )
    group = parser.add_argument_group("validation")
    group.add_argument(
        "--validate", action="store_true", help="run the engine here, and compare it with the prediction"
    )
    group.add_argument("--scale", default="0.1", metavar="X", help="of the agent's lengths, then [default: 0.1]")
    group.add_argument("--repeats", default="3", metavar="N", help="how often the engine runs it [default: 3]")
    add_options(parser, EngineConfig, title="engine (--validate)", leave_out=_LEFT_OUT)


# The arm is chosen by --arms, and the model is not only the engine's.
_LEFT_OUT = ("prefix_cache", "block_size", "model")


def run(arguments: argparse.Namespace) -> int:
    """Simulate, or validate."""
    require_bench_extras("bench")
    if arguments.validate:
        require_extras("bench")
    if arguments.out is not None:
        try:
            arguments.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: cannot make the folder {arguments.out}: {error.strerror}") from None

    console = report_console()
    if arguments.validate:
        return run_validation(arguments, console)
    return _simulate(arguments, console)


# -- simulation -------------------------------------------------------------------------------------------------------


def _simulate(arguments: argparse.Namespace, console: Console) -> int:
    from mainstem.bench.cost import RooflineCost

    if arguments.hardware == THIS:
        raise ConfigError("--hardware this is for --validate; otherwise name a device, as in 8xh100")
    machine = hardware(arguments.hardware or CLAIMED_HARDWARE)
    if arguments.price_per_hour is not None:
        price = positive_number("--price-per-hour", arguments.price_per_hour)
        machine = replace(machine, price_per_hour=price)
    sizes = model_sizes(getattr(arguments, "model", CLAIMED_MODEL))
    cost = RooflineCost(sizes, machine, read_efficiency(arguments.efficiency, GPU_EFFICIENCY))
    setting = Setting(
        tool_wait_s=positive_number("--tool-wait", arguments.tool_wait),
        seed=seed_number("--seed", arguments.seed),
        price_per_hour=machine.price_per_hour,
    )
    arms = parse_arms(arguments.arms)
    agents = None if arguments.agents is None else whole_number("--agents", arguments.agents)
    rate = positive_number("--rate", arguments.rate)
    _print_machine(console, cost, setting)
    with bars(console, "calls") as tell:
        results = simulate_arms(arms, cost, setting, agents=TABLE_AGENTS, rate=TABLE_RATE, on_end=tell)
    _print_results(console, results, cost)
    loads: list[LoadResult] = []
    if agents is not None:
        with bars(console, "calls") as tell:
            loads = list(sweep(arms, cost, setting, most_agents=agents, rate=rate, on_end=tell))
        console.print(f"\nMore and more agents, {rate:g} of them coming in a second:")
        console.print(_sweep_table(loads))
        for sentence in _where_it_thrashes(loads, cost, setting):
            console.print(sentence)
    if arguments.out is not None:
        _write(arguments.out, _document(cost, setting, results, loads), loads, cost, console)
    return 0


def _print_machine(console: Console, cost: RooflineCost, setting: Setting) -> None:
    machine, sizes = cost.hardware, cost.sizes
    console.print(
        f"[bold]{sizes.name}[/] on [bold]{machine.name}[/]: {sizes.num_parameters / 1e9:.1f} billion parameters, "
        f"{cost.model.kv_bytes_per_token / 1024:.0f} KiB of KV a token, a pool of {cost.pool_tokens():,} tokens, "
        f"${setting.price_per_hour:g} an hour"
    )
    console.print(f"  {machine.source}", markup=False)
    for reason in cost.efficiency.reasons:
        console.print(f"  {reason}", markup=False)


def _is_claimed(cost: RooflineCost) -> bool:
    return (cost.sizes.name, cost.hardware.name) == (CLAIMED_MODEL, CLAIMED_HARDWARE)


def _print_results(console: Console, results: Sequence[ArmResult], cost: RooflineCost) -> None:
    console.print(
        f"\nTime to the first token in milliseconds, the median: for agents one at a time, and for {TABLE_AGENTS} that "
        f"come at {TABLE_RATE:g} a second.\nReuse: share of prompt tokens that were cached. Cost: of a task, when all "
        f"{TABLE_AGENTS} come at once and the machine never rests."
    )
    console.print(_table(results, claimed=_is_claimed(cost)))
    for turn in (EARLY, LATE):
        floor = floor_of(cost, turn)
        console.print(
            f"Floor at turn {turn}, {floor.size.new:,} new tokens over {floor.size.cached:,}: "
            f"{floor.peak * 1e3:.1f} ms at the peak, {floor.modelled * 1e3:.1f} ms at the stated efficiencies."
        )
    if _is_claimed(cost):
        console.print(
            "\nClaimed is what the note that this project began with says of the machine; no measurement behind it is "
            "published. Where it differs:"
        )
        for sentence in differences(results, cost):
            console.print(f"- {sentence}", markup=False)


def _table(results: Sequence[ArmResult], *, claimed: bool) -> Table:
    table = report_table()
    for name in ("arm", "", f"turn {EARLY}", f"turn {LATE}", "reuse", "cost"):
        table.add_column(name, justify="left" if name in ("arm", "") else "right")
    claims = {claim.arm: claim for claim in CLAIMS}
    for arm, alone, steady, full in results:
        name = arm
        if claimed:
            claim = claims[arm]
            cells = [f"{claim.early_ttft_s * 1e3:,.0f}", f"{claim.late_ttft_s * 1e3:,.0f}"]
            table.add_row(arm, f"claimed: {claim.engine}", *cells, f"{claim.reuse:.1%}", f"${claim.task_cost:.4f}")
            name = ""
        for load, title in ((alone, "one agent at a time"), (steady, f"{steady.agents} agents")):
            waits = [f"{load.waits[turn].median * 1e3:,.1f}" for turn in (EARLY, LATE)]
            price = f"${full.task_cost:.4f}" if load is steady else ""
            table.add_row(name, title, *waits, f"{load.reuse:.1%}", price)
            name = ""
        table.add_section()
    return table


def _sweep_table(loads: Sequence[LoadResult]) -> Table:
    table = report_table()
    for name in ("agents", "arm", "reuse", "endless", "A", f"turn {LATE}", "p99", "evicted", "preempted", "busy"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for load in loads:
        late = load.waits[LATE]
        table.add_row(
            f"{load.agents:,}",
            load.arm,
            f"{load.reuse:.1%}",
            f"{load.ceiling:.1%}",
            f"{load.amplification:.2f}",
            f"{late.median:.2f} s",
            f"{late.p99:.2f} s",
            f"{load.evicted:,}",
            f"{load.preemptions:,}",
            f"{load.busy:.0%}",
        )
    return table


# Below this share of what an endless cache would hit, the pool no longer holds the agents.
_THRASHES = 0.97


def _where_it_thrashes(loads: Sequence[LoadResult], cost: RooflineCost, setting: Setting) -> list[str]:
    sentences = []
    for arm in dict.fromkeys(load.arm for load in loads if load.arm != "none"):
        worn = [load.agents for load in loads if load.arm == arm and load.reuse < _THRASHES * load.ceiling]
        pool = f"the pool of {cost.pool_tokens(setting.utilization):,} tokens"
        if worn:
            sentences.append(
                f"{arm}: with {min(worn):,} agents {pool} hits less than {_THRASHES:.0%} of what an endless one would."
            )
        else:
            most = max(load.agents for load in loads if load.arm == arm)
            sentences.append(
                f"{arm}: {pool} holds {most:,} agents, with {_THRASHES:.0%} of an endless one's hits or more."
            )
    return sentences


def _document(
    cost: RooflineCost, setting: Setting, results: Sequence[ArmResult], loads: Sequence[LoadResult]
) -> dict[str, Any]:
    from mainstem.bench.origin import origin

    return {
        **origin(["mainstem", *sys.argv[1:]]),
        "model": asdict(cost.sizes),
        "hardware": asdict(cost.hardware),
        "efficiency": asdict(cost.efficiency),
        "setting": asdict(setting),
        "pool_tokens": cost.pool_tokens(setting.utilization),
        "table": {"agents": TABLE_AGENTS, "rate": TABLE_RATE},
        "claims": [claim._asdict() for claim in CLAIMS] if _is_claimed(cost) else [],
        "arms": {result.arm: {load: _plain(getattr(result, load)) for load in _LOADS} for result in results},
        "floors": [
            {**floor._asdict(), "size": floor.size._asdict()} for floor in (floor_of(cost, EARLY), floor_of(cost, LATE))
        ],
        "differences": differences(results, cost) if _is_claimed(cost) else [],
        "sweep": [_plain(load) for load in loads],
    }


_LOADS = ("alone", "steady", "full")


def _plain(load: LoadResult) -> dict[str, Any]:
    return {**load._asdict(), "waits": {turn: waits._asdict() for turn, waits in load.waits.items()}}


def _write(
    folder: Path, document: dict[str, Any], loads: Sequence[LoadResult], cost: RooflineCost, console: Console
) -> None:
    from mainstem.bench.simulate_plots import draw_sweep

    path = folder / "result.json"
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        files = [path]
        if loads:
            files += draw_sweep(loads, f"{cost.sizes.name} on {cost.hardware.name}, simulated", folder)
    except OSError as error:
        raise MainstemError(f"cannot write into {folder}: {error.strerror}") from None
    console.print("written: " + ", ".join(str(file) for file in files), soft_wrap=True)
