"""Prometheus metrics of roles, from the leader: over all regions, one is active for a workload."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from app.worker.runtime.service import Runtime


def of_roles(runtime: Runtime) -> Iterator[Metric]:
    """The metrics of every workload with a mode whose role is known here."""
    active = GaugeMetricFamily(
        "switchyard_workload_active", "1 where this region acts as the workload's active (or primary) one",
        labels=("workload", "region"),
    )  # fmt: skip
    epoch = GaugeMetricFamily(
        "switchyard_role_epoch", "Epoch of the workload's role, as this region knows it", labels=("workload",)
    )
    keeper, roles = runtime.failover.keeper, runtime.control.view.roles
    returned = keeper.has_just_returned()
    for key in sorted(workload.key for workload in keeper.moded()) if keeper.own else ():
        role = roles.of(key)
        if role is not None:
            active.add_metric((key, keeper.own), roles.is_active(key, keeper.own) and not returned)
            epoch.add_metric((key,), role.epoch)
    yield from (active, epoch)
