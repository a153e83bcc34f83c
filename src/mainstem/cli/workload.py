"""What `mainstem bench` does with any workload made of calls: load, warm up, run every arm, print, write.

Knows flags, the terminal and files. What is measured, and how, is the business of `mainstem.bench`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mainstem.cli.bars import progress_bar, report_console
from mainstem.cli.extras import require_bench_extras, require_extras
from mainstem.cli.options import add_options, read_settings
from mainstem.config import BLOCK_SIZE, EngineConfig
from mainstem.errors import ConfigError, MainstemError

if TYPE_CHECKING:
    from rich.console import Console

    from mainstem.bench.limits import Limits, ModelCost
    from mainstem.bench.report import Report
    from mainstem.bench.run import ArmRun, Arms
    from mainstem.bench.workload import Workload

FAILED = 1
# Tokens of the embedded model, for runs without a model.
DEFAULT_VOCAB_SIZE = 49_152
# About what two cores cost at a cloud provider.
DEFAULT_PRICE_PER_HOUR = 0.10

MakeWorkload: TypeAlias = "Callable[[int], Workload]"
"""Makes the workload for a vocabulary of a given size."""
ChoosePool: TypeAlias = "Callable[[Workload], int]"
"""Says how many slots the pool should have."""


class _Plan(NamedTuple):
    """The flags that all workloads share, checked."""

    config: EngineConfig
    arms: tuple[str, ...]
    repeats: int
    cache_only: bool
    block_size: int
    pool_tokens: int | None
    price_per_hour: float
    out: Path | None


class _Setting(NamedTuple):
    """What a workload runs on; what is the model's is None without one."""

    workload: Workload
    arms: Arms
    pool_tokens: int
    model: str | None
    dtype: str | None
    kernels: str | None
    threads: int | None
    cost: ModelCost | None
    limits: Limits | None


def configure_run(parser: argparse.ArgumentParser) -> None:
    """Add the flags that all workloads share."""
    group = parser.add_argument_group("run")
    group.add_argument("--arms", metavar="LIST", help="kinds of prefix cache to run, such as radix,none [default: all]")
    group.add_argument(
        "--repeats",
        metavar="N",
        help="how often each is run, in turn [default: 3; 1 with --cache-only, where every run gives the same]",
    )
    group.add_argument(
        "--cache-only",
        action="store_true",
        help="run the scheduler and the caches without a model: the same counts, and no times",
    )
    group.add_argument(
        "--block-size",
        dest="hash_block_size",  # the engine's setting of this name belongs to one kind of cache
        default=str(BLOCK_SIZE),
        metavar="TOKENS",
        help=f"tokens in a block of block-hash [default: {BLOCK_SIZE}]",
    )
    group.add_argument("--pool-tokens", metavar="N", help="size of the KV pool that every arm gets, in tokens")
    group.add_argument(
        "--price-per-hour",
        default=f"{DEFAULT_PRICE_PER_HOUR:g}",
        metavar="DOLLARS",
        help=f"of this machine, for the cost per task [default: {DEFAULT_PRICE_PER_HOUR:.2f}]",
    )
    group.add_argument("--out", metavar="DIR", type=Path, help="write result.json and the plots there")
    add_options(parser, EngineConfig, title="engine", leave_out=("prefix_cache", "block_size"))


def run_workload(arguments: argparse.Namespace, make: MakeWorkload, choose_pool: ChoosePool) -> int:
    """Run a workload as the flags say; returns the exit code, which is 1 if the arms did not say the same."""
    plan = _read(arguments)
    require_bench_extras("bench")
    if not plan.cache_only:
        require_extras("bench")

    console = report_console()
    setting = _virtual(plan, make, choose_pool) if plan.cache_only else _real(plan, make, choose_pool, console)
    _print_introduction(console, plan, setting)
    started = time.perf_counter()
    runs = _run(plan, setting, console)
    seconds = time.perf_counter() - started
    report = _report(plan, setting, runs)
    _print(console, report)
    if plan.cache_only:
        calls = len(runs) * len(setting.workload.calls)
        console.print(f"{calls:,} calls in {seconds:.1f} s without a model: {calls / seconds:,.0f} a second")
    if plan.out is not None:
        _write(plan, setting, report, runs, console)
    return 0 if plan.cache_only else _say_whether_same(report, setting, console)


