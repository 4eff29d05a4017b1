"""Rounds of offset sync for the groups of routes and of passive workloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer

from app.offsets.model.group_sync import stamped
from app.offsets.store import tables
from app.offsets.sync import group_sync_schedule as module
from app.offsets.sync.group_sync_schedule import GroupSyncSchedule, PassiveSyncStatus, PassiveWorkload
from app.offsets.sync.group_syncer import GroupSyncer
from tests.offsets.clusters import HERE, NOWHERE, THERE, a_line, a_route
from tests.offsets.group_case import EVERY, GroupCase, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SYNC_POLL_INTERVAL_S", 0.1)
    monkeypatch.setattr(module, "PASSIVE_SYNC_INTERVAL_S", 0.3)
    monkeypatch.setattr(tables, "REACH_TIMEOUT_S", 1.0)


async def test_a_route_syncs_its_groups_and_a_failing_one_is_reported_once_and_delays_no_other(
    case: GroupCase,
) -> None:
    await case.map(*EVERY)
    names = [f"{case.group}-{name}" for name in ("a", "b", "bad", "other")]
    for name in names:
        await case.at(50, 50, group=name)
    definition = a_route("r", HERE, THERE, case.topic, offsets={
        "groups": [f"{case.group}-.*"], "exclude": [names[3]], "every": "1s",
    })  # fmt: skip
    incidents: list[tuple[str, ...]] = []
    acting = [False]

    def busy(group: str, *_: str | None) -> str:
        if group == names[2]:
            raise ArithmeticError("of no kind that anybody thought of")
        return ""

    syncer = GroupSyncer(case.syncer().mapper, case.regions.clusters, busy)
    routes = {"r": (definition, definition.route())}
    service = GroupSyncSchedule(
        syncer,
        case.regions.clusters,
        lambda: routes,
        lambda: acting[0],
        lambda *words: incidents.append(words[:4]),
    )
    await service.start()
    try:
        await asyncio.sleep(0.5)
        assert not service.routes, "a worker that does not lead syncs nothing"
        acting[0] = True
        await until(lambda: service.routes and service.routes["r"].rounds >= 2)
        assert {name: one.state for name, one in service.routes["r"].outcomes.items()} == {
            names[0]: "unchanged", names[1]: "unchanged", names[2]: "failed",
        }  # fmt: skip
        assert [await case.there(name) for name in names] == [{0: 60, 1: 60}, {0: 60, 1: 60}, {}, {}]
        assert [words[:2] for words in incidents] == [("offset-sync", f"r/{names[2]}")]
        assert (service.routes["r"].lag_s(2**60) or 0) > 0
        await case.at(80, 80, group=names[0])
        rounds = service.routes["r"].rounds
        await until(lambda: service.routes["r"].rounds >= rounds + 2)
        assert await case.there(names[0]) == {0: 90, 1: 90}
        routes.clear()
        await until(lambda: not service.routes)
    finally:
        await service.stop()


class Following:
    """The sync of a workload that is passive at `THERE`."""

    def __init__(self, case: GroupCase) -> None:
        self.case = case
        self.key = f"{case.group}/{case.topic}"
        self.passive: Sequence[PassiveWorkload] = [self.of(HERE)]
        self.troubles: list[tuple[str, ...]] = []
        self.service = GroupSyncSchedule(
            case.syncer(), case.regions.clusters, dict, lambda: True,
            lambda *words: self.troubles.append(words), lambda: self.passive,
        )  # fmt: skip

    def of(self, source: str, trouble: str = "") -> PassiveWorkload:
        case = self.case
        return PassiveWorkload(self.key, case.group, case.topic, "active", source, THERE, trouble)

    @property
    def status(self) -> PassiveSyncStatus | None:
        return self.service.passive_status(self.key)

    async def until(self, *states: str) -> PassiveSyncStatus:
        """The status of a later round, once it is in one of `states`."""
        for kept in self.service.passive.values():
            kept.outcomes.clear()
        await until(lambda: self.status is not None and self.status.state in states)
        assert self.status is not None
        return self.status

    async def until_positions(self, *offsets: int) -> None:
        async with asyncio.timeout(120):
            while await self.case.there() != dict(enumerate(offsets)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@asynccontextmanager
async def following(case: GroupCase) -> AsyncIterator[Following]:
    await case.map(*EVERY)
    made = Following(case)
    await made.service.start()
    try:
        yield made
    finally:
        await made.service.stop()


async def test_a_passive_workloads_group_follows_the_active_one_forward_and_back_unless_it_is_consumed(
    case: GroupCase,
) -> None:
    await case.at(50, 50)
    async with following(case) as follows:
        await follows.until_positions(60, 60)
        await case.at(70, 80)
        await follows.until_positions(80, 90)
        status = await follows.until("unchanged")
        assert status.workload == follows.passive[0]
        assert status.lag_s((status.good_ms or 0) + 1_500) == 1.5
        await case.at(20, 80)  # an operator reset it, where it is active
        await follows.until_positions(30, 90)

        # Here meanwhile it has become the active one, and then an ordinary consumer takes part.
        case.busy[follows.key] = "workload of this region consumes it there"
        assert (await follows.until("live")).why == case.busy.pop(follows.key)
        async with AIOKafkaConsumer(
            case.topic, bootstrap_servers=case.regions.bootstraps[THERE], group_id=case.group,
            client_id="reader", enable_auto_commit=False,
        ) as consumer:  # fmt: skip
            async with asyncio.timeout(120):
                await consumer.getone()
            await case.at(90, 90)
            assert "reader" in (await follows.until("live")).why
            await asyncio.sleep(1.0)
            assert await case.there() == {0: 30, 1: 90}
        await follows.until_positions(100, 100)
        assert follows.troubles == []
        follows.passive = []
        await until(lambda: follows.status is None)
        assert not follows.service.passive


async def test_other_topics_of_a_passive_workloads_group_do_not_count(case: GroupCase) -> None:
    """Another workload of the group is active in that region; and retry topics are each region's own."""
    rig, retry = case.regions, f"{case.topic}__{case.group}__retry_1"
    there = await case.committer(THERE)
    another = f"{case.topic}-another"
    await rig.make(THERE, another, 1)
    for cluster in (HERE, THERE):
        await rig.make(cluster, retry, 1)
    line = a_line(await rig.log_id(HERE, retry), await rig.log_id(THERE, retry), retry, 0, (0, 0))
    await rig.send(HERE, rig.topic(rig.own), {f"r/{retry}/0".encode(): line})
    await (await case.committer(HERE)).commit(case.group, {(retry, 0): 0})
    assert await there.commit(case.group, {(another, 0): 0}, {(another, 0): stamped("west-1", 1)}) == {}
    case.busy[case.group] = "another workload of the group is active there"
    await case.at(50, 50)
    async with following(case) as follows:
        await follows.until("unchanged", "synced")
        positions = await there.positions(case.group)
    assert {at: one.next_offset for at, one in positions.items()} == {
        (case.topic, 0): 60, (case.topic, 1): 60, (another, 0): 0,
    }  # fmt: skip


