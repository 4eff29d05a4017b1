"""Operators' actions on a route between real brokers: reset, skip, limits, a dropped topic; cluster ids."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.controllog.events import ALL, OperatorAct, Paused
from app.dev.yard import Yard
from app.kafka.client.cluster import EARLIEST
from app.kafka.client.topic_configs import alter
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.fetch.deliveries import FetchIncident, FetchKey, LogGap
from app.kernel.job import JobId
from app.replicate.jobs.operator_acts import ReplicaActs
from app.replicate.pump.status import STALLED_AFTER_S, check_progress, copying_status
from app.worker.jobs.operator_acts import NotHere, OperationRefused
from app.worker.runtime.operators import OperatorActions
from tests.kafka.conftest import connected, producing, write
from tests.replicate.jobs.test_controller import AWAY, HOME, ReplicaManagerRig, _copy, _write
from tests.replicate.jobs.test_controller import manager as manager  # noqa: PLC0414 - the fixture
from tests.replicate.rig import rows


def operators(manager: ReplicaManagerRig) -> OperatorActions:
    return OperatorActions(manager.jobs, manager.log, manager.jobs._clusters)  # type: ignore[arg-type]


def acts(manager: ReplicaManagerRig) -> ReplicaActs:
    return ReplicaActs(operators(manager), manager.jobs.kinds.replicate.pumps)


def actions(manager: ReplicaManagerRig) -> list[tuple[str, str]]:
    """The operators' actions, with their incidents."""
    return [(act.action, act.detail) for act in manager.log.appended if isinstance(act, OperatorAct)]


async def test_a_reset_copies_again_or_leaves_out_and_lasts(yard: Yard, manager: ReplicaManagerRig) -> None:
    manager.put()
    manager.assign()
    await _write(yard, manager.topic, "a", "b", "c")
    await manager.copied(3)
    identity = JobId.parse(manager.job)
    foreseen = await operators(manager).foresee_reset(identity, EARLIEST)
    assert (foreseen.to, foreseen.note) == (0, "")
    back = await operators(manager).reset(manager.job, 1, "ann")
    assert (back.start, back.to, back.again) == (3, 1, 2)
    await manager.copied(3)
    assert await _copy(yard, manager.topic) == [b"a", b"b", b"c", b"b", b"c"]
    # Skipped offsets are never copied, not even by the next owner.
    pump = manager.pump
    assert pump is not None
    manager.log.apply(Paused(at_ms=0, key="r", partition=ALL, paused=True, actor="test"))
    await manager.until(lambda: pump.paused)
    await _write(yard, manager.topic, "d", "e")
    forth = await operators(manager).reset(manager.job, 4, "ann")
    assert (forth.to, forth.skipped) == (4, 1)
    manager.log.apply(Paused(at_ms=0, key="r", partition=ALL, paused=False, actor="test"))
    manager.assign(release=True)
    await manager.until(lambda: manager.pump is None)
    manager.assign()
    await manager.copied(5)
    assert await _copy(yard, manager.topic) == [b"a", b"b", b"c", b"b", b"c", b"e"]
    assert actions(manager) == [("reset", "3 -> 1, 2 again"), ("reset", "3 -> 4, 1 skipped")]


