"""The demo's chart as an SVG picture, for a page: one pair of bars a turn. Writes text; draws nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from mainstem.cli.report import Summary, TurnReport

WIDTH, HEIGHT = 860, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 92, 52

_STYLE = """\
text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #57606a }
.title { font-size: 18px; font-weight: 600; fill: #1f2328 }
.strong { font-weight: 600; fill: #1f2328 }
.paper { fill: #ffffff; stroke: #d0d7de }
.grid { stroke: #d8dee4; stroke-width: 1 }
.cached { fill: #1a7f37 }
.uncached { fill: #afb8c1 }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title, .strong { fill: #f0f6fc }
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
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
            _label(24, 34, title, kind="title"),
            _label(24, 56, subtitle),
            *_legend(),
            *_grid(_scale(turns)),
            *_bars(turns, _scale(turns)),
            _label(24, HEIGHT - 14, amounts),
            "</svg>",
            "",
        ]
    )


def _scale(turns: Sequence[TurnReport]) -> float:
    """Seconds at the top of the axis: the longest bar, rounded up to a round number."""
    longest = max(max(turn.reply.ttft_s, turn.uncached_ttft_s) for turn in turns)
    step = 10.0 ** (len(str(int(longest))) - 1) if longest >= 1 else 0.1
    while step * 4 < longest:
        step *= 2
    return step * 4


def _height(seconds: float, scale: float) -> float:
    return (HEIGHT - _TOP - _BOTTOM) * seconds / scale


def _grid(scale: float) -> Iterator[str]:
    for quarter in range(5):
        seconds = scale * quarter / 4
        y = HEIGHT - _BOTTOM - _height(seconds, scale)
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _label(_LEFT - 8, y + 4, f"{seconds:g} s", anchor="end")


def _bars(turns: Sequence[TurnReport], scale: float) -> Iterator[str]:
    slot = (WIDTH - _LEFT - _RIGHT) / len(turns)
    thick = slot * 0.36
    for turn in turns:
        x = _LEFT + slot * (turn.turn - 1) + slot * 0.12
        for kind, seconds, at in (("uncached", turn.uncached_ttft_s, x), ("cached", turn.reply.ttft_s, x + thick + 3)):
            tall = max(1.5, _height(seconds, scale))
            yield (
                f'<rect class="{kind}" x="{at:.1f}" y="{HEIGHT - _BOTTOM - tall:.1f}" width="{thick:.1f}" '
                f'height="{tall:.1f}" rx="2"/>'
            )
        top = HEIGHT - _BOTTOM - max(1.5, _height(turn.reply.ttft_s, scale))
        yield _label(x + thick * 1.5 + 3, top - 5, f"{turn.reply.ttft_s:.2f}", kind="strong", anchor="middle")
        yield _label(x + thick + 1.5, HEIGHT - _BOTTOM + 17, str(turn.turn), anchor="middle")


def _legend() -> Iterator[str]:
    for x, kind, text in ((24, "uncached", "without"), (110, "cached", "with the prefix cache")):
        yield f'<rect class="{kind}" x="{x}" y="68" width="12" height="12" rx="2"/>'
        yield _label(x + 18, 78, text)
    yield _label(WIDTH - _RIGHT, 78, "time to first token, by turn", anchor="end")


def _label(x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
