"""Prometheus metrics, read from the runtime at each scrape. Base units, a registry of its own.

Each worker has its own series, with the region as a label; their sum over the workers is the region's.
Counters start at 0 when a job moves. The region's own figures (recommended sizes, the fleet's load) come
from the leader only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from app.alerts.api.metrics import of_alerts
from app.controllog.codec import JobStatus, WorkloadStatus
from app.dispatch.definition import DISPATCH_JOBS
from app.dispatch.model.throughput_diagnosis import ENDPOINT_STATES, HOLDING, EndpointStatus, TargetStatus
from app.dispatch.view import slowest
from app.failover.api.metrics import of_roles
from app.kernel.broker_throttle import REQUESTS
from app.kernel.clock import now_ms
from app.kernel.job import JobId
from app.offsets.api.metrics import of_offset_sync
from app.replicate.definition import REPLICATE_JOBS
from app.replicate.view import NOTHING
from app.sizing.api.rest import SizeView
from app.worker.api.overview import BREAKER_ORDER, JobsOverview, lag_messages, lag_s
from app.worker.runtime.service import Runtime

JOB = ("workload", "topic", "partition")
ROUTE_JOB = ("route", "topic", "partition")
TARGET = ("workload", "target")
ENDPOINT = (*TARGET, "endpoint")
SERVING = {"serving": 1, **dict.fromkeys(HOLDING, 0)}  # without a health check there is no series

_JOB_GAUGES = {
    "lag_messages": "Messages not committed yet",
    "lag_seconds": "Age of the oldest unfinished message",
    "in_flight_messages": "Messages on their way to the receiver",
    "unfinished_messages": "Messages read and not finished",
    "ready_messages": "Messages read that may go now",
    "behind_messages": "Messages that wait for an earlier one of their key or partition",
    "postponed_messages": "Messages that wait for their time",
    "backoff_messages": "Messages that wait for their next attempt in memory",
    "outgoing_messages": "Messages on their way to a retry topic or the dead letter queue",
    "tracker_used_messages": "Places of the tracker in use",
    "tracker_capacity_messages": "Places of the tracker",
    "fetched_bytes": "Fetched bytes that wait to be decoded",
    "paused": "1 while it sends nothing new: an operator's pause, or another region has it",
    "catching_up": "1 while a backlog is delivered beside new messages",
    "emptying": "1 while a retry tier that is no longer defined is emptied",
}
_JOB_COUNTERS = {
    "delivered": "Messages acknowledged",
    "retried": "Messages moved to a retry topic",
    "dead_lettered": "Messages moved to the dead letter queue",
    "passed_over": "Messages not delivered here, because another region had finished them",
}
_ROUTE_GAUGES = {
    "lag_messages": "Records that the destination does not have yet",
    "lag_seconds": "Age of the oldest record that it does not have yet",
    "unfinished_messages": "Records read whose copies are not acknowledged",
    "fetched_bytes": "Fetched bytes that wait to be copied",
    "paused": "1 while an operator's pause holds",
    "halted": "1 while it is stopped, because the route stops at gaps",
    "stuck_messages": "Offsets that cannot be copied and wait for an operator",
    "limited": "1 while the route's own limits hold it back, or routes of a higher priority do",
    "barrier_seconds": "Age of the newest entry of the offset map",
}
_ROUTE_COUNTERS = {
    "copied_messages": "Records that the destination acknowledged",
    "encoded_messages": "Those whose batches were encoded again",
    "left_out": "Records without a copy, because they come from the destination",
    "lost_records": "Offsets that were gone from the source before they were copied, since copying began",
    "compared": "Copies that were read back and are equal",
    "differing": "Copies that were read back and differ",
    "uncompared": "Copies that could not be read back, of a route that compares all, since copying began",
    "logs_begun_anew": "How often the source was truncated or recreated, since copying began",
    "destination_losses": "How often the destination lost acknowledged records, or was recreated",
}
_TARGET_GAUGES = {
    "limit_messages": "Messages that may be in flight",
    "allowed_messages": "The limit, as far as slow start allows it",
    "limit_ceiling_messages": "The highest value of the adaptive limit",
    "in_flight_messages": "Messages on their way to this receiver",
    "held_messages": "Messages that wait for this receiver",
    "credit_messages": "Messages that its stream accepts now",
    "timeout_seconds": "Timeout of a call in force",
    "serving": "1 when its health check says SERVING, 0 when NOT_SERVING or UNKNOWN",
    "failed_ratio": "Share of the last seconds' answers that are failures of the receiver",
}
_ENDPOINT_GAUGES = {
    "in_flight_messages": "Messages on their way to this endpoint",
    "limit_messages": "Messages that may be in flight to it",
    "latency_seconds": "Mean time to an answer in the last minute that had any",
    "failed_ratio": "Share of the last seconds' messages that it did not take",
    "share_ratio": "Its part of the answers that this worker got in the last seconds",
    "state_seconds": "For how long it has been in its state",
}
_FLEET_GAUGES = {
    "recommended_workers": "Workers that an isolation group needs for its measured load, and one to lose",
    "fleet_workers": "Live workers of an isolation group that take jobs",
    "fleet_load_ratio": "Load of its jobs over the capacity of its workers, in the fullest dimension",
}
_SIZE_GAUGES = {
    "recommended_partitions": "Recommended partitions of the topic",
    "recommended_in_flight_messages": "Recommended messages in flight, over all workers",
    "recommended_workload_workers": "Recommended workers for its jobs alone",
}
_WORKLOAD_GAUGES = {
    "rate_limit_messages_per_second": "This worker's share of flow.messages_per_second",
    "rate_limit_bytes_per_second": "This worker's share of flow.bytes_per_second",
    "head_candidates": "Partitions that their first unfinished message holds back",
    "withheld_messages": "Messages that failed and may not be dead-lettered yet (spec.dlq)",
    "dead_letters_allowed": "Dead letters that spec.dlq allows now",
}


class _Family:
    """Gauges with the same labels; each exists once it has a value."""

    def __init__(self, prefix: str, labels: Sequence[str], gauges: dict[str, str]) -> None:
        self._labels = labels
        self._gauges = {
            name: GaugeMetricFamily(f"{prefix}_{name}", text, labels=labels) for name, text in gauges.items()
        }

    def add(self, labels: Sequence[str], values: dict[str, float | None]) -> None:
        """Adds the values of one set of labels; None has no series."""
        for name, value in values.items():
            if value is not None:
                self._gauges[name].add_metric(labels, value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._gauges.values())


class _Collector:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """Adds the region to every series, so that one Prometheus may have several regions."""
        region = {"region": self.runtime.region}
        for family in self._families():
            family.samples = [
                sample._replace(labels={**region, **sample.labels}) for sample in family.samples
            ]
            yield family

    def _families(self) -> Iterator[Metric]:
        jobs = self.runtime.jobs.statuses()
        workloads = self.runtime.kinds.dispatch.workload_statuses(self.runtime.container.cpu_throttled)
        yield from _of_jobs([job for job in jobs if job.job.startswith(DISPATCH_JOBS)])
        yield from _of_routes([job for job in jobs if job.job.startswith(REPLICATE_JOBS)])
        yield from _of_workloads(workloads, jobs)
        yield from _of_targets(workloads)
        yield from self._of_the_worker()
        yield from self._of_throttles()
        if self.runtime.leader.leads:
            yield from _of_the_region(self.runtime)
            yield from _of_vanished(self.runtime)
            yield from of_offset_sync(self.runtime)
            yield from of_roles(self.runtime)
            yield from of_alerts(self.runtime)

    def _of_throttles(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "switchyard_broker_throttle_seconds",
            "Delay by the broker's quota of the newest throttled answer; 0 when there was none lately",
            labels=("cluster", "request"),
        )
        now_s = time.monotonic()
        for cluster in self.runtime.clusters.started():
            found = {one.request: one.delay_ms / 1000 for one in cluster.client.throttle.throttles(now_s)}
            for request in REQUESTS:
                gauge.add_metric((cluster.name, request), found.get(request, 0))
        yield gauge

    def _of_the_worker(self) -> Iterator[Metric]:
        runtime, budget = self.runtime, self.runtime.clusters.budget
        holds = runtime.lease.holds(time.monotonic())
        ahead_s = runtime.heartbeats.host_clock.ahead_s
        stops = runtime.loop_watch.stops(time.monotonic())
        for name, text, value in (
            ("buffered_bytes", "Fetched bytes in memory", budget.used_bytes),
            ("buffer_limit_bytes", "The memory budget for fetched bytes", budget.capacity_bytes),
            ("leader_term", "The leader's term that this worker has read", runtime.control.view.term),
            ("leads", "1 on the leader", runtime.leader.leads),
            ("lease_holds", "1 while this worker may act", holds),
            ("clock_ahead_seconds", "The host's clock minus the brokers'", ahead_s),
            (
                "cpu_throttled_ratio",
                "Share of the last minute whose periods used up a CPU quota of this worker's container",
                runtime.container.cpu_throttled,
            ),
            ("data_dir_free_bytes", "Free space on the disk of the worker's tables", runtime.disk.free_bytes),
            (
                "unwritten_rows",
                "Rows of tables that the disk did not take, in memory",
                sum(one.rows for one in runtime.disk.unwritten),
            ),
            (
                "loop_still_seconds",
                "Time of the last minute in which the event loop stood still",
                stops.still_s,
            ),
            (
                "loop_longest_stop_seconds",
                "The longest stop of the event loop in the last minute",
                stops.longest_s,
            ),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"switchyard_{name}", text, value=value)


def _of_the_region(runtime: Runtime) -> Iterator[Metric]:
    view = runtime.control.view
    keeper, live = runtime.failover.keeper, runtime.members.live(time.monotonic())
    jobs = JobsOverview(view, live, now_ms(), keeper.own, returned=keeper.has_just_returned())
    sizing = SizeView(jobs, runtime.catalog.workloads.workload)
    fleets = _Family("switchyard", ("group",), _FLEET_GAUGES)
    workloads = _Family("switchyard", ("workload",), _SIZE_GAUGES)
    for fleet in sizing.fleets():
        fleets.add(
            (fleet.group,),
            {
                "recommended_workers": fleet.workers.value,
                "fleet_workers": fleet.workers.now,
                "fleet_load_ratio": fleet.load_ratio,
            },
        )
    for key in sizing.keys:
        size = sizing.workload(view.workloads[key])
        workloads.add(
            (key,),
            {
                "recommended_partitions": size.partitions.value,
                "recommended_in_flight_messages": size.in_flight.value,
                "recommended_workload_workers": size.workers.value,
            },
        )
    yield from fleets
    yield from workloads


def _of_vanished(runtime: Runtime) -> Iterator[Metric]:
    gauge = GaugeMetricFamily(
        "switchyard_topic_vanished",
        "1 for a topic of a definition that no longer exists, or may not be described",
        labels=("kind", "name", "cluster", "topic", "state"),
    )
    for (kind, name, cluster, topic), state in runtime.catalog.vanished_topics.of.values():
        gauge.add_metric((kind, name, cluster, topic, state), 1)
    yield gauge


def _of_any_job(status: JobStatus) -> tuple[tuple[str, ...], dict[str, float | None]]:
    """Labels and values of a job of any kind."""
    job = JobId.parse(status.job)
    return (job.name, job.topic, str(job.partition)), {
        "lag_messages": lag_messages(status),
        "lag_seconds": lag_s(status, now_ms()),
        "unfinished_messages": status.unfinished,
        "fetched_bytes": status.buffered_bytes,
        "paused": status.state == "paused",
    }


def _of_jobs(jobs: Sequence[JobStatus]) -> Iterator[Metric]:
    gauges = _Family("switchyard", JOB, _JOB_GAUGES)
    counters = {
        name: CounterMetricFamily(f"switchyard_{name}_messages", text, labels=JOB)
        for name, text in _JOB_COUNTERS.items()
    }
    for status in jobs:
        labels, values = _of_any_job(status)
        values |= {
            "in_flight_messages": status.in_flight,
            "ready_messages": status.ready,
            "behind_messages": status.behind,
            "postponed_messages": status.postponed,
            "backoff_messages": status.backoff,
            "outgoing_messages": status.outgoing,
            "tracker_used_messages": status.used,
            "tracker_capacity_messages": status.capacity,
            "catching_up": status.state == "catching-up",
            "emptying": status.state == "emptying",
        }
        gauges.add(labels, values)
        for name, counter in counters.items():
            counter.add_metric(labels, getattr(status, name))
    yield from gauges
    yield from counters.values()


def _of_routes(jobs: Sequence[JobStatus]) -> Iterator[Metric]:
    gauges = _Family("switchyard_route", ROUTE_JOB, _ROUTE_GAUGES)
    counters = {
        name: CounterMetricFamily(f"switchyard_route_{name}", text, labels=ROUTE_JOB)
        for name, text in _ROUTE_COUNTERS.items()
    }
    for status in jobs:
        labels, values = _of_any_job(status)
        copying = status.copying or NOTHING
        start, end = copying.stuck or (0, 0)
        values |= {"halted": bool(copying.halted), "stuck_messages": end - start, "limited": copying.limited}
        if copying.barrier is not None:
            values["barrier_seconds"] = max(0.0, (now_ms() - copying.barrier[2]) / 1000)
        gauges.add(labels, values)
        counts = (
            status.delivered, copying.encoded, copying.left_out, copying.lost,
            copying.compared, copying.differing, copying.uncompared, copying.begun_anew,
            copying.destination_losses,
        )  # fmt: skip
        for counter, count in zip(counters.values(), counts, strict=True):
            counter.add_metric(labels, count)
    yield from gauges
    yield from counters.values()


def _of_workloads(workloads: Sequence[WorkloadStatus], jobs: Sequence[JobStatus]) -> Iterator[Metric]:
    gauges = _Family("switchyard", ("workload",), _WORKLOAD_GAUGES)
    open_ = GaugeMetricFamily(
        "switchyard_breaker_open", "1 while one of its circuit breakers is not closed", labels=("workload",)
    )
    bounds = GaugeMetricFamily(
        "switchyard_bound",
        "1 for the bound that holds the workload back on this worker",
        labels=("workload", "by"),
    )
    stashed = CounterMetricFamily(
        "switchyard_head_of_line_stashed_messages", "Messages moved away from the head of their partition",
        labels=("workload",),
    )  # fmt: skip
    withheld = CounterMetricFamily(
        "switchyard_withheld_failures", "Failures that spec.dlq did not let dead-letter their message",
        labels=("workload", "code"),
    )  # fmt: skip
    of: dict[str, list[JobStatus]] = {}
    for job in jobs:
        of.setdefault(job.job.split(":", 2)[1], []).append(job)
    for workload in workloads:
        key, own = workload.key, of.get(workload.key, [])
        states = (workload.breaker, *(target.breaker for target in workload.targets))
        open_.add_metric((key,), any(state != "closed" for state in states))
        stashed.add_metric((key,), workload.stashed)
        for code, count in workload.withheld_by.items():
            withheld.add_metric((key, code), count)
        pace, _ = slowest([("", workload, own)], 0, len(own), now_ms())
        bounds.add_metric((key, str(pace.bound)), 1)
        values: dict[str, float | None] = {
            "rate_limit_messages_per_second": workload.rate_messages or None,
            "rate_limit_bytes_per_second": workload.rate_bytes or None,
            "head_candidates": len(workload.heads) + workload.more_heads,
            "withheld_messages": workload.withheld,
            "dead_letters_allowed": None if workload.letters < 0 else workload.letters,
        }
        gauges.add((key,), values)
    yield from gauges
    yield from (open_, bounds, stashed, withheld)


def _of_targets(workloads: Sequence[WorkloadStatus]) -> Iterator[Metric]:
    gauges = _Family("switchyard_receiver", TARGET, _TARGET_GAUGES)
    states = GaugeMetricFamily(
        "switchyard_receiver_breaker_state",
        "1 for the breaker's state",
        labels=(*TARGET, "state"),
    )
    for workload in workloads:
        for target in workload.targets:
            labels = (workload.key, target.address)
            gauges.add(labels, _target_values(target))
            for state in BREAKER_ORDER:
                states.add_metric((*labels, state), target.breaker == state)
    yield from gauges
    yield states
    yield from _of_endpoints(workloads)


def _of_endpoints(workloads: Sequence[WorkloadStatus]) -> Iterator[Metric]:
    gauges = _Family("switchyard_endpoint", ENDPOINT, _ENDPOINT_GAUGES)
    states = GaugeMetricFamily("switchyard_endpoint_state", "1 for its state", labels=(*ENDPOINT, "state"))
    for workload in workloads:
        for target in workload.targets:
            for endpoint in target.endpoints:
                labels = (workload.key, target.address, endpoint.name)
                gauges.add(labels, _endpoint_values(endpoint, target.answered))
                for state in ENDPOINT_STATES:
                    states.add_metric((*labels, state), endpoint.state == state)
    yield from gauges
    yield states


def _endpoint_values(endpoint: EndpointStatus, answered: int) -> dict[str, float | None]:
    return {
        "in_flight_messages": endpoint.in_flight,
        "limit_messages": endpoint.limit,
        "latency_seconds": None if endpoint.latency_ms < 0 else endpoint.latency_ms / 1000,
        "failed_ratio": endpoint.failed / endpoint.calls if endpoint.calls else None,
        "share_ratio": endpoint.calls / answered if answered else None,
        "state_seconds": endpoint.for_s,
    }


def _target_values(target: TargetStatus) -> dict[str, float | None]:
    return {
        "limit_messages": target.limit,
        "allowed_messages": target.limit if target.allowed < 0 else target.allowed,
        "limit_ceiling_messages": target.ceiling or None,
        "in_flight_messages": target.in_flight,
        "held_messages": target.held,
        "credit_messages": None if target.credit < 0 else target.credit,
        "timeout_seconds": target.timeout_ms / 1000,
        "serving": SERVING.get(target.health),
        "failed_ratio": target.failed / target.calls if target.calls else None,
    }


def exposition(runtime: Runtime) -> tuple[bytes, str]:
    """The text and its content type."""
    registry = CollectorRegistry()
    registry.register(_Collector(runtime))
    return generate_latest(registry), CONTENT_TYPE_LATEST