async def test_only_offsets_that_cannot_be_copied_are_skipped_by_hand(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    client = (await manager.jobs._clusters.get(AWAY)).client
    assert await alter(client, {manager.topic: {"max.message.bytes": "300"}}) == {}
    manager.put()
    manager.assign()
    await _write(yard, manager.topic, "a")
    await _write(yard, manager.topic, "x" * 2_000)
    await _write(yard, manager.topic, "b")
    await manager.until(lambda: manager.pump is not None and manager.pump.stuck)
    assert manager.pump is not None
    assert copying_status(manager.pump).stuck == (1, 2)
    with pytest.raises(OperationRefused, match=r"\[1, 2\) waits"):
        acts(manager).foresee_pass(manager.job, 2, 9)
    skipped, why = acts(manager).foresee_pass(manager.job, 0, 3)
    assert (skipped, "max.message.bytes" in why) == (((1, 2),), True), why
    assert await acts(manager).pass_over(manager.job, 0, 3, "ann", "too large") == ((1, 2),)
    await manager.copied(3)
    assert await _copy(yard, manager.topic) == [b"a", b"b"]
    assert actions(manager) == [("skip", "1: 1 offsets are not copied (too large)")]
    with pytest.raises(OperationRefused, match="needs no skip"):
        acts(manager).foresee_pass(manager.job, 0, 3)


async def test_a_route_that_its_limits_hold_back_is_not_reported_as_stalled(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    manager.put(limits={"messages_per_second": 1.0})
    manager.assign()
    await write(yard.bootstrap(HOME), manager.topic, [b"x" * 40_000] * 6, max_batch_size=16_384)
    await manager.until(lambda: manager.pump is not None and manager.pump.limited)
    assert manager.pump is not None
    pump = manager.pump
    await manager.until(lambda: pump.limited and not pump.in_flight)
    check_progress(pump, time.monotonic() + STALLED_AFTER_S + 1)
    assert manager.incidents == []
    assert copying_status(pump).limited
    manager.put()
    await manager.copied(6)
    assert not copying_status(pump).limited


async def test_another_priority_is_in_force_for_what_is_fetched_already(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    manager.put()
    manager.assign()
    await _write(yard, manager.topic, "a")
    pump = await manager.copied(1)
    cluster = await manager.jobs._clusters.get(HOME)
    part = cluster.fetch._partitions[FetchKey(manager.job, pump.epoch)]
    normal = part.leaves_bytes
    manager.put(limits={"priority": "low"})
    await manager.until(lambda: part.leaves_bytes > normal)
    manager.put(limits={"priority": "high"})
    await manager.until(lambda: part.leaves_bytes == 0)
    assert manager.pump is pump


async def test_dropping_a_topic_ends_only_its_copying_and_without_an_incident(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    manager.put()
    manager.assign()
    await _write(yard, manager.topic, "a")
    pump = await manager.copied(1)
    manager.put(topics=[manager.topic, "another"], exclude=["more"], start="latest")
    await manager.until(lambda: pump.runtime.definition.spec.exclude)
    await _write(yard, manager.topic, "b")
    assert await manager.copied(2) is pump, "other topics are no reason to begin again"
    manager.put(rename="{topic}.copy")
    await manager.until(lambda: manager.pump is not None and manager.pump.target[0].endswith(".copy"))
    assert pump.closed, "the route has another destination"
    manager.put(topics=["another"])
    await manager.until(lambda: manager.pump is None)
    await manager.until(lambda: any("no longer copies" in one.trouble for one in manager.jobs.statuses()))
    await asyncio.sleep(1.5)  # the worker retries a job that cannot start every second
    (status,) = manager.jobs.statuses()
    assert (status.state, "no longer copies" in status.trouble) == ("starting", True)
    assert manager.incidents == []


async def test_provenance_names_clusters_by_id_and_not_by_their_names(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    topic = manager.topic
    ids = {}
    for name in (HOME, AWAY):
        async with connected(yard.bootstrap(name)) as client:
            ids[name] = await client.cluster_id()
    origin = "switchyard-origin"
    manager.put(headers={"provenance": True})
    manager.assign()
    async with producing(yard.bootstrap(HOME)) as producer:
        for been in (f"{ids[AWAY]}/{topic}/0/7", f"{AWAY}/{topic}/0/7"):  # another installation's AWAY
            await producer.send_and_wait(topic, b"v", partition=0, headers=[(origin, been.encode())])
    pump = await manager.copied(2)
    async with connected(yard.bootstrap(AWAY)) as client:
        ((_, _, _, headers),) = await rows(client, topic)
    assert headers[-1] == (origin, f"{ids[HOME]}/{topic}/0/1".encode())
    assert copying_status(pump).left_out == 1
    await manager.until(lambda: "records-left-out" in [kind for kind, _ in manager.incidents])


async def test_a_route_that_stops_at_a_gap_reports_it_beside_other_troubles_until_an_operator_skips_it(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    manager.put(onGap="stop")
    manager.assign()
    await _write(yard, manager.topic, "a", "b", "c")
    pump = await manager.copied(3)
    key = FetchKey(manager.job, pump.epoch)
    cluster = await manager.jobs._clusters.get(HOME)
    cluster.fetch.remove(key)  # as the fetch service stops behind a gap that it reports
    manager.jobs.kinds.replicate.accept(LogGap(key, manager.topic, 0, 3, 5, "deleted by retention"))
    manager.jobs.kinds.replicate.accept(FetchIncident(key, manager.topic, 0, "a broker is away", "start it"))
    (status,) = manager.jobs.statuses()
    assert status.copying is not None
    assert (status.state, status.copying.stuck) == ("halted", (3, 5))
    assert status.trouble == status.copying.halted
    assert "offsets [3, 5) are gone" in status.trouble
    assert "route-halted" in [kind for kind, _ in manager.incidents]
    await _write(yard, manager.topic, "d", "e", "f")
    assert await acts(manager).pass_over(manager.job, 3, 5, "ann") == ((3, 5),)
    await manager.copied(6)
    assert await _copy(yard, manager.topic) == [b"a", b"b", b"c", b"f"]
    (status,) = manager.jobs.statuses()
    assert status.copying is not None
    assert (status.state, status.copying.halted) == ("flowing", "")


async def test_a_route_with_a_new_target_topic_copies_everything_to_it(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    manager.put()
    manager.assign()
    await _write(yard, manager.topic, "a", "b")
    await manager.copied(2)
    other_topic = f"{manager.topic}.copy"
    client = (await manager.jobs._clusters.get(AWAY)).client
    await ensure_topics(client, [TopicSpec(other_topic, 1, 1)])
    manager.put(rename="{topic}.copy")
    await manager.until(lambda: manager.pump is not None and manager.pump.target[0] == other_topic)
    await _write(yard, manager.topic, "c")
    pump = await manager.copied(3)
    assert await _copy(yard, other_topic) == [b"a", b"b", b"c"]
    assert await _copy(yard, manager.topic) == [b"a", b"b"], "the earlier copies stay"
    manager.assign(release=True)
    await manager.until(lambda: manager.pump is None)
    await _write(yard, manager.topic, "d")
    manager.assign()
    assert (await manager.copied(4)).lineage == pump.lineage == 1, "the next owner continues"
    assert await _copy(yard, other_topic) == [b"a", b"b", b"c", b"d"]
    assert manager.incidents == []


async def test_no_replica_stays_drained_if_its_state_cannot_be_saved(
    yard: Yard, manager: ReplicaManagerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.put()
    manager.assign()
    await _write(yard, manager.topic, "a")
    pump = await manager.copied(1)
    await manager.until(lambda: pump.version == pump.snapshot_version)

    async def away(_: object) -> None:
        raise ConnectionError("the control cluster is away")

    with monkeypatch.context() as during:
        during.setattr(manager.jobs.progress_saver._trackers, "send_snapshots", away)
        pump.ledger.version += 1
        with pytest.raises(NotHere, match="and continues"):
            await operators(manager).reset(manager.job, 0, "ann")
        await manager.until(lambda: manager.pump is not None and manager.pump is not pump)
        assert manager.pump is not None
        pump = manager.pump
        pump.ledger.version += 1
        manager.put(headers={"provenance": True})
        await manager.until(lambda: manager.pump is not None and manager.pump is not pump)
    await _write(yard, manager.topic, "b")
    await manager.copied(2)
    assert await _copy(yard, manager.topic) == [b"a", b"b"], "nothing was reset, nothing is lost"


async def test_fetching_that_continues_clears_the_trouble_even_without_new_records(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    manager.put()
    manager.assign()
    await _write(yard, manager.topic, "a")
    pump = await manager.copied(1)
    key = FetchKey(manager.job, pump.epoch)
    part = (await manager.jobs._clusters.get(HOME)).fetch._partitions[key]
    part.incident = "a broker is away"
    manager.jobs.kinds.replicate.accept(FetchIncident(key, manager.topic, 0, "a broker is away", "start it"))
    assert pump.troubles.words == "fetch: a broker is away; start it"
    await manager.until(lambda: manager.jobs.statuses()[0].trouble == "")
    assert part.incident == ""
