"""The offset sync of one group: its commits, and the reasons to commit nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.structs import TopicPartition

from app.controllog import codec
from app.controllog.events import WorkloadDeleted, WorkloadPut
from app.controllog.topics import ControlTopics
from app.kernel.clock import now_ms
from app.kernel.fencing import LogId
from app.offsets.model.group_sync import BEYOND_MAPPED, QUIET_GROUP_S, stamped
from app.offsets.model.translation import NOTHING_HERE, CopiedPartition
from app.offsets.sync import group_syncer as sync
from app.offsets.sync.group_syncer import GroupOutcome, OffsetMapViews
from app.offsets.sync.mapper import NotJoined, OffsetMapper
from app.offsets.sync.time_lookup import at_time, copies_of
from app.replicate.model.route import Route
from tests.offsets.clusters import HERE, THERE, a_line, a_route
from tests.offsets.group_case import EVERY, GroupCase


async def test_a_group_moves_forward_and_back_only_after_it_went_back_itself(
    case: GroupCase,
) -> None:
    mapper = case.syncer().mapper
    await mapper.read(30.0)
    with pytest.raises(NotJoined, match="no offset sync relates topic"):
        await mapper.join(HERE, case.topic, THERE)
    await case.map(*EVERY)
    await case.at(55, 100)
    foreseen = await case.sync(execute=False)
    assert (foreseen.state, await case.there()) == ("synced", {})
    assert [row.answer.reread_messages for row in foreseen.rows] == [5, 0]
    assert (await case.sync()).state == "synced"
    assert await case.there() == {0: 60, 1: 110}
    assert (await case.sync()).state == "unchanged"
    await case.map(*EVERY[:3])  # the map knows less
    refused = await case.sync()
    assert (refused.state, refused.why, await case.there()) == ("refused", BEYOND_MAPPED, {0: 60, 1: 110})
    await case.map(*EVERY)
    await case.at(20, 100)  # an operator reset it
    assert (await case.sync()).state == "synced"
    assert await case.there() == {0: 30, 1: 110}
    await case.at(90, 100, cluster=THERE)  # the group was consumed there meanwhile
    await case.at(5, 100)
    assert (await case.sync()).rows[0].decision.why == BEYOND_MAPPED
    assert (await case.there())[0] == 90


async def test_a_group_consumed_in_the_destination_is_left_alone(case: GroupCase) -> None:
    await case.map(*EVERY)
    await case.at(50, 50)
    case.busy[case.group] = "workload g/t consumes it there"
    assert ((await case.sync()).state, await case.there()) == ("live", {})
    case.busy.clear()
    await case.sync()
    async with AIOKafkaConsumer(
        case.topic, bootstrap_servers=case.regions.bootstraps[THERE], group_id=case.group, client_id="reader",
        enable_auto_commit=False,
    ) as consumer:  # fmt: skip
        async with asyncio.timeout(120):
            await consumer.getone()
            await case.at(70, 70)
            live = await case.sync()
            assert (live.state, live.why) == ("live", "the group has 1 member (reader) there")
            # One that joins between the look and the commit: the broker itself takes none.
            made = await case.syncer()._commit(
                GroupOutcome(case.group, "synced", 0, "", live.rows), await case.regions.clusters.get(THERE)
            )
            assert made.state == "live"
            assert "has live members" in made.why
            assert await case.there() == {0: 60, 1: 60}
    assert (await case.sync()).state == "synced"
    assert await case.there() == {0: 80, 1: 80}


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_failed_commit_is_not_repeated_once_the_group_is_consumed(
    case: GroupCase, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "COMMIT_TIMEOUT_S", 5.0 if not hangs else 2.0)
    monkeypatch.setattr(sync, "COMMIT_RETRY_INTERVAL_S", 0.0)
    await case.map(*EVERY)
    await case.at(50, 50)
    client = (await case.regions.clusters.get(THERE)).client
    real, tries, comes_here = client.send, 0, False

    async def send(node: int, request: Any, group: Any = 0) -> Any:
        nonlocal tries
        if not isinstance(request, OffsetCommitRequest):
            return await real(node, request, group)
        tries += 1
        if comes_here:
            case.busy[case.group] = "workload g/t consumes it there"
        elif tries > 1:
            return await real(node, request, group)
        if hangs:
            await asyncio.Event().wait()
        raise KafkaConnectionError("it is away")

    monkeypatch.setattr(client, "send", send)
    comes_here = True
    assert ((await case.sync()).state, tries) == ("live", 1)
    case.busy.clear()
    tries, comes_here = 0, False
    assert ((await case.sync()).state, tries) == ("synced", 2), "otherwise it is tried again"


async def test_a_client_that_commits_without_being_a_member_is_left_alone_until_it_is_at_rest(
    case: GroupCase,
) -> None:
    now_s = [0.0]
    syncer = case.syncer(clock=lambda: now_s[0])
    await case.map(*EVERY)
    await syncer.mapper.read(30.0)
    there = await case.committer(THERE)

    async def sync(after_s: float, *, execute: bool = True) -> GroupOutcome:
        now_s[0] += after_s
        return await syncer.sync(case.group, HERE, THERE, syncer.views(HERE, THERE), execute=execute)

    async def commits(at: int, metadata: str) -> None:
        await there.commit(case.group, {(case.topic, 0): at}, {(case.topic, 0): metadata})

    await case.at(50, 50)
    await commits(20, stamped("west-1", 1))  # a worker of a region of which nothing is known here
    live = await sync(0)
    assert (live.state, await case.there()) == ("live", {0: 20})
    assert f"Switchyard worker west-1 committed {case.topic}-0 there" in live.why
    await commits(20, stamped("west-1", 2))  # it has nothing to do
    assert (await sync(QUIET_GROUP_S)).state == "live"
    assert (await sync(QUIET_GROUP_S / 2)).state == "live"
    await commits(21, "")  # a consumer that assigns partitions to itself
    assert (await sync(QUIET_GROUP_S)).state == "live"
    assert await case.there() == {0: 21}
    assert (await sync(QUIET_GROUP_S)).state == "synced", "no client moves it any more"
    assert await case.there() == {0: 60, 1: 60}
    await case.at(70, 70)
    assert (await sync(1)).state == "synced", "own commits are no sign of another client"

    # Another client commits between the two readings of the positions.
    await case.at(90, 90)
    views, join = syncer.views(HERE, THERE), OffsetMapViews.join

    async def meanwhile(self: OffsetMapViews, topic: str, to_topic: str | None) -> Any:
        await commits(75, "")
        return await join(self, topic, to_topic)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OffsetMapViews, "join", meanwhile)
        made = await syncer.sync(case.group, HERE, THERE, views)
    assert (made.state, await case.there()) == ("live", {0: 75, 1: 80})


async def test_a_group_of_another_regions_workload_is_left_alone_even_while_it_sleeps(
    case: GroupCase,
) -> None:
    rig, active = case.regions, [case.regions.own]
    syncer = case.syncer(is_active=lambda _, region: region in active)
    log = ControlTopics(rig.other).control.name
    key = f"{case.group}/{case.topic}"

    async def defines(cluster: str, topic: str = case.topic, **spec: Any) -> None:
        put = WorkloadPut(
            at_ms=1, key=f"{case.group}/{topic}", etag="e", actor="me",
            definition={"metadata": {"group": case.group, "topic": topic, "cluster": cluster}, "spec": spec},
        )  # fmt: skip
        await rig.send(HERE, log, {f"workload/{put.key}".encode(): codec.encode(put)})

    async def sync(only: str | None = None) -> GroupOutcome:
        await syncer.mapper.read(30.0)
        views = syncer.views(HERE, THERE)
        return await syncer.sync(case.group, HERE, THERE, views, only=only, execute=False)

    await rig.make(HERE, log, 1)  # the copy of the other region's control log
    await case.map(*EVERY)
    await case.at(50, 50)
    await rig.send(HERE, log, {f"workload/{case.group}/broken".encode(): b"{"})
    await defines(THERE)
    live = await sync()
    assert (live.state, live.why) == ("live", f"workload {key} of region {rig.other} consumes it there")
    await defines(HERE)
    assert (await sync()).state == "synced", "it consumes the cluster that the group is mapped from"
    await defines(HERE, mode="active-active")
    assert (await sync()).state == "live", "with a mode each region reads its own"
    await defines(HERE, mode="active-passive")
    assert (await sync()).state == "synced", "the other region is passive"
    active.append(rig.other)
    assert (await sync()).state == "live"
    gone = WorkloadDeleted(at_ms=1, key=key, actor="me")
    await rig.send(HERE, log, {f"workload/{key}".encode(): codec.encode(gone)})
    assert (await sync()).state == "synced"
    await defines(THERE, "another-topic")
    assert (await sync()).state == "live"
    assert (await sync(case.topic)).state == "synced", "no workload consumes this topic there"


async def test_between_aggregates_the_source_furthest_behind_decides(
    case: GroupCase,
) -> None:
    rig, topic = case.regions, case.topic
    logs = {cluster: await rig.log_id(cluster, topic) for cluster in (HERE, THERE)}

    async def copied(source: str, cluster: str, *barriers: tuple[int, int]) -> None:
        line = a_line(LogId(source, "s"), logs[cluster], topic, 0, *barriers)
        await rig.send(HERE, rig.topic(rig.own), {f"{source}-{cluster}/orders/0".encode(): line})

    await copied("east", HERE, (0, 0), (25, 50), (50, 100))
    await copied("east", THERE, (0, 10), (20, 30), (50, 110))
    await case.at(77)
    (first,) = [row for row in (await case.sync()).rows if row.answer.partition == 0]
    assert (first.answer.next_offset, first.answer.reread_messages) == (30, 30)
    await copied("west", HERE, (0, 0), (3, 60))
    await copied("west", THERE, (0, 10), (2, 12), (4, 90))
    made = await case.sync()
    (row,) = [row for row in made.rows if row.answer.partition == 0]
    assert (made.state, row.answer.next_offset) == ("refused", 12), (
        "the position is further than the mapped one, and stays"
    )
    assert row.answer.least == CopiedPartition("west", "orders", 0)
    assert {reading.source.cluster_id: reading.x for reading in row.answer.sources} == {
        "east": 30,
        "west": 12,
    }
    assert [row.answer.why for row in made.rows if row.answer.partition == 1] == [NOTHING_HERE]
    assert (await case.there())[0] == 30


async def test_a_job_without_a_line_is_an_unknown_source(case: GroupCase) -> None:
    await case.map(*EVERY)
    route = a_route("other", HERE, THERE, "more", rename={"names": {"more": case.topic}})
    mapper = OffsetMapper(
        case.regions.tables, case.regions.clusters, lambda: {"other": route},
        lambda: ["replicate:other:more:0", "dispatch:g/t:t:0", "replicate:r:more:1"],
    )  # fmt: skip
    await mapper.read(30.0)
    (joined,) = await mapper.join(HERE, case.topic, THERE)
    assert [(place.topic, partition) for place, partition in joined.unknown] == [("more", 0)]
    assert joined.resume({0: 50, 1: 50}).next_offsets == {0: 60, 1: 60}, "their positions were never read"


async def test_a_time_is_found_in_every_cluster_and_times_outside_the_log_are_noted(
    case: GroupCase,
) -> None:
    topic, rig = f"{case.topic}-t", case.regions
    await rig.make(HERE, topic)
    base = now_ms() - 60_000
    for ago_ms in (1_000, 2_000, 3_000):
        await rig.values(HERE, topic, 0, b"v", timestamp_ms=base + ago_ms)
    client = await rig.client(HERE)
    found = await at_time(client, topic, base + 1_500)
    assert found is not None
    assert [(one.next_offset, one.timestamp_ms, one.note) for one in found] == [
        (1, base + 2_000, ""),
        (0, None, "beyond-end"),
    ]
    assert [one.next_offset for one in await at_time(client, topic, base) or ()] == [0, 0]
    admin = AIOKafkaAdminClient(**client.spec.aiokafka_options())
    await admin.start()
    await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=2)})
    await admin.close()
    before, beyond = [await at_time(client, topic, base + at) for at in (1_500, 9_000)]
    assert before is not None
    assert beyond is not None
    assert (before[0].next_offset, before[0].note, before[0].log_start) == (2, "before-start", 2)
    assert (beyond[0].next_offset, beyond[0].note) == (3, "beyond-end")
    assert await at_time(client, f"{topic}-none", 0) is None


def test_copies_are_found_under_the_names_that_routes_give_them() -> None:
    route = a_route("r", HERE, THERE, "orders", rename="{cluster}.{topic}").route()
    assert isinstance(route, Route)
    assert copies_of("orders", [HERE, THERE], {"r": route}) == {
        HERE: {"orders"}, THERE: {"orders", "here.orders"},
    }  # fmt: skip