def _read(arguments: argparse.Namespace) -> _Plan:
    from mainstem.bench.run import ARMS, parse_arms

    plan = _Plan(
        config=read_settings(EngineConfig, arguments),
        arms=ARMS if arguments.arms is None else parse_arms(arguments.arms),
        repeats=_repeats(arguments),
        cache_only=arguments.cache_only,
        block_size=whole_number("--block-size", arguments.hash_block_size),
        pool_tokens=None if arguments.pool_tokens is None else whole_number("--pool-tokens", arguments.pool_tokens),
        price_per_hour=positive_number("--price-per-hour", arguments.price_per_hour),
        out=arguments.out,
    )
    if plan.out is not None:
        try:
            plan.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: cannot make the folder {plan.out}: {error.strerror}") from None
    return plan


def _repeats(arguments: argparse.Namespace) -> int:
    if arguments.repeats is None:
        return 1 if arguments.cache_only else 3
    return whole_number("--repeats", arguments.repeats)


def _virtual(plan: _Plan, make: MakeWorkload, choose_pool: ChoosePool) -> _Setting:
    from mainstem.bench.run import VirtualArms

    workload = make(DEFAULT_VOCAB_SIZE)
    pool = _in_blocks(plan, plan.pool_tokens or choose_pool(workload))
    _require_fit(workload, plan.config.max_model_len, pool)
    arms = VirtualArms(plan.config, pool, workload.vocab_size, block_size=plan.block_size)
    return _Setting(workload, arms, pool, None, None, None, None, None, None)


def _real(plan: _Plan, make: MakeWorkload, choose_pool: ChoosePool, console: Console) -> _Setting:
    from mainstem.cli.loading import loading_display

    with loading_display(console) as display:
        display("starting", 0, None)
        import torch

        from mainstem.bench.limits import ModelCost, measure_limits
        from mainstem.bench.run import EngineArms
        from mainstem.engine import build_engine

        built = build_engine(plan.config, progress=display)
        workload = make(built.core.runner.shape.vocab_size)
        available = built.budget.pool_tokens
        if plan.pool_tokens is not None and plan.pool_tokens > available:
            raise ConfigError(
                f"--pool-tokens {plan.pool_tokens:,} is more than the {available:,} tokens of the KV pool; "
                "raise --kv-memory"
            )
        pool = _in_blocks(plan, plan.pool_tokens or min(choose_pool(workload), available))
        _require_fit(workload, built.core.max_model_len, pool)
        display("measuring this machine", 0, None)
        runner = built.core.runner
        limits = measure_limits(runner.shape, plan.config.max_num_batched_tokens, runner.device)
        arms = EngineArms(built, plan.config, pool, block_size=plan.block_size)
        display("warming up", 0, None)
        arms.warm_up()
        limits = limits.or_better(measure_limits(runner.shape, plan.config.max_num_batched_tokens, runner.device))
        threads = torch.get_num_threads()
    return _Setting(
        workload=workload,
        arms=arms,
        pool_tokens=pool,
        model=built.model_name,
        dtype=str(runner.shape.dtype).removeprefix("torch."),
        kernels=runner.attention.name,
        threads=threads,
        cost=ModelCost.of(runner.shape),
        limits=limits,
    )


def _in_blocks(plan: _Plan, slots: int) -> int:
    """Every arm gets as many slots; block hashes can use whole blocks only."""
    if slots < plan.block_size:
        raise ConfigError(f"a pool of {slots:,} tokens does not hold one block of {plan.block_size:,}")
    return slots - slots % plan.block_size


def _require_fit(workload: Workload, context: int | None, pool: int) -> None:
    """The last token of a reply needs no slot."""
    from mainstem.bench.drive import require_fit

    require_fit(workload, pool + 1 if context is None else min(context, pool + 1))


def _run(plan: _Plan, setting: _Setting, console: Console) -> list[ArmRun]:
    from mainstem.bench.run import run_arms

    total = len(plan.arms) * plan.repeats * len(setting.workload.calls)
    with _progress(console, total) as on_end:
        return list(run_arms(setting.workload, setting.arms, plan.arms, plan.repeats, on_end))


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[str, int, int], None]]:
    """A bar over all calls of all runs."""
    with progress_bar(console, "calls") as bars:
        bar = bars.add_task("starting", total=total)

        def on_end(arm: str, repeat: int, _call: int) -> None:
            bars.update(bar, advance=1, description=f"{arm}, run {repeat + 1}")

        yield on_end


