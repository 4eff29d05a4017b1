"""Replicas managed by the job manager, between real brokers; control log and tracker are simulated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from app.controllog.events import ALL, Paused
from app.dev.yard import Yard
from app.kafka.client.cluster import EARLIEST
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.job import JobId, Kind
from app.kernel.ranges import Snapshot
from app.offsets.model.offset_map import after
from app.replicate.definition import RouteDefinition
from app.replicate.destination.handover import ReplicaHandover
from app.replicate.jobs.operator_acts import ReplicaActs
from app.replicate.jobs.start_position import find_replica_start, same_target
from app.replicate.pump.status import copying_status, job_status
from app.worker.jobs.start_position import LineageReset
from app.worker.runtime.operators import OperatorActions
from tests.kafka.conftest import connected, delete_before, write
from tests.kafka.second_broker import delete
from tests.replicate.rig import definition, rows
from tests.worker.runtime.replica_manager import AWAY, ENOUGH_S, HOME, ReplicaManagerRig, replica_manager_rig


@pytest.fixture
async def manager(yard: Yard, topic_name: str) -> AsyncIterator[ReplicaManagerRig]:
    async with replica_manager_rig(yard, topic_name) as made:
        yield made


async def _write(yard: Yard, topic: str, *values: str) -> None:
    await write(yard.bootstrap(HOME), topic, [value.encode() for value in values])


async def _copy(yard: Yard, topic: str) -> list[bytes | None]:
    async with connected(yard.bootstrap(AWAY)) as client:
        return [value for _, _, value, _ in await rows(client, topic)]


async def test_pausing_and_handing_over_a_route_neither_loses_nor_doubles_a_record(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    topic = manager.topic
    manager.put(checkpoint={"every": "200ms"})
    manager.assign()
    await _write(yard, topic, "a", "b")
    pump = await manager.copied(2)
    log_id = pump.target_log
    await manager.until(
        lambda: manager.sender.items and manager.sender.items[-1].barriers[-1].source_end == 2
    )
    assert {(item.route, item.topic, item.target_topic, item.target) for item in manager.sender.items} == {
        ("r", topic, topic, log_id)
    }
    first, last = manager.sender.items[0].barriers[0], manager.sender.items[-1].barriers[-1]
    assert (first.source_end, first.target_end) == (0, 0)
    assert (last.source_end, last.target_end) == (2, 2)

    manager.log.apply(Paused(at_ms=0, key="r", partition=ALL, paused=True, actor="test"))
    await manager.until(lambda: pump.paused)
    await _write(yard, topic, "c")
    await asyncio.sleep(0.3)
    assert await _copy(yard, topic) == [b"a", b"b"]
    manager.log.apply(Paused(at_ms=0, key="r", partition=ALL, paused=False, actor="test"))
    await manager.copied(3)

    manager.assign(release=True)
    await manager.until(lambda: manager.pump is None)
    assert not manager.jobs.kinds.replicate.routes, "the runtime is closed with its last pump"
    await _write(yard, topic, "d")
    manager.assign()
    await manager.copied(4)
    assert await _copy(yard, topic) == [b"a", b"b", b"c", b"d"]
    group = await _committed(manager)
    assert group == 4, "Kafka's own tools see the lag"
    assert manager.incidents == []


async def _committed(manager: ReplicaManagerRig) -> int | None:
    cluster = await manager.jobs._clusters.get(HOME)
    at = (manager.topic, 0)
    async with asyncio.timeout(ENOUGH_S):
        while (found := (await cluster.committer.committed("switchyard-r", [at]))[at]) != 4:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # a round of commits is due
    return found


async def test_new_limits_apply_at_once_and_other_changes_from_the_present_position(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    topic = manager.topic
    manager.put()
    manager.assign()
    await _write(yard, topic, "a")
    pump = await manager.copied(1)
    manager.put(limits={"messages_per_second": 5.0})
    await manager.until(lambda: pump.runtime.messages is not None)
    assert manager.pump is pump
    manager.put(headers={"provenance": True})
    await manager.until(lambda: manager.pump is not None and manager.pump is not pump)
    await _write(yard, topic, "b")
    await manager.copied(2)
    assert await _copy(yard, topic) == [b"a", b"b"]
    assert manager.incidents == []


@pytest.mark.parametrize("how", ["continue", "skip", "reset"])
async def test_a_recreated_source_topic_is_copied_from_its_start_or_halts_as_the_route_says(
    yard: Yard, manager: ReplicaManagerRig, how: str
) -> None:
    topic = manager.topic
    manager.put(onGap="stop")
    manager.assign()
    await _write(yard, topic, "a", "b", "c")
    await manager.copied(3)
    client = (await manager.jobs._clusters.get(HOME)).client
    await delete(client, topic)
    while topic in await client.topics():  # noqa: ASYNC110 - the broker's
        await asyncio.sleep(0.05)
    await ensure_topics(client, [TopicSpec(topic, 1, 1)])
    await _write(yard, topic, "d")
    pump = await manager.halted()
    await _write(yard, topic, "e")
    await asyncio.sleep(0.5)
    assert await _copy(yard, topic) == [b"a", b"b", b"c"]
    assert job_status(pump).state == "halted"
    assert "stops at gaps" in job_status(pump).trouble
    assert not (await manager.jobs._clusters.get(HOME)).fetch._partitions, "nothing is fetched any more"
    assert "route-halted" in {kind for kind, _ in manager.incidents}
    manager.put(onGap="stop", limits={"messages_per_second": 500.0})
    assert await manager.halted() is pump, "the heartbeat does not change it"
    assert f"skip r {topic} 0 3 4" in job_status(pump).trouble
    assert job_status(pump).oldest_ms > 0, "the first record still has an age"
    manager.assign(release=True)
    await manager.until(lambda: manager.pump is None)
    manager.assign()
    pump = await manager.halted()
    assert (pump.stuck, pump.base, pump.lineage) == (((3, 4),), 3, 0), "the next owner sees the same"
    operators = OperatorActions(manager.jobs, manager.log, manager.jobs._clusters)  # type: ignore[arg-type]
    acts = ReplicaActs(operators, manager.jobs.kinds.replicate.pumps)
    if how == "continue":
        manager.put(onGap="continue")
    elif how == "skip":
        assert await acts.pass_over(manager.job, 3, 4, "ann") == ((3, 4),)
        assert manager.pump is not None, "the halt lasts once it is reported"
        assert (manager.pump.lineage, manager.pump.snapshot_version >= 0) == (1, True)
    else:
        await operators.reset(manager.job, EARLIEST, "ann")
    await manager.until(lambda: manager.pump is not None and manager.pump.lineage == 1)
    pump = await manager.copied(2)
    assert await _copy(yard, topic) == [b"a", b"b", b"c", b"d", b"e"]
    assert copying_status(pump).begun_anew == (how != "reset"), "an operator wanted the reset"


async def test_a_route_that_halts_at_a_gap_continues_behind_it_once_an_operator_skips_it(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    topic = manager.topic
    manager.put(onGap="stop")
    manager.assign()
    await _write(yard, topic, "a", "b")
    await manager.copied(2)
    manager.log.apply(Paused(at_ms=0, key="r", partition=ALL, paused=True, actor="test"))
    manager.assign(release=True)
    await manager.until(lambda: manager.pump is None)
    await _write(yard, topic, "c", "d", "e")
    cluster = await manager.jobs._clusters.get(HOME)
    await delete_before(cluster.client, topic, 4)
    manager.log.apply(Paused(at_ms=0, key="r", partition=ALL, paused=False, actor="test"))
    manager.assign()
    pump = await manager.halted()
    assert pump.stuck == ((2, 4),)
    assert pump.finish_by_operator(2, 4)
    await manager.copied(5)
    assert manager.pump is not pump
    assert await _copy(yard, topic) == [b"a", b"b", b"e"]
    for _ in range(2):  # with any owner
        status = copying_status(await manager.copied(5))
        assert (status.lost, status.lost_ms > 0) == (2, True)
        manager.assign(release=True)
        await manager.until(lambda: manager.pump is None)
        manager.assign()
    assert [kind for kind, _ in manager.incidents] == ["route-halted", "replica-skipped"]


async def test_a_replica_in_a_new_lineage_copies_again_and_its_offset_syncs_are_of_another_line(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    """As after a reset, or after a truncation of the source: positions are not comparable."""
    topic = manager.topic
    manager.put(checkpoint={"every": "200ms"})
    manager.assign()
    await _write(yard, topic, "a", "b", "c")
    pump = await manager.copied(3)
    reset = LineageReset(pump.epoch, 1, 1, "the log was truncated", 7)
    manager.jobs.restart_in_new_lineage(pump, reset)
    await manager.until(lambda: manager.pump is not None and manager.pump.lineage == 1)
    await manager.copied(3)
    assert await _copy(yard, topic) == [b"a", b"b", b"c", b"b", b"c"]
    items = manager.sender.items
    await manager.until(lambda: items and items[-1].barriers[-1].target_end == 5)
    line = None
    for item in items:
        line = after(line, item) or line
    assert line is not None
    assert (line.lineage, line.source_epoch) == (1, 7)
    assert [(one.source_end, one.target_end) for one in line.barriers][:1] == [(1, 3)], "the genesis"
    manager.assign(release=True)
    await manager.until(lambda: manager.pump is None)
    await _write(yard, topic, "d")
    manager.assign()
    pump = await manager.copied(4)
    assert (pump.lineage, pump.session.source_epoch) == (1, 7), "the next owner knows the lineage"
    assert copying_status(pump).begun_anew == 1
    assert await _copy(yard, topic) == [b"a", b"b", b"c", b"b", b"c", b"d"]


async def test_a_fault_in_a_replica_begins_its_job_again_by_itself(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    topic = manager.topic
    manager.put()
    manager.assign()
    await _write(yard, topic, "a")
    pump = await manager.copied(1)
    pump.lose("a fault")
    await _write(yard, topic, "b")
    await manager.copied(2)
    assert manager.pump is not pump
    assert await _copy(yard, topic) == [b"a", b"b"]
    assert [kind for kind, _ in manager.incidents] == ["replica-begins-again"]


# -- where it begins -------------------------------------------------------------------------------


class Place:
    """A source topic, and the tracker's state of it."""

    def __init__(self, manager: ReplicaManagerRig) -> None:
        self._manager = manager

    async def begin(
        self, base: int | None = None, *, start: str = "earliest", on_gap: str = "continue",
        recorded: Callable[[str], int | None] | None = None, reset: LineageReset | None = None, **answer: Any,
    ) -> Any:  # fmt: skip
        topic = self._manager.topic
        cluster = await self._manager.jobs._clusters.get(HOME)
        given = TakeoverAnswer(
            job="j", epoch=1, worker="me", nonce="n", granted=True, known_epoch=1,
            snapshot=b"" if base is None else Snapshot(base).to_bytes(),
        )  # fmt: skip
        route: RouteDefinition = definition(HOME, AWAY, topic, start=start, onGap=on_gap)
        job, given = JobId(Kind.REPLICATE, "r", topic, 0), msgspec.structs.replace(given, **answer)
        target = (await self._manager.jobs._clusters.get(AWAY)).client
        return await find_replica_start(
            job, route, cluster, given, recorded=recorded, reset=reset, report_incident=lambda *_: None,
            continues=await same_target(job, route, target, given),
        )  # fmt: skip


