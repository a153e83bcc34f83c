"""`mainstem doctor`: makes the engine, looks at its memory and settings, times a step, and says what to change."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from mainstem.cli.extras import require_extras
from mainstem.cli.options import add_options, read_settings
from mainstem.config import EngineConfig

if TYPE_CHECKING:
    from mainstem.engine import LLM
    from mainstem.engine.checks import Check

SUMMARY = "check memory, settings and speed before serving"
DESCRIPTION = """\
Makes the engine as 'mainstem serve' would, and checks it: how much memory is
left for the cache, how many conversations of what length fit, whether steps are
short enough for smooth streams. It takes the flags of 'mainstem serve' that are
about the engine, and none of those about the server, such as --port. Each
warning says what to change. Exit code 1 if there was a warning.
"""
EXAMPLES = """\
examples:
  mainstem doctor
  mainstem doctor --kv-memory 2GiB --max-model-len 8192
  mainstem doctor --model ./model.gguf --max-num-batched-tokens 256
"""
_MARKS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "warning": ("WARN", "red")}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.epilog = EXAMPLES
    add_options(parser, EngineConfig, title="engine")


def run(arguments: argparse.Namespace) -> int:
    """Check, print, and say by the exit code whether anything is wrong."""
    config = read_settings(EngineConfig, arguments)
    require_extras("doctor")

    from rich.console import Console

    from mainstem.cli.loading import loading_display
    from mainstem.engine import LLM
    from mainstem.engine.checks import Level, check_engine

    console = Console(highlight=False, soft_wrap=True)
    with loading_display(Console(stderr=True, highlight=False)) as display:
        display("starting", 0, None)
        llm = LLM(**asdict(config), progress=display)
        display("timing a step", 0, None)
        with llm:
            checks = check_engine(config, llm.budget, llm.core.max_model_len, llm.core.runner.compute)
            checks.append(_timed_step(llm))
    for line in describe(checks):
        console.print(line)
    return int(any(check.level is Level.WARNING for check in checks))


def describe(checks: list[Check]) -> list[str]:
    """The findings, a line each, in rich's markup."""
    from rich.markup import escape

    lines = []
    for check in checks:
        mark, color = _MARKS[check.level]
        lines.append(f"[{color}]{mark}[/{color}]  {check.about:<8} {escape(check.text)}")
    return lines


def _timed_step(llm: LLM) -> Check:
    """The time that the largest chunk of a prompt takes, the second of two."""
    import numpy as np

    from mainstem.engine.checks import check_step
    from mainstem.params import SamplingParams

    tokens = min(llm.config.max_num_batched_tokens, llm.core.max_model_len - 1)
    # Ordinary tokens, never the same prompt twice: nothing of them is cached.
    vocabulary = llm.core.runner.shape.vocab_size
    drawn = np.random.default_rng(0).integers(0, vocabulary, (2, tokens), dtype=np.int32)
    seconds = 0.0
    for prompt in drawn:
        started = time.perf_counter()
        llm.generate(prompt, SamplingParams(max_tokens=1, temperature=0.0))
        seconds = time.perf_counter() - started
    return check_step(seconds, tokens)
