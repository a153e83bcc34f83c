"""The demo's sums."""

from __future__ import annotations

import pytest

from mainstem.cli.client import Reply
from mainstem.cli.report import Summary, TurnReport, new_tokens, summarize


def reply(prompt: int, cached: int, completion: int = 10, ttft_s: float = 0.5) -> Reply:
    return Reply("", prompt, cached, completion, ttft_s, 1.0)


FIRST, SECOND = reply(1000, 0, ttft_s=2.0), reply(1100, 1009)


def test_all_of_the_first_prompt_is_new() -> None:
    assert new_tokens(FIRST, None) == 1000


def test_the_last_token_of_a_reply_is_new_in_the_next_prompt() -> None:
    assert new_tokens(SECOND, FIRST) == 1100 - 1000 - 9


@pytest.fixture
def summary() -> Summary:
    return summarize([TurnReport(1, "", 1000, FIRST, 2.0), TurnReport(2, "", 91, SECOND, 2.5)])


def test_amplification_is_one_when_only_new_tokens_were_prefilled(summary: Summary) -> None:
    assert summary.prefilled_tokens == 1000 + 91
    assert summary.amplification == 1.0
    assert summary.uncached_amplification == pytest.approx(2100 / 1091)


def test_a_recomputed_token_raises_amplification() -> None:
    worse = summarize([TurnReport(1, "", 1000, FIRST, 2.0), TurnReport(2, "", 91, reply(1100, 900), 2.5)])
    assert worse.amplification == pytest.approx(1200 / 1091)


def test_memory_holds_each_token_once(summary: Summary) -> None:
    assert summary.logical_tokens == (1000 + 9) + (1100 + 9)
    assert summary.resident_tokens == 1100 + 9
    assert summary.shared == pytest.approx(1 - 1109 / 2118)


def test_waiting_is_added_up_for_both_arms(summary: Summary) -> None:
    assert (summary.ttft_s, summary.uncached_ttft_s) == (2.5, 4.5)


def test_speedup_compares_first_tokens() -> None:
    assert TurnReport(2, "", 91, SECOND, 2.5).speedup == 5.0


def test_a_turn_that_other_work_slowed_down_shows() -> None:
    steady = [TurnReport(n, "works", 10, reply(1000 * n, 0), uncached_ttft_s=2.0 * n) for n in (1, 2, 3)]
    assert summarize(steady).unsteadiness == pytest.approx(1.0)
    slow = [steady[0]._replace(uncached_ttft_s=4 * steady[0].uncached_ttft_s), *steady[1:]]
    assert summarize(slow).unsteadiness == pytest.approx(4.0)
