"""Rehearses a failover with shadow groups, and changes nothing else.

    the plan's positions --commit--> switchyard-drill-<ms>-<id>-<group> --read back--> the first record there

Rules
1. A shadow group has a name of its own, which ends in the workload's group, so no consumer uses it. The drill
   deletes it, also after an error. If the worker is killed meanwhile, a later drill deletes the group by the
   time in its name: a shadow group is of use for seconds only.
2. The drill discards the records that it reads. No receiver gets them.
3. The result has the plan's checks and unknown parts too, so it says what would block the failover itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from app.controllog.roles import ACTIVE_PASSIVE
from app.failover.plan.document import Plan, PlannedPartition, PlannedWorkload, all_checks, blocked
from app.failover.plan.ports import PlanPorts
from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.client.consumer_shutdown import stop_consumer
from app.kafka.client.group_deletion import delete_group
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonObject

if TYPE_CHECKING:
    from app.dispatch.definition import Workload
    from app.kafka.data_clusters import DataCluster

log = structlog.get_logger(__name__)

FIRST_RECORD_TIMEOUT_S = 10.0  # for all partitions of a workload
CONSUMER_STOP_TIMEOUT_S = 5.0
DRILL_TRIES = 3
PREFIX = "switchyard-drill-"
LEFTOVER_MS = 600_000  # far above the life of a shadow group, and the difference of clocks

ReportProgress = Callable[[JsonObject], None]


class DrilledPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one partition.

    Attributes:
        committed: The position, read back from the shadow group; None: the plan has none.
        offset: The offset of the first record from there on; None: there is none yet, or `error` says why.
        took_ms: From the start of the consumer to the record's arrival.
        again, lag: As planned.
    """

    workload: str
    topic: str
    partition: int
    committed: int | None
    offset: int | None
    took_ms: float | None
    again: int | None
    lag: int | None
    error: str = ""


class Drill:
    """Rehearses one plan. `forced`: the rehearsed failover is a forced one."""

    def __init__(self, ports: PlanPorts, name: str, plan: Plan, *, forced: bool = False) -> None:
        self._ports = ports
        self._name = name
        self._plan = plan
        self._forced = forced
        self._results: list[DrilledPartition] = []
        self._swept: set[str] = set()

    async def run(self, report_progress: ReportProgress) -> JsonObject:
        """Rehearses one workload after the other; returns the last progress."""
        report_progress(self._progress())
        for planned in self._plan.workloads:
            workload = self._ports.catalog.workloads.workload(planned.workload)
            if workload is None or planned.mode != ACTIVE_PASSIVE:
                continue  # a workload that runs here already keeps its positions
            try:
                self._results += await self._workload(workload, planned)
            except Exception as error:  # noqa: BLE001 - an error is the drill's result
                why = str(error) or repr(error)
                self._results += [_result(workload, row, error=why) for row in planned.partitions]
            report_progress(self._progress())
        return self._progress()

    def _progress(self) -> JsonObject:
        rows = [msgspec.to_builtins(one) for one in self._results]
        failed = sum(bool(one.error) for one in self._results)
        rehearsed = [one for one in self._plan.workloads if one.mode == ACTIVE_PASSIVE]
        checks = all_checks(self._plan)
        unknown = [{"workload": one.workload, "why": one.why} for one in self._plan.workloads if one.why]
        return {
            "looked_at": len(rows), "of": sum(len(one.partitions) for one in rehearsed), "failed": failed,
            "partitions": rows, "workloads": len(rehearsed), "unknown": unknown,
            "blocked": len(blocked((check for _, check in checks), forced=self._forced)),
            "checks": [{"of": of or "regions", **msgspec.to_builtins(check)} for of, check in checks],
        }  # fmt: skip

    async def _workload(self, workload: Workload, planned: PlannedWorkload) -> list[DrilledPartition]:
        rows = {row.partition: row for row in planned.partitions}
        topic, name = workload.metadata.topic, workload.metadata.cluster
        cluster = await self._ports.clusters.get(name)
        await self._sweep(cluster)
        group = f"{PREFIX}{now_ms()}-{self._name}-{workload.metadata.group}"[:255]
        wanted = {
            (topic, partition): row.next_offset
            for partition, row in rows.items()
            if row.next_offset is not None
        }
        try:
            refused = await cluster.committer.commit(group, wanted) if wanted else {}
            if refused:
                raise ClusterUnreachable(f"group {group} refused the commit: {next(iter(refused.values()))}")
            back = await cluster.committer.committed(group, list(wanted)) if wanted else {}
            spec = self._ports.clusters.specs[name]
            first = await _first_records(spec.aiokafka_options(), back, rows)
        finally:
            await self._delete(cluster.client, group)
        return [
            _read_partition(workload, row, back.get((topic, row.partition)), first.get(row.partition))
            for row in planned.partitions
        ]

    async def _sweep(self, cluster: DataCluster) -> None:
        """Deletes the shadow groups that earlier drills left in a cluster; once per drill and cluster."""
        if cluster.name in self._swept:
            return
        self._swept.add(cluster.name)
        try:
            listed = await cluster.committer.groups()
        except ClusterUnreachable as error:
            log.warning("cannot list shadow groups of earlier drills", cluster=cluster.name, error=str(error))
            return
        for group in leftovers(listed, now_ms()):
            log.info("deleting a shadow group of an earlier drill", cluster=cluster.name, group=group)
            await self._delete(cluster.client, group)

    async def _delete(self, client: Any, group: str) -> None:
        for left in reversed(range(DRILL_TRIES)):
            try:
                await delete_group(client, group)
            except ClusterUnreachable as error:
                if not left:
                    log.warning("cannot delete the shadow group of a drill", group=group, error=str(error),
                                remedy="kafka-consumer-groups.sh --delete --group")  # fmt: skip
                await asyncio.sleep(0.5)
            else:
                return


