"""A broker's quota that slows a route down is shown as what it is: real quotas on real brokers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.controllog.codec import Heartbeat, JobStatus, heartbeat, heartbeat_events
from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterSpec
from app.kernel.broker_throttle import FETCH, PRODUCE
from app.replicate.view import copying_fields, copying_sums
from app.web.console.metrics import _Collector
from tests.kafka.conftest import connected, create, write
from tests.worker.runtime.replica_manager import AWAY, HOME, replica_manager_rig

CONFIGS = "kafka.admin.ConfigCommand"
BYTES_PER_S = 10_000
VALUES = 60  # of 10,000 bytes: far above the quota


@asynccontextmanager
async def quota(yard: Yard, cluster: str, client_id: str, name: str) -> AsyncIterator[None]:
    """Limits a client of a cluster, as an operator does."""
    entity = ["--bootstrap-server", yard.bootstrap(cluster), "--alter", "--entity-type", "clients",
              "--entity-name", client_id]  # fmt: skip

    async def alter(*change: str) -> None:
        tool = await asyncio.create_subprocess_exec(*yard.tool(CONFIGS, *entity, *change))
        assert await tool.wait() == 0

    await alter("--add-config", f"{name}={BYTES_PER_S}")
    try:
        yield
    finally:
        await alter("--delete-config", name)


@pytest.mark.parametrize(
    ("cluster", "request_kind", "name"),
    [(HOME, FETCH, "consumer_byte_rate"), (AWAY, PRODUCE, "producer_byte_rate")],
)
async def test_a_delay_by_a_quota_of_either_cluster_is_shown_with_the_quota_to_raise(
    yard: Yard, topic_name: str, cluster: str, request_kind: str, name: str
) -> None:
    client_id = f"client-{topic_name}"
    specs = {one: ClusterSpec(one, (yard.bootstrap(one),), client_id) for one in (HOME, AWAY)}
    for one in (HOME, AWAY):
        async with connected(yard.bootstrap(one)) as client:
            await create(client, topic_name)
    await write(yard.bootstrap(HOME), topic_name, [os.urandom(10_000) for _ in range(VALUES)])
    async with (
        quota(yard, cluster, client_id, name),
        replica_manager_rig(yard, topic_name, specs) as manager,
    ):
        manager.put()
        manager.assign()

        def throttled() -> JobStatus | None:
            status = manager.jobs.running_statuses().get(manager.job) if manager.pump is not None else None
            return status if status is not None and status.throttles else None

        await manager.until(throttled)
        status = throttled()
        assert status is not None, "it is shown for seconds"
        (event,) = heartbeat_events(
            Heartbeat(worker="w", at_ms=1, started_ms=1, url="", state="running", term=0, jobs=[status])
        )
        (sent,) = heartbeat(event).jobs
        (delay,) = sent.throttles
        assert (delay.cluster, delay.request) == (cluster, request_kind)
        words = (
            f"the broker's quota delays {request_kind} requests to cluster {cluster} by "
            f"{delay.delay_ms:,} ms; raise {name} of Switchyard's user or client id with kafka-configs.sh"
        )
        runtime: Any = SimpleNamespace(clusters=manager.jobs._clusters)
        samples = [sample for family in _Collector(runtime)._of_throttles() for sample in family.samples]
        shown = {(one.labels["cluster"], one.labels["request"]): one.value for one in samples}
        assert shown[cluster, request_kind] >= 0.001
        assert sum(value > 0 for value in shown.values()) == 1
        assert copying_sums([sent, sent])["throttled"] == copying_fields(sent)["throttled"] == [words]
