"""A bar chart for the terminal: time to first token of each turn, with the prefix cache and without."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from mainstem.cli.report import TurnReport

_EIGHTHS = " ▏▎▍▌▋▊▉"
CACHED_STYLE, UNCACHED_STYLE = "bold green", "bright_black"


def bar(share: float, width: int) -> str:
    """A bar of `share` (0 to 1) of `width` characters, exact to an eighth of a character and never empty."""
    eighths = max(1, round(share * width * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def print_chart(console: Console, turns: Sequence[TurnReport]) -> None:
    """Print two bars a turn, on one scale."""
    longest = max(max(turn.reply.ttft_s, turn.uncached_ttft_s) for turn in turns)
    width = max(10, min(console.width, 100) - 18)
    console.print(
        Text.assemble(
            "time to first token   ",
            ("█ ", CACHED_STYLE),
            "with the prefix cache   ",
            ("█ ", UNCACHED_STYLE),
            "without",
        )
    )
    for turn in turns:
        for label, seconds, style in (
            (f"{turn.turn:>4}", turn.reply.ttft_s, CACHED_STYLE),
            ("", turn.uncached_ttft_s, UNCACHED_STYLE),
        ):
            console.print(
                Text.assemble(f"{label:>4}  ", (bar(seconds / longest, width), style), f" {seconds:.2f} s"),
                no_wrap=True,
            )
