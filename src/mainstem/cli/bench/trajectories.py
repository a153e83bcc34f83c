"""`mainstem bench trajectories`: recordings of real agents, replayed turn by turn.

Knows flags, the terminal and files. Reading and rendering recordings is the business of `mainstem.bench`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mainstem.bench.drive import drive
from mainstem.bench.run import ARMS, ArmRun, EngineArms, VirtualArms, ample_pool, parse_arms, run_arms
from mainstem.bench.workload import Workload
from mainstem.cli.bars import bars, report_console, report_table
from mainstem.cli.extras import require_bench_extras, require_extras
from mainstem.cli.options import add_options, read_settings
from mainstem.cli.workload import whole_number
from mainstem.config import BLOCK_SIZE, EngineConfig
from mainstem.errors import ConfigError, MainstemError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mainstem.bench.recordings import Recording
    from mainstem.bench.report import Report
    from mainstem.model import Progress
    from mainstem.tokens import Tokenizer

FAILED = 1

SUMMARY = "recordings of real agents, turn by turn, with what they really said"
DESCRIPTION = """\
Replays recordings of agents: SWE-agent trajectories, tau-bench results,
OpenHands request logs, pi sessions, VCR cassettes of chat completions, and
plain lists of messages (mini-swe-agent). Every prompt is rendered with the
model's chat template, and the recorded reply is put in place of the model's.
With --cache-only no model computes anything: the scheduler and the caches run
alone. Each source starts from an empty cache.

examples:
  mainstem bench trajectories --data recordings --cache-only
  mainstem bench trajectories run.traj --arms radix,none --repeats 1
"""


class SourceResult(NamedTuple):
    """One source, replayed on every arm.

    Attributes:
        turns_left_out: recorded turns that did not fit the context.
        seconds: that it took to replay all arms.
    """

    source: str
    report: Report
    turns_left_out: int
    seconds: float


class _Plan(NamedTuple):
    """The flags, checked."""

    config: EngineConfig
    paths: list[Path]
    arms: tuple[str, ...]
    repeats: int
    concurrency: int
    cache_only: bool
    waits: bool
    pool_tokens: int | None
    out: Path | None


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the workload's flags."""
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="recordings, or folders of them")
    parser.add_argument("--data", type=Path, metavar="DIR", help="a folder with a folder 'trajectories' in it")
    parser.add_argument(
        "--concurrency", default="4", metavar="N", help="sessions of a source that go on at the same time [default: 4]"
    )
    parser.add_argument(
        "--waits",
        action="store_true",
        help="wait before each turn as long as the agent did, where the recording says; no time really passes",
    )
    group = parser.add_argument_group("run")
    arms = ",".join(ARMS)
    group.add_argument("--arms", default=arms, metavar="LIST", help=f"kinds of prefix cache to run [default: {arms}]")
    group.add_argument("--repeats", default="1", metavar="N", help="how often each is run, in turn [default: 1]")
    group.add_argument(
        "--cache-only",
        action="store_true",
        help="run the scheduler and the caches without a model: the same counts, no times, no limit of the context",
    )
    group.add_argument("--pool-tokens", metavar="N", help="size of the KV pool in tokens; by default enough for all")
    group.add_argument("--out", metavar="DIR", type=Path, help="write result.json there")
    add_options(parser, EngineConfig, title="engine", leave_out=("prefix_cache", "block_size"))


def run(arguments: argparse.Namespace) -> int:
    """Replay the recordings on every arm."""
    plan = _read(arguments)
    require_extras("bench")
    require_bench_extras("bench")

    from mainstem.bench.recordings import read_recordings

    console = report_console()
    found = read_recordings(plan.paths)
    if not found.recordings:
        raise ConfigError(f"there are no recordings of agents in {', '.join(map(str, plan.paths))}")
    if found.skipped:
        console.print(f"{len(found.skipped)} files hold no recording that can be replayed; they are left out.")
    with bars(console, "turns") as tell:
        replays = _without_model(plan, tell) if plan.cache_only else _on_engine(plan, tell)
        results = _replay_sources(plan, found.recordings, replays, console, tell)
    _print(console, plan, replays, results)
    if plan.out is not None:
        _write(plan, plan.out, replays, results, console)
    return 0 if plan.cache_only else _say_whether_same(results, console)


