"""`mainstem bench any`: the agent and branch workloads against any OpenAI-compatible server."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mainstem.cli.bars import progress_bar, report_console
from mainstem.cli.bench.agent import parse_turns
from mainstem.cli.environment import server_url
from mainstem.cli.extras import require_bench_extras
from mainstem.cli.workload import positive_number, seed_number, whole_number
from mainstem.errors import ConfigError, MainstemError

if TYPE_CHECKING:
    from rich.console import Console

    from mainstem.bench.http import CompletionsClient
    from mainstem.bench.http_report import ServerReport
    from mainstem.bench.workload import Workload

SUMMARY = "the agent and branch workloads against any OpenAI-compatible server"
DESCRIPTION = """\
Sends the same tokens to a running server, whoever made it, as agents would:
each call as soon as the reply that it extends is complete, all sessions at
once. Times are this client's. docs/peers.md says how to start vLLM, OpenVINO,
llama.cpp and SGLang beside mainstem.

examples:
  mainstem bench any --base-url http://127.0.0.1:8000/v1
  mainstem bench any --base-url http://127.0.0.1:8001/v1 --workload branch
  mainstem bench any --base-url http://127.0.0.1:8001/v1 --agents 4 --out vllm

Every run has tokens of its own, so a server that has run the workload before
is as cold as a new one, as long as --seed is another. Servers that refuse token
ids get text, a short word for every token; their counts of tokens are their own.
"""

# Below the vocabularies of nearly all models.
DEFAULT_VOCAB_SIZE = 30_000
CONNECTIONS = 256
WORKLOADS = ("agent", "branch")
_WARM_UP_TOKENS = 512


class _Plan(NamedTuple):
    """The flags, checked."""

    base_url: str
    model: str | None
    api_key: str | None
    workloads: tuple[Workload, ...]
    repeats: int
    connections: int
    silence_s: float
    price_per_hour: float | None
    out: Path | None


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the workload's flags."""
    server = parser.add_argument_group("server")
    server.add_argument(
        "--base-url", metavar="URL", required=True, help="where it listens, such as http://127.0.0.1:8000/v1"
    )
    server.add_argument("--model", metavar="NAME", help="model to ask for [default: the first that it lists]")
    server.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    server.add_argument(
        "--connections", default=str(CONNECTIONS), metavar="N", help=f"most calls at once [default: {CONNECTIONS}]"
    )
    server.add_argument(
        "--timeout", default="600", metavar="SECONDS", help="give up a server that is silent for so long [default: 600]"
    )
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--workload", default=",".join(WORKLOADS), metavar="LIST", help="which ones to run [default: agent,branch]"
    )
    group.add_argument("--scale", default="0.25", metavar="X", help="of their lengths [default: 0.25]")
    group.add_argument("--turns", default="8-15", metavar="N|N-M", help="of an agent [default: 8-15]")
    group.add_argument("--agents", default="2", metavar="N", help="how many [default: 2]")
    group.add_argument("--branches", default="8", metavar="N", help="thoughts below a node [default: 8]")
    group.add_argument("--depth", default="3", metavar="N", help="levels of thoughts [default: 3]")
    group.add_argument("--seed", default="0", metavar="N", help="fixes every token and length [default: 0]")
    group.add_argument(
        "--vocab-size",
        default=str(DEFAULT_VOCAB_SIZE),
        metavar="N",
        help=f"token ids are below this [default: {DEFAULT_VOCAB_SIZE}]",
    )
    run = parser.add_argument_group("run")
    run.add_argument("--repeats", default="3", metavar="N", help="runs, each with other tokens [default: 3]")
    run.add_argument("--price-per-hour", metavar="DOLLARS", help="of the server's machine, for the cost of a session")
    run.add_argument("--out", metavar="DIR", type=Path, help="write a result and plots of each workload there")


def run(arguments: argparse.Namespace) -> int:
    """Run the workloads, print and write."""
    plan = _read(arguments)
    require_bench_extras("bench any")

    return asyncio.run(_run(plan, report_console()))


def _read(arguments: argparse.Namespace) -> _Plan:
    price = arguments.price_per_hour
    plan = _Plan(
        base_url=server_url(arguments.base_url),
        model=arguments.model,
        api_key=arguments.api_key,
        workloads=_workloads(arguments),
        repeats=whole_number("--repeats", arguments.repeats),
        connections=whole_number("--connections", arguments.connections),
        silence_s=positive_number("--timeout", arguments.timeout),
        price_per_hour=None if price is None else positive_number("--price-per-hour", price),
        out=arguments.out,
    )
    for folder in [] if plan.out is None else [plan.out / workload.name for workload in plan.workloads]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: cannot make the folder {folder}: {error.strerror}") from None
    return plan


