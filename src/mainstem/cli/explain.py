"""`mainstem explain`: why the tokens of a prompt were not cached, as a card.

Asks a running server, or plays requests from a file through a prefix cache without a model.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mainstem.cli.card import card, summary
from mainstem.cli.environment import first_key, server_url
from mainstem.cli.extras import require_extras
from mainstem.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:8000/v1"
SUMMARY = "say why tokens of a prompt were not cached"
DESCRIPTION = """\
Prints a card about one request: how much of its prompt was cached, why the
rest was not, where it first differs from the earlier request that is closest
to it, what that cost, and what to do about it.

Given an id (that of the reply, or its x-request-id) or --last, it asks the
server. Given a file with one request body a line, it plays them in their order
through a prefix cache, without a model, and prints a line for each request and
a card for each that lost tokens; - reads them from standard input.

Exit code 1 if the server does not answer or does not remember the request, 2 if a
flag or the file is wrong.

examples:
  mainstem explain --last
  mainstem explain chatcmpl-5f0c1d...
  mainstem explain requests.jsonl --model smollm2
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("what", nargs="?", metavar="ID|FILE.jsonl", help="id of a request, or a file of requests")
    parser.add_argument(
        "--last", action="store_true", help="the server's latest request, of this key unless it is an operator's"
    )
    parser.add_argument("--json", action="store_true", help="print the explanation as JSON, one a line")
    server = parser.add_argument_group("for a server")
    server.add_argument(
        "--base-url",
        metavar="URL",
        help=f"of the server [default: {DEFAULT_URL}; env: OPENAI_BASE_URL]",
    )
    server.add_argument(
        "--api-key",
        default=_key_of(os.environ),
        metavar="KEY",
        help="of the tenant whose request it is, or an operator's, which finds everyone's "
        "[env: MAINSTEM_API_KEY, or OPENAI_API_KEY beside OPENAI_BASE_URL]",
    )
    file = parser.add_argument_group("for a file")
    file.add_argument("--model", default="smollm2", metavar="NAME|PATH", help="whose tokenizer [default: smollm2]")
    file.add_argument("--pool-tokens", default="1000000", metavar="TOKENS", help="size of the pool [default: 1000000]")
    file.add_argument("--cards", default="5", metavar="COUNT", help="most cards to print [default: 5]")


def _key_of(environment: Mapping[str, str]) -> str | None:
    """The key for the server; one for OpenAI goes nowhere but where the environment says that it is used."""
    return first_key(environment) or (environment.get("OPENAI_API_KEY") if environment.get("OPENAI_BASE_URL") else None)


def _server(flag: str | None, environment: Mapping[str, str]) -> str:
    """The address of the server: the flag's, the environment's, or that of one on this machine."""
    variable = environment.get("OPENAI_BASE_URL")
    if flag is None and variable:
        return server_url(variable, source="OPENAI_BASE_URL")
    return server_url(DEFAULT_URL if flag is None else flag)


def run(arguments: argparse.Namespace) -> int:
    """Explain what was asked for."""
    if arguments.last == (arguments.what is not None):
        raise ConfigError("give one of the id of a request, a file of requests, and --last")
    require_extras("serve")
    if arguments.what is not None and _is_file(arguments.what):
        return _explain_file(arguments)
    told = _ask(arguments, "last" if arguments.last else arguments.what)
    print(json.dumps(told, ensure_ascii=False) if arguments.json else "\n".join(card(told)))
    return 0


def _is_file(what: str) -> bool:
    return what == "-" or what.endswith((".jsonl", ".json")) or Path(what).is_file()


def _ask(arguments: argparse.Namespace, request_id: str) -> dict[str, Any]:
    url = _server(arguments.base_url, os.environ)

    from mainstem.cli.client import ChatClient

    with ChatClient(url, api_key=arguments.api_key, model="") as client:
        return client.explain(request_id)


def _explain_file(arguments: argparse.Namespace) -> int:
    from mainstem.cli.explain_file import explain_file
    from mainstem.cli.workload import whole_number

    most = whole_number("--cards", arguments.cards)
    pool_tokens = whole_number("--pool-tokens", arguments.pool_tokens)
    told = explain_file(Path(arguments.what), arguments.model, pool_tokens)
    for line in _lines(told, as_json=arguments.json, most=most):
        print(line)
    return 0


def _lines(told: Iterator[tuple[int, Mapping[str, Any]]], *, as_json: bool, most: int) -> Iterator[str]:
    lost = []
    for number, explanation in told:
        if as_json:
            yield json.dumps({"line": number, **explanation}, ensure_ascii=False)
            continue
        yield f"line {number:>4}  {summary(explanation)}"
        if any(cause["cause"] not in ("first_seen", "rounding") for cause in explanation["causes"]):
            lost.append(explanation)
    costly = sorted(lost, key=lambda each: -each["uncached_tokens"])[:most]
    for explanation in lost:
        if explanation in costly:
            yield ""
            yield from card(explanation)
