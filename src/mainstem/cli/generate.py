"""`mainstem generate`: one reply to one prompt, streamed to standard output; what it cost goes to standard error."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING

from mainstem.cli.extras import require_extras
from mainstem.cli.options import add_options, read_settings
from mainstem.cli.sampling import add_sampling_flags, read_sampling
from mainstem.config import EngineConfig
from mainstem.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mainstem.engine import AsyncEngine
    from mainstem.engine.outputs import RequestUsage
    from mainstem.params import SamplingParams

SUMMARY = "print one reply"
DESCRIPTION = """\
Prints the model's reply to one prompt. The prompt is put to the model as a
user's message; with --raw the model continues the text itself. Token counts go
to standard error.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("prompt", help="the prompt; - reads it from standard input, less its last line break")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    add_sampling_flags(parser)
    add_options(parser, EngineConfig, title="engine")


def run(arguments: argparse.Namespace) -> int:
    """Print one reply."""
    config = read_settings(EngineConfig, arguments)
    params = read_sampling(arguments)
    if arguments.raw and arguments.system:
        raise ConfigError("--system has no place in --raw text; leave one of them out")
    require_extras("generate")
    prompt = _read_prompt(arguments.prompt)

    from rich.console import Console

    from mainstem.cli.loading import load_engine

    engine = load_engine(config, Console(stderr=True, highlight=False))
    asyncio.run(_generate(engine, _encode(engine, prompt, arguments), params))
    return 0


def _read_prompt(argument: str) -> str:
    try:
        prompt = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n") if argument == "-" else argument
        prompt.encode("utf-8")
    except UnicodeError:
        raise ConfigError("the prompt is not UTF-8 text") from None
    if not prompt.strip():
        raise ConfigError("the prompt is empty")
    return prompt


def _encode(engine: AsyncEngine, prompt: str, arguments: argparse.Namespace) -> npt.NDArray[np.int32]:
    if arguments.raw:
        return engine.tokenizer.encode_prompt(prompt)
    if not engine.tokenizer.chat.exists:
        raise ConfigError("this model has no chat template; add --raw to let it continue the text")
    system = [{"role": "system", "content": arguments.system}] if arguments.system else []
    return engine.tokenizer.encode_chat([*system, {"role": "user", "content": prompt}])


async def _generate(engine: AsyncEngine, prompt: npt.NDArray[np.int32], params: SamplingParams) -> None:
    started = time.perf_counter()
    usage: RequestUsage | None = None
    try:
        async for output in engine.generate(prompt, params):
            sys.stdout.write(output.text)
            sys.stdout.flush()
            usage = output.usage
    finally:
        await engine.shutdown(0)
    sys.stdout.write("\n")
    if usage is not None:
        print(_describe(usage, time.perf_counter() - started), file=sys.stderr)


def _describe(usage: RequestUsage, total_s: float) -> str:
    ttft_s = total_s if usage.ttft_s is None else usage.ttft_s
    later = usage.completion_tokens - 1
    pace = f", then {later / (total_s - ttft_s):.1f} tokens/s" if later > 0 and total_s > ttft_s else ""
    return (
        f"{usage.prompt_tokens:,} prompt tokens, {usage.completion_tokens:,} generated; "
        f"first token after {ttft_s:.2f} s{pace}"
    )