def _workloads(arguments: argparse.Namespace) -> tuple[Workload, ...]:
    from mainstem.bench.workloads.agent import agent
    from mainstem.bench.workloads.branch import branch

    scale = positive_number("--scale", arguments.scale)
    turns = parse_turns(arguments.turns)
    agents = whole_number("--agents", arguments.agents)
    branches = whole_number("--branches", arguments.branches)
    depth = whole_number("--depth", arguments.depth)
    seed = seed_number("--seed", arguments.seed)
    vocab_size = whole_number("--vocab-size", arguments.vocab_size)
    make: dict[str, Callable[[], Workload]] = {
        "agent": lambda: agent(scale=scale, turns=turns, agents=agents, seed=seed, vocab_size=vocab_size),
        "branch": lambda: branch(scale=scale, branches=branches, depth=depth, seed=seed, vocab_size=vocab_size),
    }
    names = [name.strip() for name in arguments.workload.split(",")]
    for name in names:
        if name not in WORKLOADS:
            raise ConfigError(f"--workload: there is no '{name}' here; choose from {', '.join(WORKLOADS)}")
    return tuple(make[name]() for name in dict.fromkeys(names))


async def _run(plan: _Plan, console: Console) -> int:
    from mainstem.bench.closed_loop import run_closed_loop
    from mainstem.bench.drive import require_fit
    from mainstem.bench.http import CompletionsClient
    from mainstem.bench.http_report import server_report
    from mainstem.bench.report import Pricing

    client = CompletionsClient(
        plan.base_url,
        model=plan.model,
        api_key=plan.api_key,
        connections=plan.connections,
        silence_s=plan.silence_s,
    )
    pricing = None if plan.price_per_hour is None else Pricing(plan.price_per_hour)
    async with client:
        _introduce(client, console)
        for workload in plan.workloads:
            if client.context is not None:
                require_fit(workload, client.context)
        # Servers set themselves up at their first long prompt; the probes before it were short.
        vocab_size = plan.workloads[0].vocab_size
        await client.complete(client.prompt([token % vocab_size for token in range(_WARM_UP_TOKENS)]), 4)
        for workload in plan.workloads:
            with _progress(console, workload, plan.repeats) as on_end:
                replies = [
                    await run_closed_loop(client, _run_of(workload, repeat), on_end) for repeat in range(plan.repeats)
                ]
            result = server_report(client.model, workload, replies, pricing)
            _print(result, console)
            if plan.out is not None:
                _write(plan, client, result, plan.out / workload.name, console)
    return 0


def _run_of(workload: Workload, repeat: int) -> Workload:
    """One run of a workload; no two runs of any workloads begin with the same tokens, even of one seed."""
    from mainstem.bench.closed_loop import with_other_tokens

    return with_other_tokens(workload, repeat * len(WORKLOADS) + WORKLOADS.index(workload.name))


def _introduce(client: CompletionsClient, console: Console) -> None:
    dialect = client.dialect
    context = "an unknown context" if client.context is None else f"{client.context:,} tokens of context"
    spoken = "token ids" if dialect.token_ids else "text, a word a token"
    console.print(f"{client.model} at {client.base_url}: {context}; prompts are {spoken}")
    if dialect.token_ids and not dialect.streams_ids:
        console.print("The stream has no token ids; replies are tokenized again, and may differ from what was cached.")
    if not dialect.extensions:
        console.print("The server takes OpenAI's fields only: a reply may end before its length.")


@contextmanager
def _progress(console: Console, workload: Workload, repeats: int) -> Iterator[Callable[[int], None]]:
    """A bar over all calls of all runs."""
    with progress_bar(console, "calls") as bars:
        bar = bars.add_task(workload.name, total=repeats * len(workload.calls))
        yield lambda _call: bars.advance(bar)


def _print(result: ServerReport, console: Console) -> None:
    from mainstem.bench.http_report import server_table, summary

    workload, repeats = result.report.workload, result.report.repeats
    sessions = "one session" if workload.num_sessions == 1 else f"{workload.num_sessions} sessions"
    times = "once" if repeats == 1 else f"{repeats} times, each in other tokens"
    console.print(
        f"\n[bold]{workload.name}[/], run {times}: {len(workload.calls)} calls in {sessions}, "
        f"{sum(workload.prompt_lengths):,} prompt tokens; tokens in the mean of a call, times in the median"
    )
    console.print(server_table(result))
    for line in summary(result):
        console.print(line)


def _write(plan: _Plan, client: CompletionsClient, result: ServerReport, folder: Path, console: Console) -> None:
    from mainstem.bench.http_report import server_json
    from mainstem.bench.origin import origin
    from mainstem.bench.plots import draw_report

    document = {
        **origin(["mainstem", *sys.argv[1:]]),
        "server": {
            "base_url": client.base_url,
            "model": client.model,
            "context": client.context,
            **client.dialect._asdict(),
        },
        "price_per_hour": plan.price_per_hour,
        **server_json(result),
    }
    path = folder / "result.json"
    title = f"{result.report.workload.name}: {client.model} at {client.base_url}"
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        files = [path, *draw_report(result.report, result.runs, title, folder, prefill=result.tells_cached)]
    except OSError as error:
        raise MainstemError(f"cannot write into {folder}: {error.strerror}") from None
    console.print("written: " + ", ".join(str(file) for file in files), soft_wrap=True)
