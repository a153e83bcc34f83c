"""The demo's chart as an SVG picture, for a page: one pair of bars a turn. Writes text; draws nothing itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from mainstem.cli.report import Summary, TurnReport

WIDTH, HEIGHT = 860, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 92, 52

_STYLE = """\
text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #57606a }
.title { font-size: 18px; font-weight: 600; fill: #1f2328 }
.cached-value { font-size: 12px; font-weight: 600; fill: #1a7f37 }
.uncached-value { font-size: 12px }
.paper { fill: #ffffff; stroke: #d0d7de }
.grid { stroke: #d8dee4; stroke-width: 1 }
.cached { fill: #1a7f37 }
.uncached { fill: #afb8c1 }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title { fill: #f0f6fc }
  .cached-value { fill: #3fb950 }
  .paper { fill: #0d1117; stroke: #3d444d }
  .grid { stroke: #30363d }
  .cached { fill: #3fb950 }
  .uncached { fill: #59636e }
}"""


def svg(turns: Sequence[TurnReport], summary: Summary, *, subtitle: str) -> str:
    """The picture of a session; `subtitle` says which model and machine it was measured on."""
    last = turns[-1]
    title = (
        f"Turn {last.turn}: {last.uncached_ttft_s:.1f} s to the first token without the prefix cache, "
        f"{last.reply.ttft_s:.2f} s with it"
    )
    amounts = (
        f"{summary.prompt_tokens:,} prompt tokens in {len(turns)} turns, {summary.prefilled_tokens:,} computed, "
        f"{summary.new_tokens:,} of them new: prefill amplification {summary.amplification:.2f} "
        f"instead of {summary.uncached_amplification:.2f}"
    )
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
            _label(24, 34, title, kind="title"),
            _label(24, 56, subtitle),
            *_legend(),
            *_grid(_axis(turns)),
            *_bars(turns, _axis(turns)),
            _label(24, HEIGHT - 14, amounts),
            "</svg>",
            "",
        ]
    )


class _Axis(NamedTuple):
    """`steps` intervals of `step_s` seconds."""

    step_s: float
    steps: int

    def y(self, seconds: float) -> float:
        """Where a value lies in the picture."""
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * seconds / (self.step_s * self.steps)


def _axis(turns: Sequence[TurnReport]) -> _Axis:
    """An axis in round steps, at most five, that reaches the longest bar."""
    longest = max(max(turn.reply.ttft_s, turn.uncached_ttft_s) for turn in turns)
    round_steps = (digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5))
    step_s = next(step for step in round_steps if longest <= 5 * step)
    return _Axis(step_s, math.ceil(longest / step_s))


def _grid(axis: _Axis) -> Iterator[str]:
    for number in range(axis.steps + 1):
        seconds = number * axis.step_s
        y = axis.y(seconds)
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _label(_LEFT - 8, y + 4, f"{seconds:g} s", anchor="end")


def _bars(turns: Sequence[TurnReport], axis: _Axis) -> Iterator[str]:
    slot = (WIDTH - _LEFT - _RIGHT) / len(turns)
    thick = slot * 0.38
    for turn in turns:
        x = _LEFT + slot * (turn.turn - 1) + slot * 0.1
        for kind, seconds, at in (("uncached", turn.uncached_ttft_s, x), ("cached", turn.reply.ttft_s, x + thick + 3)):
            # Even the shortest bar can be seen.
            top = min(axis.y(seconds), HEIGHT - _BOTTOM - 1.5)
            tall = HEIGHT - _BOTTOM - top
            yield f'<rect class="{kind}" x="{at:.1f}" y="{top:.1f}" width="{thick:.1f}" height="{tall:.1f}" rx="2"/>'
            yield _label(at + thick / 2, top - 5, _seconds(seconds), kind=f"{kind}-value", anchor="middle")
        yield _label(x + thick + 1.5, HEIGHT - _BOTTOM + 17, str(turn.turn), anchor="middle")


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 9.95 else f"{seconds:.2f}"


def _legend() -> Iterator[str]:
    for x, kind, text in ((24, "uncached", "without"), (110, "cached", "with the prefix cache")):
        yield f'<rect class="{kind}" x="{x}" y="68" width="12" height="12" rx="2"/>'
        yield _label(x + 18, 78, text)
    yield _label(WIDTH - _RIGHT, 78, "time to first token, by turn", anchor="end")


def _label(x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
