"""Pictures of a sweep over numbers of agents: where the pool no longer holds them. It computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.bench.plots import ARM_COLORS, LIMIT_COLOR, LIMIT_STYLE, save_picture
from mainstem.bench.simulate import LATE, LoadResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_sweep(results: Sequence[LoadResult], title: str, folder: Path) -> list[Path]:
    """Draw hit ratio and waiting against the number of agents.

    Returns:
        The files, in `folder`.
    """
    return [
        *save_picture(folder / "hits", title, lambda axes: _draw_hits(axes, results)),
        *save_picture(folder / "waits", title, lambda axes: _draw_waits(axes, results)),
    ]


def _draw_hits(axes: Axes, results: Sequence[LoadResult]) -> None:
    _draw(axes, results, lambda result: result.reuse)
    ceilings = {result.agents: result.ceiling for result in results}
    axes.plot(list(ceilings), list(ceilings.values()), color=LIMIT_COLOR, linestyle=LIMIT_STYLE, label="endless cache")
    axes.set_ylim(top=1.05)
    axes.set_ylabel("share of prompt tokens that were cached")


def _draw_waits(axes: Axes, results: Sequence[LoadResult]) -> None:
    _draw(axes, results, lambda result: result.waits[LATE].median)
    axes.set_ylabel(f"seconds to the first token at turn {LATE}, median")


def _draw(axes: Axes, results: Sequence[LoadResult], value: Callable[[LoadResult], float]) -> None:
    for arm in dict.fromkeys(result.arm for result in results):
        points = [result for result in results if result.arm == arm]
        color = ARM_COLORS.get(arm)
        counts = [point.agents for point in points]
        axes.plot(counts, [value(point) for point in points], marker="o", markersize=4, color=color, label=arm)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("agents")
