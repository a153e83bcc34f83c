"""The result of a trace as a table for the terminal, as JSON and as a picture. Decides nothing and measures nothing."""

from __future__ import annotations

from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.bench.trace.curves import ARMS, CLAIRVOYANT, Hits, TraceResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

_COLORS = {"radix": "#1a7f37", "block-hash": "#0969da", CLAIRVOYANT: "#8250df"}
_INFINITE_COLOR = "#57606a"


def label(policy: str) -> str:
    """How a policy is called in tables and pictures."""
    if policy == CLAIRVOYANT:
        return "Belady, optimal"
    return f"{policy} LRU" if policy in ARMS else policy


def summary(result: TraceResult) -> str:
    """Three lines: what the trace is, and what an infinite cache makes of it."""
    trace = result.trace
    blocks, tokens = _ratios(result, result.infinite)
    return (
        f"{len(trace.requests):,} requests, {trace.tokens:,} prompt tokens; longest prompt: {trace.longest:,} blocks\n"
        f"{trace.references:,} references to {trace.distinct:,} distinct blocks of {trace.block_size} tokens\n"
        f"infinite cache: {blocks:.4f} of {trace.references:,} block references hit, {tokens:.4f} of the tokens"
    )


def table(result: TraceResult) -> Table:
    """Hit ratios with four decimals: a row a capacity; of every policy first that of blocks, then that of tokens."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    trace = result.trace
    shown = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    for name in ("blocks", "share", "tokens"):
        shown.add_column(name, justify="right", no_wrap=True)
    for curve in result.curves:
        shown.add_column(label(curve.policy), justify="right", no_wrap=len(result.curves) <= 3)
    for row, capacity in enumerate(result.capacities):
        ratios = [_ratios(result, curve.hits[row]) for curve in result.curves]
        shown.add_row(
            f"{capacity:,}",
            f"{100 * capacity / trace.distinct:.1f}%",
            f"{capacity * trace.block_size:,}",
            *(f"{blocks:.4f}  {tokens:.4f}" for blocks, tokens in ratios),
        )
    return shown


def as_json(result: TraceResult) -> dict[str, Any]:
    """Every figure. Amplification is blocks prefilled over distinct blocks: 1 with an infinite cache."""
    trace = result.trace
    return {
        "trace": {
            "requests": len(trace.requests),
            "block_size": trace.block_size,
            "block_references": trace.references,
            "distinct_blocks": trace.distinct,
            "prompt_tokens": trace.tokens,
            "longest_prompt_blocks": trace.longest,
        },
        "infinite": _figures(result, result.infinite),
        "curves": {
            curve.policy: [
                {"capacity_blocks": capacity, **_figures(result, hits)}
                for capacity, hits in zip(result.capacities, curve.hits, strict=True)
            ]
            for curve in result.curves
        },
    }


def draw(result: TraceResult, title: str, folder: Path) -> list[Path]:
    """Draw hit ratio against capacity into `folder`, as SVG and PNG; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, rc_context

    # Without a date and with fixed ids, the same result is the same file.
    with rc_context({"svg.hashsalt": "mainstem", "font.size": 10}):
        figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
        _draw_curves(axes, result)
        axes.set_title(title, loc="left")
        files = [folder / "trace.svg", folder / "trace.png"]
        figure.savefig(files[0], metadata={"Date": None})
        figure.savefig(files[1], dpi=150)
        pyplot.close(figure)
    return files


def _draw_curves(axes: Axes, result: TraceResult) -> None:
    trace = result.trace
    shares = [100 * capacity / trace.distinct for capacity in result.capacities]
    infinite = result.infinite.blocks / trace.references
    axes.axhline(infinite, color=_INFINITE_COLOR, linestyle=":", label=f"infinite cache: {infinite:.4f}")
    # Where two policies agree, the later one leaves gaps through which the earlier one shows.
    for curve, style in zip(reversed(result.curves), chain(("-", "-", (0, (4, 4))), repeat("-")), strict=False):
        ratios = [hits.blocks / trace.references for hits in curve.hits]
        color = _COLORS.get(curve.policy)
        axes.plot(shares, ratios, marker="o", markersize=4, linestyle=style, color=color, label=label(curve.policy))
    axes.set_xscale("log")
    ticks = [share for share in (0.5, 1, 2, 5, 10, 20, 50, 100) if share >= shares[0] * 0.9]
    axes.set_xticks(ticks, [f"{share:g}%" for share in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"capacity, share of the trace's {trace.distinct:,} distinct blocks of {trace.block_size} tokens")
    axes.set_ylabel(f"block hit ratio ({trace.references:,} references)")
    axes.grid(color="#d8dee4", linewidth=0.6)
    axes.legend(loc="lower right", frameon=False)


def _ratios(result: TraceResult, hits: Hits) -> tuple[float, float]:
    return hits.blocks / result.trace.references, hits.tokens / result.trace.tokens


def _figures(result: TraceResult, hits: Hits) -> dict[str, Any]:
    blocks, tokens = _ratios(result, hits)
    return {
        "block_hits": hits.blocks,
        "block_hit_ratio": round(blocks, 4),
        "token_hits": hits.tokens,
        "token_hit_ratio": round(tokens, 4),
        "amplification": round((result.trace.references - hits.blocks) / result.trace.distinct, 4),
    }
