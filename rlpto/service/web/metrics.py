"""Metrics for Prometheus: answers of the web process, and the state of the cluster from the database."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rlpto.store.database import Store
from rlpto.store.jobs import STATES, count_by_state
from rlpto.store.requests import switch_in_force
from rlpto.store.status import heartbeat, nodes

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)


class ServiceMetrics:
    """Counters of one web process, and gauges that are read from the database on each scrape."""

    def __init__(self, store: Store) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter(
            "rlpto_http_requests", "Answers.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "rlpto_http_request_seconds",
            "Time to answer.",
            ["method", "route"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._registry.register(_ClusterGauges(store))

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        known = method if method in ("GET", "POST", "PUT", "PATCH", "DELETE") else "other"
        self._answers.labels(known, route, str(status)).inc()
        if not route.endswith("/events"):  # a stream lasts as long as its reader likes
            self._seconds.labels(known, route).observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _ClusterGauges(Collector):
    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """The present values from the database."""
        jobs = GaugeMetricFamily("rlpto_jobs", "Jobs by state.", labels=["state"])
        counts = count_by_state(self._store)
        for state in STATES:
            jobs.add_metric([state], counts.get(state, 0))
        yield jobs
        all_nodes = nodes(self._store)
        alive = [node for node in all_nodes if node.alive]
        yield GaugeMetricFamily("rlpto_nodes_alive", "Nodes that are up.", len(alive))
        yield GaugeMetricFamily("rlpto_gpus", "GPUs of nodes that are up.", sum(node.gpus for node in alive))
        held = sum(sum(node.jobs.values()) for node in alive)
        yield GaugeMetricFamily("rlpto_gpus_held", "GPUs that jobs hold.", held)
        switch = switch_in_force(self._store)
        yield GaugeMetricFamily("rlpto_policy_switches", "Number of the last switch.", switch.number if switch else 0)
        found = heartbeat(self._store)
        if found is not None:
            at, beat = found
            yield GaugeMetricFamily("rlpto_scheduler_age_seconds", "Since its last sign of life.", time.time() - at)
            yield GaugeMetricFamily("rlpto_scheduler_decisions", "Since it started.", beat.decisions)
            yield GaugeMetricFamily(
                "rlpto_scheduler_longest_wait_seconds", "Longest wait for the database.", beat.longest_wait
            )

    def describe(self) -> list[Metric]:
        """Empty: the metrics depend on the database."""
        return []
