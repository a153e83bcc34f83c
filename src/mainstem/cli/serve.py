"""`mainstem serve`: loads a model, says what memory it has and how to connect, and serves until it is stopped."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from mainstem.cli.extras import require_extras
from mainstem.cli.options import add_options, read_settings
from mainstem.config import EngineConfig, ServerConfig

if TYPE_CHECKING:
    from mainstem.engine import AsyncEngine

SUMMARY = "serve a model over OpenAI's and Anthropic's HTTP APIs"
DESCRIPTION = """\
Serves POST /v1/chat/completions, /v1/responses, /v1/completions, Anthropic's
/v1/messages, GET /v1/models, /health and /metrics, and more (docs/api.md);
every reply's usage says how many prompt tokens came from the cache. Stop with
Ctrl-C or SIGTERM: running requests may finish first.
"""
EXAMPLES = """\
examples:
  mainstem serve
  mainstem serve --model ./qwen2.5-0.5b --kv-memory 8GiB --max-model-len 16384
  mainstem serve --host 0.0.0.0 --api-key-file keys.txt --shared-prefix system.txt

'mainstem doctor' checks memory and settings first; docs/settings.md has all
settings on a page.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the server's flags."""
    parser.epilog = EXAMPLES
    add_options(parser, ServerConfig, title="server")
    add_options(parser, EngineConfig, title="engine")


def run(arguments: argparse.Namespace) -> int:
    """Serve until stopped."""
    engine_config = read_settings(EngineConfig, arguments)
    server_config = read_settings(ServerConfig, arguments)
    require_extras("serve")

    from rich.console import Console

    from mainstem.cli.loading import describe_budget, describe_findings, describe_template, load_engine
    from mainstem.engine.checks import check_engine
    from mainstem.server import listen, read_keys, read_shared_prefixes, share_one_heap
    from mainstem.server import serve as run_server

    share_one_heap()
    console = Console(highlight=False, soft_wrap=True)
    # Before anything slow happens, so that a port in use or a wrong file is told at once.
    read_keys(server_config)
    read_shared_prefixes(server_config)
    listener = listen(server_config)
    engine = load_engine(engine_config, console)

    def say_how_to_connect(url: str) -> None:
        for line in how_to_connect(url + "/v1", server_config.served_model_name or engine.model_name, server_config):
            console.print(line, markup=False)

    if server_config.access_log:
        _print_access_log()
    for line in describe_budget(engine.budget, engine.max_model_len):
        console.print(line, markup=False)
    console.print(f"Compute  {engine.compute}", markup=False)
    for line in describe_findings(check_engine(engine_config, engine.budget, engine.max_model_len, engine.compute)):
        console.print(line, markup=False)
    for line in describe_template(engine.tokenizer.chat):
        console.print(line, markup=False)
    run_server(
        engine,
        server_config,
        listener,
        on_ready=say_how_to_connect,
        on_drain=lambda: console.print(_draining(engine, server_config)),
    )
    return 0


def how_to_connect(base_url: str, model: str, config: ServerConfig) -> list[str]:
    """Lines that show a client of this server."""
    closed = config.api_key is not None or config.api_key_file is not None
    header = " -H 'authorization: Bearer YOUR_KEY'" if closed else ""
    key = "YOUR_KEY" if closed else "none"
    messages = '[{"role": "user", "content": "Name a river."}]'
    return [
        "",
        f"Serving {model} on {base_url} (Ctrl-C stops)",
        "",
        f"  curl {base_url}/chat/completions \\",
        f"    -H 'content-type: application/json'{header} \\",
        f"""    -d '{{"model": "{model}", "messages": {messages}, "max_tokens": 40}}'""",
        "",
        "  from openai import OpenAI",
        "",
        f'  client = OpenAI(base_url="{base_url}", api_key="{key}")',
        f"  messages = {messages}",
        f'  reply = client.chat.completions.create(model="{model}", messages=messages, max_tokens=40)',
        "  print(reply.choices[0].message.content)",
        "  print(reply.usage.prompt_tokens_details.cached_tokens)",
        "",
    ]


def _print_access_log() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    access = logging.getLogger("mainstem.access")
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False


def _draining(engine: AsyncEngine, config: ServerConfig) -> str:
    stats = engine.stats()
    left = stats.running + stats.waiting
    if not left:
        return "stopping"
    return (
        f"stopping: {left} request{'' if left == 1 else 's'} may finish within {config.drain_seconds:g} s; "
        "Ctrl-C again stops at once"
    )
