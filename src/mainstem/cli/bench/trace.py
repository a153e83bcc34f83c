"""`mainstem bench trace`: hit ratio against capacity on recorded hash traces, without a model."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.cli.bars import report_console
from mainstem.cli.extras import require_bench_extras
from mainstem.cli.workload import whole_number
from mainstem.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from rich.console import Console

    from mainstem.bench.trace import BlockTrace, EndBit, TraceResult

SUMMARY = "hit ratio against capacity on recorded hash traces"
DESCRIPTION = """\
Replays who asked for which blocks of which prompts, from files that others
recorded, through the prefix caches alone: no model, no text. Prints how many
block references hit at each capacity, beside an infinite cache and the best
that any cache of that size could do (Belady: evict what is used last).

examples:
  mainstem bench trace conversation_trace.jsonl --out results/mooncake
  mainstem bench trace sessions/*.json --capacities 5%,20%,60000
  mainstem bench trace sixteen_token_blocks.jsonl --block-size 16

Files: Mooncake's JSON lines (timestamp, input_length, hash_ids), and the coding
sessions of kv-cache-tester. Several files share one cache; all start at once.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the workload's flags."""
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help="a hash trace")
    parser.add_argument("--out", metavar="DIR", type=Path, help="write result.json, trace.svg and trace.png there")
    parser.add_argument(
        "--capacities",
        metavar="LIST",
        help="capacities to measure, in blocks or in percent of the distinct ones, such as 5%%,1000 "
        "[default: 10 from 0.5%% to 100%%]",
    )
    parser.add_argument(
        "--block-size", metavar="TOKENS", help="tokens in a block, where the files do not say it [default: 512]"
    )
    parser.add_argument(
        "--end-bits",
        metavar="LIST",
        help="measure the tree also where each request says whether it is the last of its conversation, and is right "
        "in so many percent of the cases, such as 100,90,0; 90:false errs only in saying so, 90:missed only in not",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write."""
    block_size = None if arguments.block_size is None else whole_number("--block-size", arguments.block_size)
    end_bits = () if arguments.end_bits is None else _end_bits(arguments.end_bits)
    require_bench_extras("bench trace")
    if arguments.out is not None:
        _make_folder(arguments.out)

    from mainstem.bench.trace import choose_capacities, read_traces
    from mainstem.bench.trace.report import summary, table

    console = report_console()
    with console.status("reading"):
        trace = read_traces(arguments.files, block_size=block_size)
    capacities = choose_capacities(trace) if arguments.capacities is None else _capacities(arguments.capacities, trace)
    result = _measure(trace, capacities, end_bits, console)
    console.print(summary(result))
    console.print("hit ratio of blocks and of tokens, by capacity:\n")
    console.print(table(result))
    if arguments.out is not None:
        _write(result, arguments, console)
    return 0


def _measure(
    trace: BlockTrace, capacities: tuple[int, ...], end_bits: tuple[EndBit, ...], console: Console
) -> TraceResult:
    from rich.progress import Progress

    from mainstem.bench.trace import measure, policies

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bars = {
            name: progress.add_task(name, total=len(trace.requests) * len(capacities)) for name in policies(end_bits)
        }
        return measure(trace, capacities, lambda policy, requests: progress.advance(bars[policy], requests), end_bits)


def _write(result: TraceResult, arguments: argparse.Namespace, console: Console) -> None:
    from mainstem.bench.origin import origin
    from mainstem.bench.trace.report import as_json, draw

    names = ", ".join(path.name for path in arguments.files[:2]) + (
        f" and {len(arguments.files) - 2} more" if len(arguments.files) > 2 else ""
    )
    document = {
        **origin(["mainstem", *sys.argv[1:]]),
        "files": [path.name for path in arguments.files],
        **as_json(result),
    }
    path = arguments.out / "result.json"
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        files = [path, *draw(result, f"Prefix cache hits: {names}", arguments.out)]
    except OSError as error:
        raise TraceError(f"cannot write into {arguments.out}: {error.strerror}") from None
    console.print("written: " + ", ".join(str(file) for file in files), soft_wrap=True)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: cannot make the folder {folder}: {error.strerror}") from None


def _end_bits(text: str) -> tuple[EndBit, ...]:
    """How often what requests say is right, as the user gave it."""
    return tuple(dict.fromkeys(_end_bit(part.strip()) for part in text.split(",")))


def _end_bit(text: str) -> EndBit:
    from mainstem.bench.trace.sessions import ERRORS, EndBit

    share, _, errors = text.partition(":")
    try:
        percent = float(share.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100 or (errors or ERRORS[0]) not in ERRORS:
        raise ConfigError(
            f"--end-bits: '{text}' is neither a percentage, as in 90, nor one with errors, as in 90:false"
        )
    return EndBit(percent / 100, errors or ERRORS[0])


def _capacities(text: str, trace: BlockTrace) -> tuple[int, ...]:
    """The capacities that the user gave, in blocks, ascending."""
    sizes = {_capacity(part.strip(), trace.distinct) for part in text.split(",")}
    for size in sorted(sizes):
        if size < trace.longest:
            raise ConfigError(
                f"--capacities: {size} blocks cannot hold the longest prompt, which has {trace.longest} "
                f"({100 * trace.longest / trace.distinct:.3g}%)"
            )
    return tuple(sorted(sizes))


def _capacity(text: str, distinct: int) -> int:
    if not text.endswith("%"):
        if not text.isdecimal():
            raise ConfigError(
                f"--capacities: '{text}' is neither a number of blocks, as in 1000, nor a percentage, as in 5%"
            )
        return whole_number("--capacities", text)
    try:
        share = float(text.removesuffix("%"))
    except ValueError:
        raise ConfigError(f"--capacities: '{text}' is not a percentage") from None
    if not 0 < share <= 100:
        raise ConfigError(f"--capacities: a percentage must be above 0 and at most 100, got {text}")
    return int(distinct * share / 100)
