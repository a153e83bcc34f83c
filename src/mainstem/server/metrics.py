"""Prometheus metrics under vLLM's names with our prefix, so that dashboards made for it need one replacement.

Gauges and totals are read from the engine at each scrape; times are observed here as replies pass. Knows no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mainstem.server.keys import PUBLIC

if TYPE_CHECKING:
    from mainstem.engine import AsyncEngine
    from mainstem.engine.outputs import RequestOutput
    from mainstem.tree import Namespace

_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_TOKEN_BUCKETS = (0.005, 0.01, 0.015, 0.02, 0.025, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5)
_E2E_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960)


class Metrics:
    """All metrics of one app, in a registry of its own."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine))
        self.ttft = Histogram(
            "mainstem_time_to_first_token_seconds",
            "Seconds from a request's arrival to its first token.",
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self.inter_token = Histogram(
            "mainstem_inter_token_latency_seconds",
            "Seconds between two tokens of a reply.",
            buckets=_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self.e2e = Histogram(
            "mainstem_e2e_request_latency_seconds",
            "Seconds from a request's arrival to the last token of a reply.",
            buckets=_E2E_BUCKETS,
            registry=self.registry,
        )
        self.success = Counter(
            "mainstem_request_success",
            "Replies that ended of themselves, by how.",
            labelnames=("finished_reason",),
            registry=self.registry,
        )
        for reason in ("stop", "length"):
            self.success.labels(reason)

    def request_timings(self) -> RequestTimings:
        """An observer for one HTTP request that arrives now."""
        return RequestTimings(self)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


class RequestTimings:
    """Observes the outputs of one HTTP request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._arrived = time.perf_counter()
        self._last_at: dict[int, float] = {}

    def observe(self, choice: int, output: RequestOutput) -> None:
        """Count what is new about a choice."""
        last_at = self._last_at.get(choice)
        if output.token_ids:
            if last_at is None:
                self._metrics.ttft.observe(output.at - self._arrived)
            else:
                # Tokens that came together share the time since the ones before.
                for _ in output.token_ids:
                    self._metrics.inter_token.observe((output.at - last_at) / len(output.token_ids))
            self._last_at[choice] = output.at
        if output.finish_reason is not None:
            self._metrics.e2e.observe(output.at - self._arrived)
            self._metrics.success.labels(output.finish_reason).inc()


class _EngineCollector(Collector):
    """Reads one consistent snapshot of the engine at each scrape."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def describe(self) -> list[Metric]:
        # Registering must not ask an engine that has not started yet.
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        cache = stats.cache
        for name, help, total in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens that were not computed.", stats.cached_tokens),
            ("prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens),
            ("prefilled_tokens", "Prompt tokens that had to be computed.", stats.prefilled_tokens),
            (
                "recomputed_tokens",
                "Prompt tokens computed though they had been computed before, and were evicted to make room.",
                stats.recomputed_tokens,
            ),
            ("generation_tokens", "Tokens generated.", stats.generated_tokens),
            ("spec_decode_num_draft_tokens", "Tokens that were guessed and checked ahead.", stats.drafted_tokens),
            ("spec_decode_num_accepted_tokens", "Tokens of replies that were guessed right.", stats.accepted_tokens),
            ("num_preemptions", "Times a running request gave up its memory to another.", stats.preemptions),
            ("grammar_masks", "Tokens that a grammar decided on, in finished replies.", stats.masks),
            ("grammar_mask_seconds", "Seconds that finding what a grammar allows took.", stats.mask_seconds),
            (
                "requests_aborted",
                "Replies given up by their clients, at shutdown, or because computing failed.",
                stats.requests_aborted,
            ),
        ):
            yield CounterMetricFamily(f"mainstem_{name}", help, value=total)
        if stats.misses:
            misses = CounterMetricFamily(
                "mainstem_prefix_cache_misses", "Prompt tokens that were not cached, by cause.", labels=["cause"]
            )
            for cause, tokens in stats.misses.items():
                misses.add_metric([cause.value], tokens)
            yield misses
        yield GaugeMetricFamily("mainstem_num_requests_running", "Requests being computed.", value=stats.running)
        yield GaugeMetricFamily("mainstem_num_requests_waiting", "Requests in the queue.", value=stats.waiting)
        yield GaugeMetricFamily(
            "mainstem_kv_cache_usage_perc",
            "Share of the KV pool that running requests hold; 1 is all.",
            value=cache.protected / cache.capacity,
        )
        yield GaugeMetricFamily(
            "mainstem_thrash_tokens_per_second",
            "Prompt tokens a second, over the last minute, that were computed again because they had been evicted.",
            value=stats.thrash_tokens_per_s,
        )
        evicted = CounterMetricFamily(
            "mainstem_prefix_cache_evicted_tokens", "Tokens that left the prefix cache, by reason.", labels=["reason"]
        )
        for reason, tokens in stats.evicted_by_reason.items():
            evicted.add_metric([reason.value], tokens)
        yield evicted
        slots = GaugeMetricFamily("mainstem_kv_slots", "Token slots of the KV pool, by state.", labels=["state"])
        slots.add_metric(["free"], cache.free)
        slots.add_metric(["evictable"], cache.evictable)
        slots.add_metric(["protected"], cache.protected)
        yield slots
        tenants = GaugeMetricFamily("mainstem_kv_tenant_tokens", "Cached tokens of each tenant.", labels=["tenant"])
        for account, tokens in self._engine.tokens_by_tenant().items():
            tenants.add_metric([_tenant_name(account)], tokens)
        yield tenants
        requests = GaugeMetricFamily(
            "mainstem_tenant_requests", "Requests of each tenant, by state.", labels=["tenant", "state"]
        )
        for account, load in self._engine.load_by_tenant().items():
            for state, number in load._asdict().items():
                requests.add_metric([_tenant_name(account), state], number)
        yield requests


def _tenant_name(account: Namespace) -> str:
    return str(account[1]) if account[:1] == ("tenant",) else PUBLIC
