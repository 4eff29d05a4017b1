"""Prometheus metrics, read from the runtime when they are asked for. Base units, own registry."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from app.clock import now_ms
from app.console.overview import lag_messages, lag_s
from app.control.runtime import Runtime
from app.core.job import JobId

LABELS = ["workload", "topic", "partition"]


class _Collector:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def collect(self) -> Iterator[Metric]:
        runtime = self.runtime
        gauges = {
            "lag_messages": GaugeMetricFamily(
                "switchyard_lag_messages", "Messages not committed yet", labels=LABELS
            ),
            "lag_s": GaugeMetricFamily(
                "switchyard_lag_seconds", "Age of the oldest unfinished message", labels=LABELS
            ),
            "in_flight": GaugeMetricFamily("switchyard_in_flight_messages", "Calls under way", labels=LABELS),
        }
        counters = {
            name: CounterMetricFamily(f"switchyard_{name}_messages", f"Messages {text}", labels=LABELS)
            for name, text in (("delivered", "acknowledged"), ("retried", "moved to a retry topic"),
                               ("dead_lettered", "moved to the dead letter queue"))
        }  # fmt: skip
        for status in runtime.jobs.statuses():
            job = JobId.parse(status.job)
            labels = [job.name, job.topic, str(job.partition)]
            values = {"lag_messages": lag_messages(status), "lag_s": lag_s(status, now_ms()),
                      "in_flight": status.in_flight}  # fmt: skip
            for name, value in values.items():
                if value is not None:
                    gauges[name].add_metric(labels, value)
            for name, counter in counters.items():
                counter.add_metric(labels, getattr(status, name))
        yield from gauges.values()
        yield from counters.values()
        breakers = GaugeMetricFamily("switchyard_breaker_open", "1 while the breaker is not closed",
                                     labels=["workload"])  # fmt: skip
        for receiver in runtime.jobs.workload_statuses():
            breakers.add_metric([receiver.key], receiver.breaker != "closed")
        yield breakers
        budget = runtime.clusters.budget
        yield GaugeMetricFamily(
            "switchyard_buffered_bytes", "Fetched bytes in memory", value=budget.used_bytes
        )
        yield GaugeMetricFamily(
            "switchyard_leader_term", "Term this worker knows", value=runtime.control.view.term
        )
        yield GaugeMetricFamily("switchyard_leads", "1 on the leader", value=runtime.leader.leads)
        holds = runtime.lease.holds(time.monotonic())
        yield GaugeMetricFamily("switchyard_lease_holds", "1 while this worker may act", value=holds)


def exposition(runtime: Runtime) -> tuple[bytes, str]:
    """The text and its content type."""
    registry = CollectorRegistry()
    registry.register(_Collector(runtime))
    return generate_latest(registry), CONTENT_TYPE_LATEST
