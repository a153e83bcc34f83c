"""`mainstem lint`: finds what breaks the prefixes of an agent's prompts, from recorded requests.

Knows flags, files and the terminal. What is found, and how, is the business of `mainstem.lint`. Needs neither torch nor
a server; without the `tokenizers` package tokens are estimated.
"""

from __future__ import annotations

import argparse
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mainstem.cli.extras import require_extras
from mainstem.errors import ConfigError

if TYPE_CHECKING:
    from mainstem.tokens.counting import Counter

FAILED = 1
NO_MODEL = "none"

SUMMARY = "find what changes in prompts that should not, and what it costs"
DESCRIPTION = """\
Reads requests that were sent to a model, sorts them into conversations, and
says what changes from one request to the next in places where it costs the
cached prefix: timestamps, ids, counters, directories, listings, tools in
another order, JSON keys in another order, whitespace, dropped or shortened
history. For each: where, what it costs in tokens a turn, and how to fix it.

examples:
  mainstem lint requests.jsonl                    what breaks, and where
  mainstem lint requests.jsonl --fail-under 0.9   for CI: exit code 1 if fewer
                                                  than 90% can be reused
  mainstem lint logs/ run.traj --json             for programs
  mainstem lint requests.jsonl --model ~/models/qwen3-8b
  jq -c .request log.jsonl | mainstem lint -      JSON lines from another command

Files: JSON lines, each a body of Chat Completions, Responses, Messages or
plain completions, or a log entry with the body under "request" or "body" and
the answer beside it under "response". Also recordings of agents: SWE-agent,
tau-bench, OpenHands, pi, mini-swe-agent, recorded HTTP (.yaml). A conversation
lies within one file, and its requests in the order in which they were sent.
"""


class _Plan(NamedTuple):
    """The flags, checked."""

    paths: list[Path]
    model: str | None
    fail_under: float | None
    as_json: bool


class _Counting(NamedTuple):
    """What counts tokens, and what to call it."""

    count: Counter
    name: str


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "paths", metavar="FILE", type=Path, nargs="+", help="requests, or a folder of such files; - for standard input"
    )
    parser.add_argument(
        "--fail-under",
        metavar="SHARE",
        help="exit with 1 if a smaller share of the tokens that were sent before can be reused, such as 0.9",
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="whose tokenizer counts (no weights are loaded): a Hugging Face folder, a GGUF file, smollm2; 'none' "
        "estimates a token for every 4 bytes [default: smollm2 if it is on this machine, else none; "
        "env: MAINSTEM_MODEL]",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read, compare, report."""
    plan = _read(arguments)

    from mainstem.cli.lint_report import as_json, card
    from mainstem.lint import Sizes, lint_conversations, read

    counting = _counting(plan.model)
    found = read(plan.paths)
    if not found.conversations:
        raise ConfigError(f"there are no requests in {', '.join(map(str, plan.paths))}")
    result = lint_conversations(found.conversations, Sizes(counting.count))
    failed = plan.fail_under is not None and result.share < plan.fail_under
    if plan.as_json:
        document = as_json(result, counting.name, found.skipped, plan.fail_under)
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        print(card(result, counting.name, found.skipped, plan.fail_under))
    return FAILED if failed else 0


def _read(arguments: argparse.Namespace) -> _Plan:
    return _Plan(
        paths=arguments.paths,
        model=arguments.model or os.environ.get("MAINSTEM_MODEL") or None,
        fail_under=None if arguments.fail_under is None else _share(arguments.fail_under),
        as_json=arguments.as_json,
    )


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ConfigError(f"--fail-under: '{text}' is not a number, such as 0.9") from None
    if not 0 <= share <= 1:
        raise ConfigError(f"--fail-under must be between 0 and 1, got {text}")
    return share


def _counting(model: str | None) -> _Counting:
    from mainstem.model.embedded import NAME, embedded_folder
    from mainstem.tokens.counting import BYTES_PER_TOKEN, estimate, load_counter

    if model in (None, NAME) and find_spec("tokenizers") is not None:
        folder = embedded_folder()
        if (folder / "tokenizer.json").is_file():
            return _Counting(load_counter(folder), f"{NAME}'s tokenizer")
    if model in (None, NO_MODEL):  # counting is no reason to fetch a model that nobody asked for
        return _Counting(estimate, f"an estimate, {BYTES_PER_TOKEN} bytes a token")
    folder = Path(model).expanduser()
    if folder.is_dir():  # only its tokenizer is needed, so it need not be a whole model
        return _Counting(load_counter(folder), f"{folder.resolve().name}'s tokenizer")
    require_extras("lint --model")

    from mainstem.model import resolve_model

    files = resolve_model(model)
    return _Counting(load_counter(files.folder), f"{files.name}'s tokenizer")
