"""`mainstem chat`: a conversation in the terminal that says after each reply what was cached and what was computed.

Speaks HTTP in both its forms: to a server of its own in this process, or to the one that `--base-url` names.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from mainstem.cli.environment import first_key, server_url
from mainstem.cli.extras import require_extras
from mainstem.cli.options import add_options, read_settings
from mainstem.cli.sampling import add_sampling_flags, read_sampling, sampling_fields
from mainstem.config import EngineConfig
from mainstem.errors import MainstemError

if TYPE_CHECKING:
    from typing import Any

    from mainstem.cli.client import ChatClient, Reply

SUMMARY = "talk to a model in the terminal"
DESCRIPTION = """\
A conversation in the terminal. Each reply is followed by its prompt's length,
how many of its tokens were cached and how many prefilled. Ctrl-C interrupts a
reply, Ctrl-D leaves. With --base-url it talks to a running server, any that
speaks the OpenAI API; without, it loads a model itself.
"""
HELP = "/reset begins anew, /stats adds up, /quit leaves; Ctrl-C interrupts a reply"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--base-url", metavar="URL", help="talk to this server, such as http://127.0.0.1:8000/v1")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="key for that server [env: MAINSTEM_API_KEY]",
        default=first_key(os.environ),
    )
    parser.add_argument("--system", metavar="TEXT", help="a system message before the conversation")
    add_sampling_flags(parser)
    add_options(parser, EngineConfig, title="engine, without --base-url")


def run(arguments: argparse.Namespace) -> int:
    """Talk until the user leaves."""
    config = read_settings(EngineConfig, arguments)
    fields = sampling_fields(read_sampling(arguments))
    base_url, api_key = None if arguments.base_url is None else server_url(arguments.base_url), arguments.api_key
    require_extras("chat") if base_url is None else require_extras("chat", ("httpx",))

    from mainstem.cli.client import ChatClient

    with ExitStack() as stack:
        if base_url is None:
            from rich.console import Console

            from mainstem.cli.local import local_server

            server = stack.enter_context(local_server(config, Console(stderr=True, highlight=False)))
            base_url, api_key = server.base_url, server.api_key
        client = stack.enter_context(ChatClient(base_url, api_key=api_key))
        Conversation(client, arguments.system, fields).run()
    return 0


class Conversation:
    """The messages so far, and what the replies cost.

    Args:
        client: where replies come from.
        system: system message, if any.
        fields: fields of every request, such as `max_tokens`.
    """

    def __init__(self, client: ChatClient, system: str | None, fields: dict[str, Any]) -> None:
        self._client = client
        self._opening = [{"role": "system", "content": system}] if system else []
        self._fields = fields
        self._replies: list[Reply] = []
        self._messages = list(self._opening)

    def run(self) -> None:
        """Read lines and reply until the input ends."""
        with suppress(ImportError):
            import readline  # noqa: F401  (input() edits lines once it is imported)

        print(f"Talking to {self._client.model}. {HELP}.")
        while (line := _read_line()) is not None:
            match line.strip():
                case "":
                    continue
                case "/quit" | "/exit":
                    return
                case "/reset":
                    self._messages = list(self._opening)
                    print("A new conversation. The cache still knows the old one.")
                case "/stats":
                    print(self._stats())
                case command if command.startswith("/"):
                    print(f"There is no {command.split()[0]}: {HELP}.")
                case _:
                    self._reply(line)

    def _reply(self, line: str) -> None:
        pieces: list[str] = []

        def show(text: str) -> None:
            pieces.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()

        messages = [*self._messages, {"role": "user", "content": line}]
        try:
            reply = self._client.complete(messages, show, **self._fields)
            print("\n" + _cost(reply))
            self._replies.append(reply)
        except KeyboardInterrupt:
            print("\n[interrupted]")
        except MainstemError as error:
            # The conversation can go on: a server may come back, and a prompt too long can be reset.
            print(f"\nerror: {error}", file=sys.stderr)
        if pieces:
            self._messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]

    def _stats(self) -> str:
        replies = self._replies
        if not replies:
            return "Nothing yet."
        prompts = sum(reply.prompt_tokens for reply in replies)
        cached = sum(reply.cached_tokens for reply in replies)
        generated = sum(reply.completion_tokens for reply in replies)
        return (
            f"{len(replies)} repl{'y' if len(replies) == 1 else 'ies'}: {prompts:,} prompt tokens, {cached:,} cached "
            f"({cached / max(prompts, 1):.0%}), {prompts - cached:,} prefilled; {generated:,} generated"
        )


def _read_line() -> str | None:
    """The next line, or None at the end of the input. Ctrl-C only throws away what was typed."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except EOFError:
            if sys.stdin.isatty():
                print()
            return None
        except KeyboardInterrupt:
            print(f"\n[{HELP}, Ctrl-D leaves]")


def _cost(reply: Reply) -> str:
    text = (
        f"[{reply.prompt_tokens:,} prompt tokens: {reply.cached_tokens:,} cached, "
        f"{reply.prefilled_tokens:,} prefilled; "
        f"first token after {reply.ttft_s:.2f} s; {reply.completion_tokens:,} generated in {reply.total_s:.1f} s]"
    )
    return f"\033[2m{text}\033[0m" if sys.stdout.isatty() else text
