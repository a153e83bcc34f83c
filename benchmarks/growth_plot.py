"""Draws how times grow with size: a panel for each thing that grows, both axes logarithmic. It measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.growth import Growth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"radix": "#1a7f37", "block-hash": "#0969da", "allocator": "#9a6700"}
STYLES = ("-", "--", ":")
UNITS = {
    "sequence length": "tokens in the sequence",
    "sessions": "sessions cached over one root",
    "leaves": "leaves in a full cache",
    "free extents": "pieces of free memory",
}


def draw_growth(rows: Sequence[Growth], out: Path) -> list[Path]:
    """Draw all series, with the range from the tenth to the ninetieth percentile.

    Returns:
        The files: `out` with the endings .svg and .png.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, rc_context

    files = [out.with_suffix(".svg"), out.with_suffix(".png")]
    # Without a date and with fixed ids, the same figures are the same file.
    with rc_context({"svg.hashsalt": "mainstem", "font.size": 9}):
        figure, panels = pyplot.subplots(2, 2, sharey=True, figsize=(11, 8), layout="constrained")
        for axes, by in zip(panels.flat, UNITS, strict=True):
            _draw_panel(axes, by, [row for row in rows if row.by == by])
        # One scale for all, so that what is flat looks flat.
        panels[0, 0].set_ylim(1, 100_000)
        figure.savefig(files[0], metadata={"Date": None})
        figure.savefig(files[1], dpi=150)
        pyplot.close(figure)
    return files


def _draw_panel(axes: Axes, by: str, rows: Sequence[Growth]) -> None:
    drawn: dict[str, int] = {}
    for row in rows:
        style = STYLES[drawn.setdefault(row.cache, 0)]
        drawn[row.cache] += 1
        label = f"{row.cache}: {row.operation} (exponent {row.exponent:.2f})"
        axes.plot(row.sizes, row.medians_us, style, marker="o", markersize=3, color=COLORS[row.cache], label=label)
        axes.fill_between(row.sizes, row.p10_us, row.p90_us, color=COLORS[row.cache], alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.tick_params(labelleft=True)
    axes.set_title(f"time by {by}", loc="left")
    axes.set_xlabel(UNITS[by])
    axes.set_ylabel("median µs (band: 10–90 %)")
    axes.grid(color="#d8dee4", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8)
