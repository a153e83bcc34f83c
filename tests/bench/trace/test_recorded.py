"""Published figures of the Mooncake conversation trace, where the recording is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.bench.trace import BlockTrace, EndBit, TraceResult, measure, read_traces
from mainstem.bench.trace.sessions import find_turns, hits_with_end_bit

TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces"
MOONCAKE = TRACES / "mooncake-fast25" / "FAST25-release" / "traces" / "conversation_trace.jsonl"
SESSIONS = TRACES / "claude-code-kv-cache-tester" / "traces"

pytestmark = pytest.mark.skipif(not MOONCAKE.exists(), reason="the recorded traces are not in ../shared")


@pytest.fixture(scope="module")
def mooncake() -> BlockTrace:
    return read_traces([MOONCAKE])


@pytest.fixture(scope="module")
def at_5_percent(mooncake: BlockTrace) -> TraceResult:
    return measure(mooncake, [int(mooncake.distinct * 0.05)], lambda *_: None)


def test_the_recorded_trace_has_its_published_size(mooncake: BlockTrace) -> None:
    assert (len(mooncake.requests), mooncake.references, mooncake.distinct) == (12_031, 288_500, 182_790)


def test_an_infinite_cache_hits_0_3664_of_the_references(at_5_percent: TraceResult) -> None:
    assert at_5_percent.infinite.blocks == 288_500 - 182_790
    assert f"{at_5_percent.infinite.blocks / at_5_percent.trace.references:.4f}" == "0.3664"


def test_lru_at_5_percent_hits_20_0_percent_of_the_tokens_and_the_clairvoyant_cache_37_4(
    at_5_percent: TraceResult,
) -> None:
    shares = {
        curve.policy: f"{100 * curve.hits[0].tokens / at_5_percent.trace.tokens:.1f}" for curve in at_5_percent.curves
    }
    assert shares.pop("clairvoyant") == "37.4"
    assert set(shares.values()) == {"20.0"}


@pytest.mark.parametrize(("end_bit", "least"), [(EndBit(0.9), 0.31), (EndBit(0.9, "false"), 0.34), (EndBit(0.0), 0.18)])
def test_an_end_bit_lifts_the_tree_above_lru_and_its_inverse_costs_less_than_two_points(
    mooncake: BlockTrace, end_bit: EndBit, least: float
) -> None:
    hits = hits_with_end_bit(mooncake, find_turns(mooncake), end_bit, int(mooncake.distinct * 0.05))
    pairs = zip(mooncake.requests, hits, strict=True)
    assert sum(mooncake.tokens_in(found, request) for request, found in pairs) / mooncake.tokens > least


def test_coding_sessions_with_sub_agents_are_read() -> None:
    trace = read_traces([SESSIONS / "trace_0254.json"])
    assert (trace.block_size, len(trace.requests), trace.references, trace.distinct) == (64, 162, 250_694, 15_136)
