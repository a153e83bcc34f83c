"""`mainstem demo`: a ten-turn agent session against a real server in this process, with the prefix cache and without.

Plays the recorded session of `session.py` through HTTP, with tools that the model calls, and tells what each turn cost.
The second, uncached arm is the same request with a `cache_salt` of its own: same code, same batch, but nothing stored
that it may use.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mainstem.bench.origin import cores
from mainstem.cli.extras import require_extras
from mainstem.cli.options import add_options, read_settings
from mainstem.cli.session import MAX_TOKENS, MIN_TOKENS, TURNS, AgentSession, load_tools
from mainstem.config import EngineConfig
from mainstem.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from mainstem.cli.client import ChatClient, Reply
    from mainstem.cli.report import Summary, TurnReport
    from mainstem.engine import AsyncEngine

SUMMARY = "watch a ten-turn agent session, with the prefix cache and without"
DESCRIPTION = """\
Loads the model, serves it on a free local port, and plays a ten-turn
coding-agent session with tools through HTTP. Every turn is asked twice, with
the prefix cache and without, and each row says what that cost. Takes one to
two minutes on two cores.
"""

# Enough for the longest call that the tools allow, should each character be a token.
REPLY_TOKENS = 192
# Longer prompts cost more a token, but over this session not twice as much.
UNSTEADY = 2.5
# Greedy, so that every run is the same. Without the penalty a model this small says its first reply again at each turn.
SAMPLING: Final[dict[str, Any]] = {"temperature": 0, "repetition_penalty": 1.15}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the demo's flags."""
    parser.add_argument(
        "--tokens",
        default="4000",
        metavar="N",
        help=f"length of the last prompt, about; {MIN_TOKENS} to {MAX_TOKENS} [default: 4000]",
    )
    parser.add_argument("--replies", action="store_true", help="show what the model replies")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write every number to FILE")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="also draw the chart into FILE")
    add_options(parser, EngineConfig, title="engine")


def run(arguments: argparse.Namespace) -> int:
    """Play the session and print what it cost."""
    config = read_settings(EngineConfig, arguments)
    tokens = _wanted_tokens(arguments.tokens)
    for path in (arguments.json, arguments.svg):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"cannot write {path}: there is no folder {path.absolute().parent}")
    require_extras("demo")

    from rich.console import Console

    from mainstem.cli.client import ChatClient
    from mainstem.cli.local import local_server
    from mainstem.cli.report import summarize

    console = Console(highlight=False)
    with local_server(config, console) as server, ChatClient(server.base_url, api_key=server.api_key) as client:
        _check_length(server.engine, tokens)
        _print_introduction(console, server.engine, server.base_url)
        turns = _play(client, server.engine, tokens, console, show_replies=arguments.replies)
        summary = summarize(turns)
        _print_summary(console, turns, summary)
        _write_files(arguments, server.engine, turns, summary)
    _print_next_steps(console, config.model, server.engine.model_name)
    return 0


def _wanted_tokens(text: str) -> int:
    try:
        tokens = int(text)
    except ValueError:
        raise ConfigError(f"--tokens: '{text}' is not a whole number") from None
    if not MIN_TOKENS <= tokens <= MAX_TOKENS:
        raise ConfigError(f"--tokens must be between {MIN_TOKENS} and {MAX_TOKENS}, got {tokens}")
    return tokens


def _check_length(engine: AsyncEngine, tokens: int) -> None:
    room = engine.max_model_len - REPLY_TOKENS
    if tokens > room:
        raise ConfigError(
            f"--tokens must be at most {room} here: the model serves {engine.max_model_len} with the reply"
        )


def _play(
    client: ChatClient, engine: AsyncEngine, tokens: int, console: Console, *, show_replies: bool
) -> list[TurnReport]:
    from mainstem.cli.report import TurnReport, new_tokens

    tools = load_tools()
    session = AgentSession(tokens, lambda messages: len(engine.tokenizer.encode_chat(messages, tools=tools)))
    _print_header(console)
    turns: list[TurnReport] = []
    before: Reply | None = None
    for turn in range(1, TURNS + 1):
        step = session.ask()
        # The first token of a call says nothing yet: its id shows that it came.
        fields = {"tools": tools, "tool_choice": session.tool_choice, "return_token_ids": True, **SAMPLING}
        if before is None:
            # The first request of a process also pays for one-time set-up, which is no turn's cost.
            _ask_uncached(client, [{"role": "user", "content": "Hello."}], fields, "warm-up")
        with console.status(f"turn {turn} of {TURNS}: with the prefix cache"):
            reply = client.complete(session.messages, max_tokens=REPLY_TOKENS, **fields)
        with console.status(
            f"turn {turn} of {TURNS}: first token after {reply.ttft_s:.2f} s; "
            f"now all {reply.prompt_tokens:,} tokens again, without the cache"
        ):
            uncached_ttft_s = _ask_uncached(client, session.messages, fields, f"turn {turn}")
        session.answer(reply.message)
        turns.append(TurnReport(turn, step.does, new_tokens(reply, before), reply, uncached_ttft_s))
        before = reply
        _print_turn(console, turns[-1], show_reply=show_replies)
    return turns


def _ask_uncached(
    client: ChatClient, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any], salt: str
) -> float:
    """Seconds to the first token when nothing of the prompt may be reused."""
    return client.complete(messages, max_tokens=1, **fields, cache_salt=f"without the cache: {salt}").ttft_s