def _read(arguments: argparse.Namespace) -> _Plan:
    paths: list[Path] = list(arguments.paths)
    if arguments.data is not None:
        paths.append(arguments.data / "trajectories")
    if not paths:
        raise ConfigError("say which recordings: PATH..., or --data DIR")
    if arguments.out is not None:
        try:
            arguments.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: cannot make the folder {arguments.out}: {error.strerror}") from None
    return _Plan(
        config=read_settings(EngineConfig, arguments),
        paths=paths,
        arms=parse_arms(arguments.arms),
        repeats=whole_number("--repeats", arguments.repeats),
        concurrency=whole_number("--concurrency", arguments.concurrency),
        cache_only=arguments.cache_only,
        waits=arguments.waits,
        pool_tokens=None if arguments.pool_tokens is None else whole_number("--pool-tokens", arguments.pool_tokens),
        out=arguments.out,
    )


# -- what replays -----------------------------------------------------------------------------------------------------


class _Replays(NamedTuple):
    """What recordings are replayed on.

    Attributes:
        model: whose template and tokens they are put into.
        tokenizer: of the model.
        max_len: most tokens of a prompt and its reply; None for no limit.
        run: replays a workload on every arm, telling how many calls have ended.
    """

    model: str
    tokenizer: Tokenizer
    max_len: int | None
    run: Callable[[Workload, Callable[[], None]], list[ArmRun]]


def _without_model(plan: _Plan, tell: Progress) -> _Replays:
    from mainstem.model import resolve_model
    from mainstem.tokens import Tokenizer

    files = resolve_model(plan.config.model, tell)
    tokenizer = Tokenizer.load(files.folder)

    def run(workload: Workload, on_end: Callable[[], None]) -> list[ArmRun]:
        """Without a model nothing varies, so once is enough."""
        pool = _whole_blocks(plan.pool_tokens or ample_pool(workload))
        arms = VirtualArms(plan.config, pool, workload.vocab_size)
        return [
            ArmRun(arm, 0, drive(workload, arms.machine(arm), lambda _: on_end(), watch_memory=False).records)
            for arm in plan.arms
        ]

    return _Replays(files.name, tokenizer, plan.config.max_model_len or plan.pool_tokens, run)


def _on_engine(plan: _Plan, tell: Progress) -> _Replays:
    from mainstem.engine import build_engine

    built = build_engine(plan.config, progress=tell)
    available = built.budget.pool_tokens
    pool = _whole_blocks(plan.pool_tokens or available)
    if pool > available:
        raise ConfigError(f"--pool-tokens {pool:,} is more than the {available:,} of the KV pool; raise --kv-memory")
    EngineArms(built, plan.config, pool).warm_up()

    def run(workload: Workload, on_end: Callable[[], None]) -> list[ArmRun]:
        enough = pool if plan.pool_tokens else min(pool, ample_pool(workload))
        arms = EngineArms(built, plan.config, enough)
        return list(run_arms(workload, arms, plan.arms, plan.repeats, lambda _arm, _repeat, _call: on_end()))

    # The last token of a reply needs no slot.
    return _Replays(built.model_name, built.core.tokenizer, min(built.core.max_model_len, pool + 1), run)


def _whole_blocks(slots: int) -> int:
    """As many slots as every arm can use."""
    if slots < BLOCK_SIZE:
        raise ConfigError(f"a pool of {slots:,} tokens does not hold one block of {BLOCK_SIZE}")
    return slots - slots % BLOCK_SIZE


def _replay_sources(
    plan: _Plan, recordings: Sequence[Recording], replays: _Replays, console: Console, tell: Progress
) -> list[SourceResult]:
    from mainstem.bench.report import make_report
    from mainstem.bench.workloads.trajectories import tokenize, trajectories

    tokenized = tokenize(recordings, replays.tokenizer, progress=tell)
    for refusal in tokenized.refusals:
        console.print(f"{refusal.name} is left out: {refusal.reason}", markup=False)
    results = []
    for source in sorted({session.source for session in tokenized.sessions}):
        made = trajectories(
            [session for session in tokenized.sessions if session.source == source],
            replays.tokenizer.vocab_size,
            max_len=replays.max_len,
            concurrency=plan.concurrency,
            waits=plan.waits,
        )
        if made.workload.calls:
            started = time.perf_counter()
            runs = replays.run(made.workload, _counter(plan, made.workload, source, tell))
            seconds = time.perf_counter() - started
            report = make_report(made.workload, runs, timed=not plan.cache_only)
            results.append(SourceResult(source, report, made.turns_left_out, seconds))
        else:
            console.print(f"No turn of {source} fits the context of {replays.max_len:,} tokens.")
    return results


