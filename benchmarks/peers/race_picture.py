"""The picture of a shared prefix: branches that read it once a step, and what the step takes, as SVG.

It takes its figures from the race's result and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from benchmarks.peers.race import MAINSTEM, UNSHARED, amount

WIDTH = 860
_TOP, _ROW = 112, 34
_DRAWN_BRANCHES = 8
_NAMES_AT, _STEP_AT, _WHOLE_AT = 300, 470, 670
_BAR_WIDTH = 110

_STYLE = """\
text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #57606a }
.title { font-size: 18px; font-weight: 600; fill: #1f2328 }
.value { font-size: 12px }
.ours { font-weight: 600; fill: #1a7f37 }
.paper { fill: #ffffff; stroke: #d0d7de }
.shared { fill: #1a7f37 }
.other { fill: #afb8c1 }
.line { stroke: #afb8c1; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title { fill: #f0f6fc }
  .ours { fill: #3fb950 }
  .paper { fill: #0d1117; stroke: #3d444d }
  .shared { fill: #3fb950 }
  .other { fill: #59636e }
  .line { stroke: #59636e }
}"""


class _Bar(NamedTuple):
    """What an engine took: milliseconds for a decode step, seconds for all branches. None where it is not known."""

    name: str
    label: str
    step_ms: float | None
    whole_s: float | None


def picture(result: dict[str, Any]) -> str:
    """The picture of a result of the race."""
    bars = _bars(result)
    sizes, machine = result["sizes"], result["machine"]
    height = _TOP + max(5, len(bars)) * _ROW + 24
    title = f"{sizes['many']} branches of one {sizes['many_root']:,}-token context: the context is read once a step"
    subtitle = (
        f"make bench-peers: SmolLM2-135M, {machine['cpus']} CPU cores, over HTTP; {sizes['many_reply']} tokens "
        f"generated on each branch, all at once"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
            f'role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
            _label(24, 34, title, kind="title"),
            _label(24, 56, subtitle),
            *_read_once(_TOP),
            *_read_often(_TOP + 88),
            *_chart(bars),
            "</svg>",
            "",
        ]
    )


def _bars(result: dict[str, Any]) -> list[_Bar]:
    """mainstem with and without sharing, then the others, the fastest first."""
    found = []
    for name, engine in result["engines"].items():
        step, whole = (engine["figures"].get(key) for key in ("many branches, step ms", "many branches s"))
        medians = (None if figure is None else figure["median"] for figure in (step, whole))
        found.append(_Bar(name, engine["title"], *medians))
    first = {MAINSTEM: 0, UNSHARED: 1}
    return sorted(found, key=lambda bar: (first.get(bar.name, 2), bar.whole_s or 0.0))


def _chart(bars: list[_Bar]) -> Iterator[str]:
    yield _label(_STEP_AT, _TOP - 18, "a decode step")
    yield _label(_WHOLE_AT, _TOP - 18, "all of it, prompts included")
    steps, wholes = [bar.step_ms for bar in bars], [bar.whole_s for bar in bars]
    for number, bar in enumerate(bars):
        y = _TOP + number * _ROW
        kind = "shared" if bar.name == MAINSTEM else "other"
        ours = "ours" if bar.name == MAINSTEM else ""
        yield _label(_NAMES_AT, y + 14, bar.label, kind=ours)
        for x, value, every, unit in ((_STEP_AT, bar.step_ms, steps, "ms"), (_WHOLE_AT, bar.whole_s, wholes, "s")):
            if value is None:
                yield _label(x, y + 14, "not together", kind="value")
                continue
            wide = max(1.5, _BAR_WIDTH * value / max(one for one in every if one is not None))
            yield f'<rect class="{kind}" x="{x}" y="{y}" width="{wide:.1f}" height="20" rx="2"/>'
            yield _label(x + wide + 6, y + 14, f"{amount(value, unit)} {unit}", kind=f"value {ours}".strip())


def _read_once(y: float) -> Iterator[str]:
    """One context, with its branches."""
    yield f'<rect class="shared" x="24" y="{y + 17}" width="130" height="8" rx="2"/>'
    for tail in _tails(y):
        yield f'<path class="line" d="M154 {y + 21} C168 {y + 21} 164 {tail + 2} 178 {tail + 2}"/>'
        yield f'<rect class="shared" x="178" y="{tail}" width="40" height="4" rx="1"/>'
    yield _label(24, y + 60, "mainstem: once for all branches", kind="ours")


def _read_often(y: float) -> Iterator[str]:
    """The same context, once for every branch."""
    for tail in _tails(y):
        yield f'<rect class="other" x="24" y="{tail}" width="154" height="4" rx="1"/>'
        yield f'<rect class="other" x="180" y="{tail}" width="38" height="4" rx="1"/>'
    yield _label(24, y + 60, "others: once for every branch")


def _tails(y: float) -> list[float]:
    return [y + 6 * number - 2 for number in range(_DRAWN_BRANCHES)]


def _label(x: float, y: float, text: str, *, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