def _print_introduction(console: Console, engine: AsyncEngine, base_url: str) -> None:
    console.print(
        f"\n[bold]A coding agent hunts a bug in a small repository, in {TURNS} turns.[/]\n"
        "Its steps and what its tools return are recorded; the model's calls are real,\n"
        "made as tool_choice asks, and stay in the prompt.\n"
        "Each prompt repeats everything before it. Each turn is asked twice: with the\n"
        "prefix cache, and without (the same request under a cache_salt never used).\n"
        "TTFT is the time to the first token, as the client sees it.\n\n"
        f"{engine.model_name}, {cores()} cores, a KV pool of {engine.budget.pool_tokens:,} tokens, at {base_url}\n"
    )


def _print_header(console: Console) -> None:
    columns = (("prompt", 6), ("cached", 6), ("prefilled", 9), ("new", 5), ("TTFT", 7), ("no cache", 8), ("faster", 6))
    console.print(f"[bold]turn  {'the agent':<15} {' '.join(f'{name:>{width}}' for name, width in columns)}[/]")


def _print_turn(console: Console, turn: TurnReport, *, show_reply: bool) -> None:
    reply = turn.reply
    console.print(
        f"{turn.turn:>4}  {turn.does:<15} {reply.prompt_tokens:>6,} {reply.cached_tokens:>6,} "
        f"{reply.prefilled_tokens:>9,} {turn.new_tokens:>5,} [green]{reply.ttft_s:>5.2f} s[/] "
        f"{turn.uncached_ttft_s:>6.2f} s [bold]{turn.speedup:>5.1f}×[/]"
    )
    if show_reply:
        said = [
            reply.text,
            *(f"{call['function']['name']} {call['function']['arguments']}" for call in reply.tool_calls),
        ]
        console.print(f"      {' '.join(' '.join(said).split())}", style="italic bright_black", markup=False)


def _print_summary(console: Console, turns: Sequence[TurnReport], summary: Summary) -> None:
    from mainstem.cli.chart import print_chart

    last = turns[-1]
    rows = (
        (
            "prefill amplification",
            f"{summary.amplification:.2f}",
            f"{summary.prefilled_tokens:,} tokens computed for {summary.new_tokens:,} new ones",
        ),
        ("  without the cache", f"{summary.uncached_amplification:.2f}", f"{summary.prompt_tokens:,} tokens computed"),
        (
            "waiting, ten turns",
            f"{summary.ttft_s:.1f} s",
            f"not {summary.uncached_ttft_s:.1f} s: {summary.uncached_ttft_s - summary.ttft_s:.1f} s saved",
        ),
        (
            f"waiting, turn {last.turn}",
            f"{last.reply.ttft_s:.2f} s",
            f"not {last.uncached_ttft_s:.2f} s: {last.reply.prefilled_tokens:,} tokens prefilled, "
            f"not {last.reply.prompt_tokens:,}",
        ),
        (
            "KV memory shared",
            f"{summary.shared:.0%}",
            f"the turns use {summary.logical_tokens:,} tokens, {summary.resident_tokens:,} are held",
        ),
    )
    console.print()
    for name, value, detail in rows:
        console.print(f"{name:<21} [bold green]{value:>7}[/]  {detail}")
    if summary.unsteadiness > UNSTEADY:
        console.print(
            "\n[yellow]Other work took this machine's cores: without the cache, a token took up\n"
            f"to {summary.unsteadiness:.1f} times as long in one turn as in another. The times are not to be\n"
            "trusted; the token counts are.[/]"
        )
    console.print()
    print_chart(console, turns)


def _print_next_steps(console: Console, model: str, model_name: str) -> None:
    # Within `make demo` the command is not on the path.
    command = "mainstem" if shutil.which("mainstem") else os.path.relpath(sys.argv[0])
    flags = "" if model == EngineConfig().model else f" --model {shlex.quote(model)}"
    for line in (
        "",
        "Connect your own agent",
        f"  {command} serve{flags}",
        "  export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none",
        "",
        "  from openai import OpenAI",
        '  messages = [{"role": "user", "content": "Hello."}]',
        f'  reply = OpenAI().chat.completions.create(model="{model_name}", messages=messages, max_tokens=40)',
        "  print(reply.usage.prompt_tokens_details.cached_tokens)",
    ):
        console.print(line, markup=False, soft_wrap=True)


def _write_files(
    arguments: argparse.Namespace, engine: AsyncEngine, turns: Sequence[TurnReport], summary: Summary
) -> None:
    from mainstem.cli.picture import svg

    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_as_json(engine, turns, summary), indent=2) + "\n", encoding="utf-8")
    if arguments.svg is not None:
        subtitle = f"mainstem demo --tokens {arguments.tokens}: {engine.model_name}, {cores()} CPU cores, over HTTP"
        arguments.svg.write_text(svg(turns, summary, subtitle=subtitle), encoding="utf-8")


def _as_json(engine: AsyncEngine, turns: Sequence[TurnReport], summary: Summary) -> dict[str, Any]:
    return {
        "model": engine.model_name,
        "cores": cores(),
        "summary": {
            **summary._asdict(),
            "amplification": summary.amplification,
            "uncached_amplification": summary.uncached_amplification,
            "shared": summary.shared,
        },
        "turns": [
            {
                "turn": turn.turn,
                "does": turn.does,
                "new_tokens": turn.new_tokens,
                "prefilled_tokens": turn.reply.prefilled_tokens,
                **turn.reply._asdict(),
                "uncached_ttft_s": turn.uncached_ttft_s,
                "speedup": turn.speedup,
            }
            for turn in turns
        ],
    }