def _report(plan: _Plan, setting: _Setting, runs: Sequence[ArmRun]) -> Report:
    from mainstem.bench.report import Pricing, make_report

    return make_report(
        setting.workload,
        runs,
        timed=not plan.cache_only,
        cost=setting.cost,
        limits=setting.limits,
        pricing=Pricing(plan.price_per_hour),
    )


def _print_introduction(console: Console, plan: _Plan, setting: _Setting) -> None:
    workload = setting.workload
    values = ", ".join(f"{name} {_text(value)}" for name, value in workload.settings.items())
    console.print(
        f"[bold]{workload.name}[/]: {len(workload.calls):,} calls in {workload.num_sessions:,} sessions, "
        f"{sum(workload.prompt_lengths):,} prompt tokens, the longest {max(workload.prompt_lengths):,} ({values})"
    )
    times = "once" if plan.repeats == 1 else f"{plan.repeats} times"
    console.print(f"Every arm runs {times}, each time from an empty pool of {setting.pool_tokens:,} tokens.")
    if setting.limits is None:
        console.print("Without a model: counts only.")
    else:
        limits = setting.limits
        console.print(
            f"{setting.model} in {setting.dtype}, {setting.kernels} kernels, {setting.threads} threads. This machine "
            f"reaches {limits.flops_per_s / 1e9:,.0f} GFLOP/s in a matrix product and "
            f"{limits.bytes_per_s / 1e9:.1f} GB/s in a copy, and costs ${plan.price_per_hour:g} an hour."
        )


def _text(value: object) -> str:
    return "–".join(map(str, value)) if isinstance(value, list) else str(value)


def _print(console: Console, report: Report) -> None:
    from mainstem.bench.tables import notes, totals_table, turns_table

    console.print()
    console.print(turns_table(report, console.width))
    console.print()
    console.print(totals_table(report))
    for note in notes(report):
        console.print(note)


def _say_whether_same(report: Report, setting: _Setting, console: Console) -> int:
    found = report.difference
    if found is None:
        console.print("All arms gave the same greedy text in every call.")
        return 0
    call = setting.workload.calls[found.call]
    message = (
        f"turn {call.turn} of session {call.session} (call {found.call}) differs from token {found.token} of its "
        f"reply, in {found.arm}, run {found.repeat + 1}, and {found.other_arm}, run {found.other_repeat + 1}"
    )
    if setting.dtype == "float32":
        console.print(f"[red]The arms did not give the same greedy text: {message}.[/]")
        return FAILED
    console.print(f"In {setting.dtype} the arms' greedy texts may differ, and do: {message}.")
    return 0


def _write(plan: _Plan, setting: _Setting, report: Report, runs: Sequence[ArmRun], console: Console) -> None:
    from mainstem.bench.origin import origin
    from mainstem.bench.plots import draw_report
    from mainstem.bench.report import as_json

    assert plan.out is not None
    config = plan.config
    engine: dict[str, Any] = {
        "model": setting.model,
        "dtype": setting.dtype,
        "kernels": setting.kernels,
        "threads": setting.threads,
        "pool_tokens": setting.pool_tokens,
        "block_size": plan.block_size,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "cascade": config.cascade,
    }
    document = {
        **origin(["mainstem", *sys.argv[1:]]),
        "cache_only": plan.cache_only,
        "engine": engine,
        "limits": None if setting.limits is None else setting.limits._asdict(),
        "model_cost": None if setting.cost is None else setting.cost._asdict(),
        "price_per_hour": plan.price_per_hour,
        **as_json(report),
    }
    path = plan.out / "result.json"
    title = f"{report.workload.name}: {setting.model or 'caches without a model'}"
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        files = [path, *draw_report(report, runs, title, plan.out)]
    except OSError as error:
        raise MainstemError(f"cannot write into {plan.out}: {error.strerror}") from None
    console.print("written: " + ", ".join(str(file) for file in files), soft_wrap=True)


def whole_number(flag: str, text: str) -> int:
    """A flag's value, at least 1.

    Raises:
        ConfigError: when it is none.
    """
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{flag}: '{text}' is not a whole number") from None
    if value < 1:
        raise ConfigError(f"{flag} must be at least 1, got {value}")
    return value


def seed_number(flag: str, text: str) -> int:
    """A flag's value, at least 0.

    Raises:
        ConfigError: when it is none.
    """
    return 0 if text.strip() == "0" else whole_number(flag, text)


def positive_number(flag: str, text: str) -> float:
    """A flag's value, above 0.

    Raises:
        ConfigError: when it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"{flag} must be a number above 0, got '{text}'")
    return value
