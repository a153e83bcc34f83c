"""What the calls of a workload cost on a server, as figures, a table and JSON.

A server is one arm of a report like any other, except that it may not say what was cached, and that nothing is known of
its memory. It knows replies and reports, and asks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mainstem.bench.drive import CallRecord
from mainstem.bench.http import Completion
from mainstem.bench.report import ArmReport, Counts, Pricing, Report, Times, as_json, make_report
from mainstem.bench.run import ArmRun
from mainstem.bench.workload import Workload

if TYPE_CHECKING:
    from rich.table import Table

_UNTOLD_COUNTS = ("cached", "prefilled", "amplification", "hit_ratio", "preemptions")
UNKNOWN = "–"


class ServerReport(NamedTuple):
    """The figures of one server.

    Attributes:
        report: with one arm, named after the model.
        runs: it is made of.
        tells_cached: whether the server says how much of a prompt was cached; if not, its counts of that mean nothing.
        was_warm: whether in some run the server knew the beginning of every session beforehand.
        short_replies: how many replies, of all runs, ended before the length that was asked for.
    """

    report: Report
    runs: list[ArmRun]
    tells_cached: bool
    was_warm: bool
    short_replies: int

    @property
    def arm(self) -> ArmReport:
        """The one arm."""
        return self.report.arms[0]


def server_report(
    name: str, workload: Workload, replies: Sequence[Sequence[Completion]], pricing: Pricing | None
) -> ServerReport:
    """Sum up.

    Args:
        name: of the model.
        workload: that was run; every run had other tokens of the same number.
        replies: of every run, the replies to its calls.
        pricing: of the machine that serves.
    """
    runs = [_arm_run(name, repeat, workload, of_run) for repeat, of_run in enumerate(replies)]
    flat = [reply for of_run in replies for reply in of_run]
    begins = [index for index, call in enumerate(workload.calls) if call.after is None]
    return ServerReport(
        # The runs had different tokens, so that their replies differ means nothing.
        report=make_report(workload, runs, pricing=pricing)._replace(difference=None),
        runs=runs,
        tells_cached=all(reply.cached_tokens is not None for reply in flat),
        was_warm=any(all(of_run[index].cached_tokens for index in begins) for of_run in replies),
        short_replies=sum(
            reply.completion_tokens < call.reply_tokens
            for of_run in replies
            for call, reply in zip(workload.calls, of_run, strict=True)
        ),
    )


def _arm_run(name: str, repeat: int, workload: Workload, replies: Sequence[Completion]) -> ArmRun:
    return ArmRun(name, repeat, [_record(index, workload, reply) for index, reply in enumerate(replies)])


def _record(index: int, workload: Workload, reply: Completion) -> CallRecord:
    prompt = workload.prompt_lengths[index] if reply.prompt_tokens is None else reply.prompt_tokens
    cached = reply.cached_tokens or 0
    # Of a reply in text only its length is known. Tokens that no prompt has stand for it, the same ones for all.
    ids = reply.token_ids or np.arange(workload.calls[index].reply_tokens) + workload.vocab_size
    return CallRecord(
        call=index,
        submitted=reply.sent,
        token_times=np.array(reply.token_times),
        reply=np.array(ids, np.int32),
        first_step=0,
        prompt_tokens=prompt,
        found_tokens=cached,
        cached_tokens=cached,
        prefilled_tokens=prompt - cached,
        preemptions=0,
    )


def server_table(result: ServerReport) -> Table:
    """A row a turn, and one for all: the tokens of a call in the mean; times to the first token and between tokens."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for name in ("turn", "calls", "prompt", "new", "prefilled", "A", "TTFT, s", "p99", "token, ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for turn in result.arm.turns:
        table.add_row(str(turn.turn), *_cells(turn.counts, turn.times, result.tells_cached))
    table.add_section()
    table.add_row("all", *_cells(result.arm.counts, result.arm.times, result.tells_cached))
    return table


def _cells(counts: Counts, times: Times | None, tells_cached: bool) -> list[str]:
    assert times is not None
    return [
        str(counts.calls),
        f"{counts.prompt / counts.calls:,.0f}",
        f"{counts.new / counts.calls:,.0f}",
        f"{counts.prefilled / counts.calls:,.0f}" if tells_cached else UNKNOWN,
        f"{counts.amplification:.3f}" if tells_cached else UNKNOWN,
        f"{times.ttft.median.median:.3f}",
        f"{times.ttft.p99.median:.3f}",
        UNKNOWN if times.itl is None else f"{1e3 * times.itl.median.median:.1f}",
    ]


def summary(result: ServerReport) -> list[str]:
    """What the table does not say, in sentences; what a reader must know of these figures is among them."""
    rates, times, counts = result.arm.rates, result.arm.times, result.arm.counts
    assert rates is not None
    assert times is not None
    ttft = times.ttft.median
    lines = [
        f"{rates.seconds.median:.1f} s a run; {rates.generated_rate.median:.1f} tokens generated a second, "
        f"{rates.prompt_rate.median:,.0f} of prompts"
    ]
    if rates.cost_per_task is not None:
        lines[0] += f"; ${rates.cost_per_task.median:.6f} a session"
    if ttft.repeats > 1:
        lines.append(f"the median time to the first token of a run was between {ttft.min:.3f} and {ttft.max:.3f} s")
    if result.tells_cached:
        lines.append(
            f"hit ratio {counts.hit_ratio:.4f}, an endless cache has {counts.hit_ceiling:.4f}; "
            f"{counts.amplification:.3f} tokens prefilled for each new one"
        )
    else:
        lines.append("The server does not say how much of a prompt was cached.")
    if result.was_warm:
        lines.append(
            "Not cold: the server had the beginning of every session in its cache. "
            "Restart it, or choose another --seed."
        )
    if result.short_replies:
        lines.append(
            f"{result.short_replies} replies ended early; this server does not take ignore_eos, and its later prompts "
            "are shorter than those of others."
        )
    return lines


def server_json(result: ServerReport) -> dict[str, Any]:
    """Every figure; null for what the server does not tell."""
    document = as_json(result.report)
    del document["same_text"], document["first_difference"]
    arm = document["arms"].popitem()[1]
    del document["arms"], arm["memory"]
    for part in (arm, *arm["turns"]):
        part.pop("memory", None)
        part["counts"]["preemptions"] = None
        if not result.tells_cached:
            part["counts"] |= dict.fromkeys(_UNTOLD_COUNTS)
            part["times"]["prefill_rate"] = None
    if not result.tells_cached:
        arm["rates"]["prefilled_rate"] = None
    notes = {
        "tells_cached": result.tells_cached,
        "was_warm": result.was_warm,
        "short_replies": result.short_replies,
    }
    return {**document, **notes, **arm}
