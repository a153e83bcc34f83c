"""A report as pictures, each as SVG and PNG: the same report gives the same SVG. It computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from mainstem.bench.report import ArmReport, Report
from mainstem.bench.run import ArmRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARM_COLORS = {"radix": "#1a7f37", "block-hash": "#0969da", "none": "#9a6700"}
LIMIT_COLOR = "#57606a"
LIMIT_STYLE = (0, (1, 2))
# Pictures of long runs show no more steps than they have columns.
_MOST_POINTS = 2000
_TITLE_WIDTH = 72
# Times further apart than this are drawn on a logarithmic axis.
_LOG_FROM = 10


def draw_report(
    report: Report, runs: Sequence[ArmRun], title: str, folder: Path, *, prefill: bool = True
) -> list[Path]:
    """Draw what the report has: time to the first token and tokens prefilled by turn, memory by step.

    Args:
        report: the figures.
        runs: that they are made of.
        title: of every picture.
        folder: where the files go.
        prefill: whether it is known how many tokens were prefilled.

    Returns:
        The files, in `folder`.
    """
    files = save_picture(folder / "prefill", title, lambda axes: _draw_prefill(axes, report)) if prefill else []
    if report.arms[0].times is not None:
        repeats = "one run" if report.repeats == 1 else f"{report.repeats} runs and their range"
        files += save_picture(folder / "ttft", title, lambda axes: _draw_ttft(axes, report), legend=repeats)
    first = [run for run in runs if run.repeat == 0 and run.memory is not None]
    if first:
        files += save_picture(folder / "memory", title, lambda axes: _draw_memory(axes, first))
    return files


def save_picture(stem: Path, title: str, draw: Callable[[Axes], None], legend: str | None = None) -> list[Path]:
    """Draw one picture and write it in both forms."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, rc_context

    files = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
    # Without a date and with fixed ids, the same result is the same file.
    with rc_context({"svg.hashsalt": "mainstem", "font.size": 10}):
        figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
        axes.set_title(fill(title, _TITLE_WIDTH), loc="left")
        draw(axes)
        if axes.get_yscale() == "linear":
            axes.set_ylim(bottom=0)
        axes.grid(color="#d8dee4", linewidth=0.6)
        axes.legend(frameon=False, title=legend, alignment="left")
        figure.savefig(files[0], metadata={"Date": None})
        figure.savefig(files[1], dpi=150)
        pyplot.close(figure)
    return files


def _line(arm: str) -> dict[str, Any]:
    """How an arm's line looks: block hashes are a broad band beneath the tree, so that both show where they agree."""
    style: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.5, "zorder": 3}
    if arm == "block-hash":
        style |= {"markersize": 8, "linewidth": 5, "alpha": 0.45, "zorder": 2}
    return style | {"color": ARM_COLORS.get(arm), "label": arm}


def _turns(arm: ArmReport) -> list[int]:
    return [turn.turn for turn in arm.turns]


def _draw_prefill(axes: Axes, report: Report) -> None:
    for arm in report.arms:
        values = [turn.counts.prefilled / turn.counts.calls for turn in arm.turns]
        axes.plot(_turns(arm), values, **_line(arm.arm))
    first = report.arms[0]
    new = [turn.counts.new / turn.counts.calls for turn in first.turns]
    axes.plot(_turns(first), new, color=LIMIT_COLOR, linestyle=LIMIT_STYLE, label="new tokens: the least")
    _label_turns(axes, first, "tokens prefilled for a call, mean")


def _draw_ttft(axes: Axes, report: Report) -> None:
    for arm in report.arms:
        figures = [turn.times.ttft.median for turn in arm.turns if turn.times is not None]
        axes.plot(_turns(arm), [f.median for f in figures], **_line(arm.arm))
        color = ARM_COLORS.get(arm.arm)
        axes.fill_between(_turns(arm), [f.min for f in figures], [f.max for f in figures], color=color, alpha=0.2)
    spread = [turn.times.ttft.median.median for arm in report.arms for turn in arm.turns if turn.times is not None]
    if max(spread) > _LOG_FROM * min(spread):
        axes.set_yscale("log")
    _label_turns(axes, report.arms[0], "seconds to the first token, median")


def _draw_memory(axes: Axes, runs: Sequence[ArmRun]) -> None:
    for run in runs:
        assert run.memory is not None
        in_use = np.array(run.memory.in_use)
        at = np.linspace(0, len(in_use) - 1, min(len(in_use), _MOST_POINTS)).astype(int)
        axes.plot(at, in_use[at], **(_line(run.arm) | {"marker": ""}))
    axes.set_xlabel("step of the engine")
    axes.set_ylabel("KV slots that running calls hold")


def _label_turns(axes: Axes, arm: ArmReport, quantity: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("turn" if len(arm.turns) > 1 else "turn (there is only one)")
    axes.set_ylabel(quantity)
