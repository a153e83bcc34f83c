"""/metrics: names, and numbers that add up."""

from __future__ import annotations

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import metric


def series(http: httpx.Client) -> dict[str, float]:
    """Every sample of /metrics by name and labels."""
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for sample in family.samples
    }


def complete(http: httpx.Client, **body: Any) -> None:
    assert http.post("/v1/completions", json={"ignore_eos": True, **body}).status_code == 200


def test_every_name_is_there_before_the_first_request(http: httpx.Client) -> None:
    found = series(http)
    for name in (
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_requests_running",
        "num_requests_waiting",
        "prompt_tokens_total",
        "generation_tokens_total",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "e2e_request_latency_seconds_count",
        "request_success_total{finished_reason=stop}",
        "request_success_total{finished_reason=length}",
        "kv_cache_usage_perc",
        "kv_slots{state=free}",
        "kv_slots{state=evictable}",
        "kv_slots{state=protected}",
        "num_preemptions_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
    ):
        assert f"mainstem_{name}" in found


def test_content_type_is_that_of_the_text_format(http: httpx.Client) -> None:
    assert http.get("/metrics").headers["content-type"].startswith("text/plain; version=")


def test_counters_grow_by_what_was_done(http: httpx.Client) -> None:
    prompt = [80, *range(100, 150)]
    before = series(http)
    complete(http, prompt=prompt, max_tokens=6)
    complete(http, prompt=prompt, max_tokens=6, stream=True)
    grown = {name: value - before[name] for name, value in series(http).items() if name in before}
    assert grown["mainstem_prompt_tokens_total"] == 102
    assert grown["mainstem_prefilled_tokens_total"] == 52
    assert grown["mainstem_generation_tokens_total"] == 12
    assert grown["mainstem_prefix_cache_queries_total"] == 102
    assert grown["mainstem_prefix_cache_hits_total"] == 50
    assert grown["mainstem_request_success_total{finished_reason=length}"] == 2
    assert grown["mainstem_time_to_first_token_seconds_count"] == 2
    assert grown["mainstem_inter_token_latency_seconds_count"] == 10
    assert grown["mainstem_e2e_request_latency_seconds_count"] == 2
    assert 0 < grown["mainstem_time_to_first_token_seconds_sum"] <= grown["mainstem_e2e_request_latency_seconds_sum"]


def test_counters_never_fall(http: httpx.Client) -> None:
    before = series(http)
    for _ in range(3):
        complete(http, prompt=[81, 82], max_tokens=3)
        http.post("/cache/reset")
        after = series(http)
        counters = [name for name in after if "_total" in name or name.endswith(("_count", "_sum", "_bucket"))]
        assert len(counters) > 10
        assert all(after[name] >= before.get(name, 0) for name in counters)
        before = after


def test_slots_add_up_while_requests_run(http: httpx.Client) -> None:
    body = {"prompt": [83, *range(100, 150)], "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        found = series(http)
    assert found["mainstem_num_requests_running"] == 1
    slots = {state: found[f"mainstem_kv_slots{{state={state}}}"] for state in ("free", "evictable", "protected")}
    assert sum(slots.values()) == 8192
    assert slots["protected"] >= 51
    assert found["mainstem_kv_cache_usage_perc"] == slots["protected"] / 8192


def test_refused_requests_count_nothing(http: httpx.Client) -> None:
    before = metric(http, "mainstem_prompt_tokens_total")
    assert http.post("/v1/completions", json={"prompt": [7] * 3000}).status_code == 400
    assert metric(http, "mainstem_prompt_tokens_total") == before
