"""A report as tables for the terminal. It computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mainstem.bench.report import ArmReport, Figure, Memory, Rates, Report, Times, TurnReport

if TYPE_CHECKING:
    from rich.table import Table


def totals_table(report: Report) -> Table:
    """One row a figure, one column an arm; fits 80 columns."""
    table = _table("the whole run")
    table.add_column("")
    for arm in report.arms:
        table.add_column(arm.arm, justify="right", no_wrap=True)
    for name, show in _TOTALS:
        cells = [show(arm) for arm in report.arms]
        if any(cells):
            table.add_row(name, *cells)
    return table


# A terminal of fewer columns has no room for the floors of three arms.
_WIDE = 110


def turns_table(report: Report, width: int = _WIDE) -> Table:
    """One row a turn; for every arm what a call prefilled and how long it waited, in the mean and the median.

    Args:
        report: the figures.
        width: columns of the terminal; in a narrow one the times over their floors are left out.
    """
    timed = report.arms[0].times is not None
    floors = timed and width >= _WIDE
    title = "turn by turn: tokens of a call in the mean" + (", time to the first token in the median" if timed else "")
    table = _table(title)
    for name in ("turn", "calls", "prompt", "new"):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in report.arms:
        table.add_column(f"{arm.arm}\nprefilled", justify="right")
        if timed:
            table.add_column("\nTTFT", justify="right", no_wrap=True)
        if floors:
            table.add_column("\n/ floor", justify="right", no_wrap=True)
    for row, turn in enumerate(report.arms[0].turns):
        calls = turn.counts.calls
        cells = [str(turn.turn), str(calls), f"{turn.counts.prompt / calls:,.0f}", f"{turn.counts.new / calls:,.0f}"]
        for arm in report.arms:
            cells += _turn_cells(arm.turns[row], floors=floors)
        table.add_row(*cells)
    return table


def notes(report: Report) -> Iterator[str]:
    """What a reader has to know about the tables, in sentences."""
    level = " A turn is a level of the tree." if report.workload.name == "branch" else ""
    yield (
        f"A: tokens prefilled for each new one, 1 is the least.{level} New: not yet computed for any earlier call. "
        "Sharing factor: tokens that running calls refer to, each by itself, for each one in memory; its ceiling has "
        "every token once. docs/benchmarks.md defines every figure."
    )
    if report.arms[0].times is None:
        return
    yield "TTFT: time to the first token. Floor: what this machine needs for it at least, by its products and copies."
    if report.repeats == 1:
        yield "Each arm ran once, so that a small difference may be chance: --repeats 3 shows the range."
    floors = [turn.times.over_floor for arm in report.arms for turn in arm.turns if turn.times is not None]
    if any(floor is not None and floor.median < 1 for floor in floors):
        yield (
            "A time below its floor means that the machine was busy while its limits were measured, at the start: "
            "run again when it is quiet."
        )


def _table(title: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )


def _turn_cells(turn: TurnReport, *, floors: bool) -> list[str]:
    cells = [f"{turn.counts.prefilled / turn.counts.calls:,.0f}"]
    if turn.times is not None:
        cells.append(_seconds(turn.times.ttft.median.median))
        over = turn.times.over_floor
        if floors:
            cells.append("" if over is None else f"{over.median:.1f}×")
    return cells


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.0f} ms" if value >= 0.01 else f"{1000 * value:.1f} ms"


def _range(figure: Figure, show: Callable[[float], str]) -> str:
    if figure.repeats == 1:
        return show(figure.median)
    middle, low, high = show(figure.median), show(figure.min), show(figure.max)
    units = {text.lstrip("$0123456789.,") for text in (middle, low, high)}
    # The unit once, where there is one for all.
    unit = units.pop() if len(units) == 1 else ""
    return f"{middle.removesuffix(unit)} ({low.removesuffix(unit)}–{high.removesuffix(unit)}){unit}"


def _times(pick: Callable[[Times], Figure | None], show: Callable[[float], str]) -> Callable[[ArmReport], str]:
    def cell(arm: ArmReport) -> str:
        figure = None if arm.times is None else pick(arm.times)
        return "" if figure is None else _range(figure, show)

    return cell


def _rates(pick: Callable[[Rates], Figure | None], show: Callable[[float], str]) -> Callable[[ArmReport], str]:
    def cell(arm: ArmReport) -> str:
        figure = None if arm.rates is None else pick(arm.rates)
        return "" if figure is None else _range(figure, show)

    return cell


def _memory(show: Callable[[Memory], str]) -> Callable[[ArmReport], str]:
    return lambda arm: "" if arm.memory is None else show(arm.memory)


_TOTALS: tuple[tuple[str, Callable[[ArmReport], str]], ...] = (
    ("prompt tokens", lambda arm: f"{arm.counts.prompt:,}"),
    ("  cached", lambda arm: f"{arm.counts.cached:,.0f}"),
    ("  prefilled", lambda arm: f"{arm.counts.prefilled:,.0f}"),
    ("  new", lambda arm: f"{arm.counts.new:,}"),
    ("prefill amplification A", lambda arm: f"{arm.counts.amplification:.3f}"),
    ("hit ratio", lambda arm: f"{arm.counts.hit_ratio:.4f}"),
    ("  its ceiling", lambda arm: f"{arm.counts.hit_ceiling:.4f}"),
    ("preemptions", lambda arm: f"{arm.counts.preemptions:,.0f}" if arm.counts.preemptions else "0"),
    ("KV slots in use, peak", _memory(lambda memory: f"{memory.peak_in_use:,}")),
    ("KV slots per distinct token", _memory(lambda memory: f"{memory.slots_per_distinct:.3f}")),
    ("sharing factor, mean", _memory(lambda memory: f"{memory.sharing_mean:.3f}")),
    ("  peak", _memory(lambda memory: f"{memory.sharing_peak:.3f}")),
    ("  ceiling of the mean", _memory(lambda memory: f"{memory.sharing_ceiling:.3f}")),
    ("TTFT, median", _times(lambda times: times.ttft.median, _seconds)),
    ("  p99", _times(lambda times: times.ttft.p99, _seconds)),
    ("  over its floor, median", _times(lambda times: times.over_floor, lambda value: f"{value:.2f}×")),
    ("  over floor of new tokens", _times(lambda times: times.over_ideal_floor, lambda value: f"{value:.2f}×")),
    ("between tokens, median", _times(lambda times: times.itl and times.itl.median, _seconds)),
    ("  p99", _times(lambda times: times.itl and times.itl.p99, _seconds)),
    ("whole run", _rates(lambda rates: rates.seconds, _seconds)),
    ("generated tokens/s", _rates(lambda rates: rates.generated_rate, lambda value: f"{value:,.1f}")),
    ("prompt tokens/s", _rates(lambda rates: rates.prompt_rate, lambda value: f"{value:,.0f}")),
    ("prefilled tokens/s", _rates(lambda rates: rates.prefilled_rate, lambda value: f"{value:,.0f}")),
    ("engine CPU outside the model", _rates(lambda rates: rates.other_cpu_share, lambda value: f"{value:.2%}")),
    ("cost per task", _rates(lambda rates: rates.cost_per_task, lambda value: f"${value:.6f}")),
)