def leftovers(groups: Iterable[str], at_ms: int) -> list[str]:
    """The shadow groups of drills that ended long ago."""
    found = []
    for group in groups:
        made_ms = group.removeprefix(PREFIX).partition("-")[0]
        if group.startswith(PREFIX) and made_ms.isdecimal() and int(made_ms) < at_ms - LEFTOVER_MS:
            found.append(group)
    return found


async def _first_records(
    options: ClientOptions,
    back: Mapping[tuple[str, int], int | None],
    rows: Mapping[int, PlannedPartition],
) -> dict[int, tuple[int, float]]:
    """Partition -> its first record's offset, and how long (ms) it took. A silent partition is left out."""
    at = {
        TopicPartition(*place): offset
        for place, offset in back.items()
        if offset is not None and offset < (rows[place[1]].log_end or 0)
    }
    found: dict[int, tuple[int, float]] = {}
    if not at:
        return found
    consumer = AIOKafkaConsumer(enable_auto_commit=False, auto_offset_reset="earliest", **options)
    began_s = time.monotonic()
    try:
        await consumer.start()
        consumer.assign(list(at))
        for partition, offset in at.items():
            consumer.seek(partition, offset)
        left = set(at)
        while left and time.monotonic() - began_s < FIRST_RECORD_TIMEOUT_S:
            for partition, records in (
                await consumer.getmany(*left, timeout_ms=500, max_records=500)
            ).items():
                took_ms = (time.monotonic() - began_s) * 1000
                found[partition.partition] = records[0].offset, round(took_ms, 1)
                left.discard(partition)
    finally:
        async with asyncio.timeout(CONSUMER_STOP_TIMEOUT_S):
            await stop_consumer(consumer)
    return found


def _read_partition(
    workload: Workload, row: PlannedPartition, committed: int | None, first: tuple[int, float] | None
) -> DrilledPartition:
    error = ""
    if committed != row.next_offset:
        error = f"committed {row.next_offset}, read back {committed}"
    elif committed is not None and first is None and committed < (row.log_end or 0):
        end = row.log_end
        error = (
            f"no record came from {committed} on within {FIRST_RECORD_TIMEOUT_S:.0f} s, though the "
            f"log ends at {end}"
        )
    return _result(workload, row, committed, first, error)


def _result(
    workload: Workload,
    row: PlannedPartition,
    committed: int | None = None,
    first: tuple[int, float] | None = None,
    error: str = "",
) -> DrilledPartition:
    offset, took_ms = first or (None, None)
    return DrilledPartition(
        workload=workload.key, topic=workload.metadata.topic, partition=row.partition, committed=committed,
        offset=offset, took_ms=took_ms, again=row.again, lag=row.lag, error=error,
    )  # fmt: skip