def _counter(plan: _Plan, workload: Workload, source: str, tell: Progress) -> Callable[[], None]:
    total = len(workload.calls) * len(plan.arms) * (1 if plan.cache_only else plan.repeats)
    done = 0

    def on_end() -> None:
        nonlocal done
        done += 1
        tell(source, done, total)

    return on_end


# -- what is said of it -----------------------------------------------------------------------------------------------


def _print(console: Console, plan: _Plan, replays: _Replays, results: Sequence[SourceResult]) -> None:
    arms = ", ".join(plan.arms)
    console.print(
        f"[bold]trajectories[/] with the template and the tokens of {replays.model}, {plan.concurrency} sessions at a "
        f"time, each source from an empty cache; arms: {arms}."
    )
    console.print(_table(results))
    if plan.cache_only:
        turns = sum(len(result.report.workload.calls) for result in results) * len(plan.arms)
        seconds = sum(result.seconds for result in results)
        console.print(f"{turns:,} turns in {seconds:.1f} s without a model: {turns / max(seconds, 1e-9):,.0f} a second")
    for result in results:
        if result.turns_left_out:
            console.print(
                f"{result.source}: {result.turns_left_out:,} turns are left out, in each session from the first that "
                f"is longer than {replays.max_len:,} tokens with its reply."
            )


def _table(results: Sequence[SourceResult]) -> Table:
    table = report_table()
    table.add_column("source", no_wrap=True)
    for name in ("turns", "prompt\n× 1000", "new\ntokens", "most\nhits"):
        table.add_column(name, justify="right", no_wrap=True)
    arms = results[0].report.arms if results else []
    for arm in arms:
        table.add_column(f"{arm.arm}\nA   hits", justify="right", no_wrap=True)
    if any(arm.times is not None for arm in arms):
        table.add_column(f"TTFT, median, ms\n{' / '.join(arm.arm for arm in arms)}", justify="right")
    for result in results:
        counts = result.report.arms[0].counts
        cells = [f"{counts.calls:,}", f"{counts.prompt / 1000:,.0f}", f"{counts.new:,}", f"{counts.hit_ceiling:.1%}"]
        cells += [f"{_short(arm.counts.amplification)} {arm.counts.hit_ratio:6.1%}" for arm in result.report.arms]
        waits = [arm.times.ttft.median.median for arm in result.report.arms if arm.times is not None]
        if waits:
            cells.append(" / ".join(f"{seconds * 1e3:,.0f}" for seconds in waits))
        table.add_row(result.source, *cells)
    return table


def _short(amplification: float) -> str:
    return f"{amplification:.3f}" if amplification < 100 else f"{amplification:.1f}"


def _say_whether_same(results: Sequence[SourceResult], console: Console) -> int:
    """Recorded replies are put in place of the arms' own, so any difference is a fault."""
    differing = [result.source for result in results if result.report.difference is not None]
    if differing:
        console.print(f"[red]The arms' replies are not the recorded ones: {', '.join(differing)}.[/]")
    return FAILED if differing else 0


def _write(plan: _Plan, folder: Path, replays: _Replays, results: Sequence[SourceResult], console: Console) -> None:
    from mainstem.bench.origin import origin
    from mainstem.bench.report import as_json

    sources = {result.source: {"turns_left_out": result.turns_left_out, **as_json(result.report)} for result in results}
    document: dict[str, Any] = {
        **origin(["mainstem", *sys.argv[1:]]),
        "cache_only": plan.cache_only,
        "model": replays.model,
        "max_len": replays.max_len,
        "sources": sources,
    }
    path = folder / "result.json"
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise MainstemError(f"cannot write into {folder}: {error.strerror}") from None
    console.print(f"written: {path}", soft_wrap=True)