async def test_a_replica_begins_at_its_position_and_never_by_chance_at_the_end(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    place = Place(manager)
    await _write(yard, manager.topic, "a", "b", "c", "d")
    first = await place.begin()
    assert (first.snapshot.base, first.is_first, first.known) == (0, True, False)
    ends = {first.log.topic_id: 3}.get
    assert (await place.begin(start="latest", recorded=ends)).snapshot.base == 3
    assert (await place.begin(start="latest", recorded={}.get)).snapshot.base == 0, "it was found later"
    with pytest.raises(LookupError, match="not recorded yet"):
        await place.begin(start="latest")
    again = await place.begin(2, start="latest", recorded=ends, log=first.log, note=b"n")
    assert (again.snapshot.base, again.known, again.is_first) == (2, True, False)
    cluster = await manager.jobs._clusters.get(HOME)
    await cluster.committer.commit("switchyard-r", {(manager.topic, 0): 1})
    lost = await place.begin()
    assert (lost.snapshot.base, lost.is_first) == (1, False)
    another = LogId(first.log.cluster_id, "AAAAAAAAAAAAAAAAAAAAAA")
    restarted = await place.begin(3, log=another, note=b"n")
    assert (restarted.snapshot.base, restarted.lineage, restarted.is_first) == (0, 1, True)
    halted = await place.begin(3, log=another, on_gap="stop")
    assert (halted.snapshot.base, halted.log, halted.known) == (3, another, True), "no position is given up"
    of = ReplicaHandover(first.log, 2, 1, 0, 0, source="another", target=f"{AWAY}/{manager.topic}").to_bytes()
    read = await place.begin(2, start="latest", recorded=ends, log=another, note=of, on_gap="stop")
    assert (read.snapshot.base, read.lineage, read.is_first) == (3, 1, True), "as spec.start says"
    assert (halted.gap.start, halted.gap.end, halted.gap.begun_anew) == (3, 0, True)


async def test_a_renamed_cluster_copies_nothing_again(yard: Yard, manager: ReplicaManagerRig) -> None:
    place = Place(manager)
    await _write(yard, manager.topic, "a", "b", "c")
    source = (await place.begin()).log
    target = (await manager.jobs._clusters.get(AWAY)).client
    there = LogId(await target.cluster_id(), (await target.topic_ids([manager.topic]))[manager.topic])
    old = ReplicaHandover(there, 2, 1, 0, 0, source="old-home", target=f"old-away/{manager.topic}")
    renamed = await place.begin(2, log=source, note=old.to_bytes())
    assert (renamed.snapshot.base, renamed.lineage, renamed.is_first) == (2, 0, False)
    for wrong in (
        msgspec.structs.replace(old, log=LogId("another", there.topic_id)),
        msgspec.structs.replace(old, log=LogId(there.cluster_id, "AAAAAAAAAAAAAAAAAAAAAA")),
        msgspec.structs.replace(old, log=LogId()),
        msgspec.structs.replace(old, target=f"old-away/{manager.topic}.v1"),
    ):
        restarted = await place.begin(2, log=source, note=wrong.to_bytes())
        assert (restarted.snapshot.base, restarted.lineage, restarted.is_first) == (0, 1, True)
    another = await place.begin(2, log=LogId("another", source.topic_id), note=old.to_bytes())
    assert (another.snapshot.base, another.is_first) == (0, True)
