"""What is made of the replies of a server."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from mainstem.bench.http import Completion
from mainstem.bench.http_report import ServerReport, server_json, server_report, server_table, summary
from mainstem.bench.report import Pricing
from mainstem.bench.workload import Call, Workload

FIRST = Call(session=0, turn=1, after=None, extends=False, appended=np.arange(10, dtype=np.int32), reply_tokens=3)
SECOND = Call(session=0, turn=2, after=0, extends=True, appended=np.arange(5, dtype=np.int32), reply_tokens=3)
WORKLOAD = Workload(name="test", settings={"seed": 0}, calls=(FIRST, SECOND), vocab_size=100)


def _replies(*, ttft: float = 1.0, cached: tuple[int | None, int | None] = (0, 12)) -> list[Completion]:
    """Two replies of three tokens, one a tenth of a second, the second sent when the first is complete."""
    return [
        Completion(
            sent=sent,
            token_times=[sent + ttft, sent + ttft + 0.1, sent + ttft + 0.2],
            token_ids=[90, 91, 92],
            prompt_tokens=prompt,
            completion_tokens=3,
            cached_tokens=hit,
        )
        for sent, prompt, hit in zip((0.0, ttft + 0.2), (10, 18), cached, strict=True)
    ]


def _report(*runs: list[Completion]) -> ServerReport:
    return server_report("model", WORKLOAD, runs, Pricing(3600))


def test_tokens_and_times_are_summed_up_by_turn() -> None:
    result = _report(_replies(ttft=1.0), _replies(ttft=2.0))
    first, second = result.arm.turns
    assert (first.counts.prefilled, second.counts.cached, second.counts.prefilled) == (10, 12, 6)
    # Of turn two's prompt the last token of the reply and the five appended ones had never been computed.
    assert second.counts.new == 6
    assert second.times is not None
    assert second.times.ttft.median[:3] == pytest.approx((1.5, 1.0, 2.0))
    assert second.times.itl is not None
    assert second.times.itl.median.median == pytest.approx(0.1)
    assert result.arm.rates is not None
    assert result.arm.rates.cost_per_task is not None
    assert result.arm.rates.cost_per_task.median == pytest.approx((2.4 + 4.4) / 2)


def test_json_has_every_figure_and_no_number_that_json_lacks() -> None:
    document = json.loads(json.dumps(server_json(_report(_replies())), allow_nan=False))
    assert document["counts"]["amplification"] == 1.0
    assert document["turns"][1]["counts"]["cached"] == 12
    assert document["turns"][0]["times"]["ttft"]["median"]["median"] == pytest.approx(1.0)
    assert (document["tells_cached"], document["was_warm"], document["short_replies"]) == (True, False, 0)


def test_what_a_server_does_not_tell_is_unknown_and_not_zero() -> None:
    result = _report(_replies(cached=(None, None)))
    assert not result.tells_cached
    document = server_json(result)
    for counts in (document["counts"], document["turns"][1]["counts"]):
        assert counts["cached"] is counts["prefilled"] is counts["amplification"] is counts["hit_ratio"] is None
        assert counts["prompt"] > 0
    assert "does not say how much of a prompt was cached" in " ".join(summary(result))
    row = next(line for line in _shown(result).splitlines() if line.strip().startswith("all"))
    assert row.split()[4:6] == ["–", "–"]


def test_a_server_that_knew_the_beginning_was_warm() -> None:
    assert not _report(_replies()).was_warm
    result = _report(_replies(), _replies(cached=(9, 12)))
    assert result.was_warm
    assert any("Not cold" in line for line in summary(result))


def test_replies_that_end_early_are_said_so() -> None:
    whole, short = _replies(), _replies()
    short[1] = replace(short[1], completion_tokens=2)
    assert _report(whole).short_replies == 0
    result = _report(whole, short)
    assert result.short_replies == 1
    assert any("1 replies ended early" in line for line in summary(result))


def test_a_reply_in_text_counts_by_its_length() -> None:
    in_text = [replace(reply, token_ids=[]) for reply in _replies()]
    assert _report(in_text).arm.turns[1].counts.new == 6


def test_the_table_has_a_row_a_turn_and_fits_a_terminal() -> None:
    lines = _shown(_report(_replies(), _replies())).splitlines()
    assert [line.split()[0] for line in lines if line.strip()[:1] in ("1", "2", "a")] == ["1", "2", "all"]
    assert max(map(len, lines)) <= 80


def _shown(result: ServerReport) -> str:
    console = Console(width=80)
    with console.capture() as shown:
        console.print(server_table(result))
    return shown.get()
