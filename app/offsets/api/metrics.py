"""Prometheus metrics of offset sync, for routes and for passive workloads; only the leader has values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.kernel.clock import now_ms
from app.offsets.sync.group_syncer import GroupState
from app.worker.runtime.service import Runtime


def of_offset_sync(runtime: Runtime) -> Iterator[Metric]:
    """The states of groups, their lag and the duration of rounds, by route and by passive workload."""
    groups = GaugeMetricFamily(
        "switchyard_offset_sync_groups", "Groups by their state after the last round",
        labels=("route", "state"),
    )  # fmt: skip
    lag = GaugeMetricFamily(
        "switchyard_offset_sync_lag_seconds",
        "Longest time since a group without members at the destination was in step",
        labels=("route",),
    )
    took = GaugeMetricFamily(
        "switchyard_offset_sync_round_seconds", "Duration of the last round", labels=("route",)
    )
    rounds = CounterMetricFamily(
        "switchyard_offset_sync_rounds", "Rounds over all of a route's groups", labels=("route",)
    )
    for name, kept in sorted(runtime.regions.sync.routes.items()) if runtime.regions is not None else ():
        counts = Counter(one.state for one in kept.outcomes.values())
        for state in get_args(GroupState):
            groups.add_metric((name, state), counts[state])
        if (lag_s := kept.lag_s(now_ms())) is not None:
            lag.add_metric((name,), lag_s)
        took.add_metric((name,), kept.took_s)
        rounds.add_metric((name,), kept.rounds)
    yield from (groups, lag, took, rounds)
    yield from _of_passive(runtime)


def _of_passive(runtime: Runtime) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "switchyard_passive_offsets_state", "1 for the offset sync state of a workload that is passive here",
        labels=("workload", "state"),
    )  # fmt: skip
    lag = GaugeMetricFamily(
        "switchyard_passive_offsets_lag_seconds",
        "Time since the offsets of a workload that is passive here were in step with the active region's",
        labels=("workload",),
    )
    for key, status in runtime.regions.sync.passive_statuses().items() if runtime.regions is not None else ():
        state.add_metric((key, status.state), 1)
        if (lag_s := status.lag_s(now_ms())) is not None:
            lag.add_metric((key,), lag_s)
    yield from (state, lag)