async def test_a_group_that_its_own_region_moved_further_is_in_sync(case: GroupCase) -> None:
    there = await case.committer(THERE)
    before = {(case.topic, 0): 95, (case.topic, 1): 95}
    await there.commit(case.group, before, dict.fromkeys(before, stamped("west-1", 1)))
    await case.at(50, 50)
    async with following(case) as follows:
        assert (await follows.until("unchanged")).why == ""
        assert await case.there() == {0: 95, 1: 95}
        assert follows.troubles == []


async def test_a_position_of_another_client_beyond_the_mapped_one_stays_and_is_reported(
    case: GroupCase,
) -> None:
    there = await case.committer(THERE)
    await there.commit(case.group, {(case.topic, 0): 95, (case.topic, 1): 60})
    await case.at(50, 50)
    async with following(case) as follows:
        status = await follows.until("refused")
        assert "partition 0: the position here is ahead" in status.why
        assert "(95, mapped 60)" in status.why
        assert "Switchyard did not commit it" in status.why
        assert (status.good_ms, status.lag_s(0)) == (None, None)
        await until(lambda: follows.service.passive[HERE].rounds >= 3)
        assert await case.there() == {0: 95, 1: 60}
        assert [words[:2] for words in follows.troubles] == [("offset-sync", follows.key)]
        assert "partition 0" in follows.troubles[0][2]
        await there.commit(case.group, {(case.topic, 0): 60, (case.topic, 1): 60})
        assert (await follows.until("unchanged")).why == ""


async def test_positions_stay_while_the_active_cluster_is_away_and_one_incident_is_reported(
    case: GroupCase,
) -> None:
    await case.at(50, 50)
    async with following(case) as follows:
        await follows.until_positions(60, 60)
        follows.passive = [follows.of(NOWHERE)]
        away = await follows.until("away")
        assert (f"cluster {NOWHERE} d" in away.why, away.lag_s(0)) == (True, None), away
        await until(lambda: follows.service.passive[NOWHERE].rounds >= 3)
        assert [words[:2] for words in follows.troubles] == [("offset-sync", NOWHERE)]
        assert await case.there() == {0: 60, 1: 60}

        follows.passive = [follows.of("", trouble="region active has no cluster of tier aggregate")]
        assert "no cluster of tier" in (await follows.until("failed")).why
        assert [words[:2] for words in follows.troubles[1:]] == [("offset-sync", follows.key)]

        follows.passive = [follows.of(HERE)]
        await case.at(70, 70)
        await follows.until_positions(80, 80)
        assert [is_over() for *_, is_over in follows.troubles] == [True, True], "it no longer follows them"
        follows.passive = [follows.of(NOWHERE)]
        await follows.until("away")
        await until(lambda: len(follows.troubles) == 3)
        assert not follows.troubles[2][-1](), "no round has succeeded since the report"
