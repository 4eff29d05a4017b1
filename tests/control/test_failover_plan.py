"""A failover plan over real clusters: positions, re-reads and what is not here, also when the other region is
gone; and a drill, which leaves nothing behind."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app import wire
from app.config.definitions import FailoverDefinition, Workload
from app.control.failover import FailoverSide
from app.control.failover_drill import PREFIX, Drill
from app.control.failover_plan import Planner
from app.control.failover_told import (
    MAX_KEPT_BYTES,
    Plan,
    PlannedPartition,
    PlannedWorkload,
    kept,
    read,
    totals,
)
from app.core.control_events import FailoverPut, RolePut, WorkloadPut
from app.core.fencing import TrackerRecord
from app.core.topology import AGGREGATE, REGIONAL, Layout, Site
from app.regions.regions import Regions
from app.topics import ControlTopics
from app.yard import Yard
from tests.console.hand_fed import HandFed, beat, copying, definition, flowing, put_route, route
from tests.regions.stand import HERE, NOWHERE, THERE, a_line, regions
from tests.regions.stand import Regions as Stand

BARRIERS = [(n, n + 10) for n in range(0, 101, 10)]  # the copy here lies ten records further on


@dataclass
class Case:
    """`other` is active: its group has committed 55 of 100, its tracker says 57; here is the copy."""

    stand: Stand
    fed: HandFed
    topic: str
    group: str

    @property
    def key(self) -> str:
        return f"{self.group}/{self.topic}"

    @property
    def planner(self) -> Planner:
        runtime: Any = self.fed
        return Planner(runtime)

    def lost(self) -> None:
        """Nothing of the other region answers any more."""
        self.lay_out(NOWHERE)

    def lay_out(self, theirs: str) -> None:
        own, other = self.stand.own, self.stand.other
        sites = {
            HERE: Site(own, AGGREGATE), theirs: Site(other, AGGREGATE),
            "here-regional": Site(own, REGIONAL), "there-regional": Site(other, REGIONAL),
        }  # fmt: skip
        nothing: Any = None
        control: Any = self.fed.control
        self.fed.failover = FailoverSide(
            control, nothing, {}, Layout(own, sites, HERE), self.fed.catalog.workload, leads=lambda: True,
            on_news=lambda: None, on_trouble=lambda *_: None,
        )  # fmt: skip

    async def plan(self) -> PlannedWorkload:
        chosen = self.planner.choose(self.stand.own)
        made = await self.planner.plan(chosen, forced=True)
        return made.workloads[0]


@pytest.fixture
async def case(yard: Yard, tmp_path: Path, topic_name: str) -> AsyncIterator[Case]:
    async with regions(yard, tmp_path) as stand:
        fed, topic, group = HandFed(), topic_name, f"g-{uuid.uuid4().hex[:8]}"
        clusters: Any = stand.clusters
        fed.clusters = clusters
        for cluster, count in ((THERE, 100), (HERE, 110)):
            await stand.make(cluster, topic, 1)
            await stand.values(cluster, topic, 0, *(b"%d" % n for n in range(count)))
        theirs, ours = [await stand.log_id(cluster, topic) for cluster in (THERE, HERE)]
        line = a_line(theirs, ours, topic, 0, *BARRIERS)
        await stand.send(HERE, stand.topic(stand.own), {f"mirror/{topic}/0".encode(): line})
        # What is copied of the other region: its trackers, and its control log.
        trackers = ControlTopics(stand.other).changelog("trackers", 0).name
        await stand.make(HERE, trackers)
        job = f"dispatch:{group}/{topic}:{topic}:0"
        known = TrackerRecord(
            base=57, epoch=1, cluster_id=theirs.cluster_id, topic_id=theirs.topic_id, at_ms=1
        )
        await stand.send(HERE, trackers, {job.encode(): wire.encode(known)})
        await stand.make(HERE, ControlTopics(stand.other).control.name, 1)
        committer = (await stand.clusters.get(THERE)).committer
        assert await committer.commit(group, {(topic, 0): 55}) == {}

        data = definition(group, topic, mode="active-passive")
        data["metadata"]["cluster"] = HERE
        workload = Workload.model_validate(data)
        shared = FailoverDefinition.model_validate({
            "apiVersion": "switchyard/v1", "kind": "Failover", "metadata": {"name": "shared"},
            "spec": {"regions": [stand.own, stand.other], "topics": [topic]},
        })  # fmt: skip
        told = {"at_ms": 1, "actor": "me"}
        fed.apply(
            WorkloadPut(key=workload.key, definition=workload.to_wire(), etag=workload.etag(), **told),
            FailoverPut(key=shared.key, definition=shared.to_wire(), etag=shared.etag(), **told),
            RolePut(at_ms=1, key=workload.key, region=stand.other, epoch=1, state="active"),
            put_route(route("mirror", THERE, HERE, topic)), put_route(route("gone", NOWHERE, HERE, topic)),
        )  # fmt: skip
        fed.members.dead_after_s = 3600.0
        fed.hear(beat(
            flowing(copying(0, topic), committed=100, high_watermark=103),
            flowing(copying(0, topic, "gone"), committed=40, high_watermark=47),
        ))  # fmt: skip
        made = Case(stand, fed, topic, group)
        made.lay_out(THERE)
        fed.regions = Regions(
            stand.atlas, clusters, tmp_path, routes=dict, jobs=list, busy=lambda *_: "",
            may_act=lambda: False, tell=lambda *_: None, regions_of=lambda _: (stand.own, stand.other),
        )  # fmt: skip
        try:
            yield made
        finally:
            await fed.regions.carrier.stop()
            await fed.regions.tables.close()


def level(planned: PlannedWorkload, name: str) -> str:
    return next(check.level for check in planned.checks if check.name == name)


async def test_every_partition_is_explained_and_a_drill_tries_it_and_leaves_nothing(case: Case) -> None:
    planned = await case.plan()
    (row,) = planned.partitions
    assert (row.mapped, row.own, row.next_offset, row.log_end, row.lag) == (60, None, 60, 110, 50)
    assert (row.again, row.passed_over, row.why) == (7, 0, ""), "the tracker is further than the commit"
    (source,) = row.sources
    assert (source.cluster, source.read_up_to, source.next_offset) == (THERE, 57, 60)
    assert row.least == f"{THERE}/{case.topic}-0"
    assert (row.not_replicated, row.unreachable) == (10, 7)
    assert {(one.route, one.records, one.reachable) for one in row.routes} == {
        ("mirror", 3, True), ("gone", 7, False),
    }  # fmt: skip
    (away,) = (check for check in planned.checks if check.name == "sources")
    assert f"{NOWHERE} does not answer: 7 records or more of it are not here" in away.detail
    for name in ("topic", "offset-map", "positions", "definition", "left-behind"):
        assert level(planned, name) == "ok", planned.checks

    plan = await case.planner.plan(case.planner.choose(case.stand.own), forced=True)
    shown: list[Any] = []
    runtime: Any = case.fed
    told = await Drill(runtime, "d1", plan).run(shown.append)
    (drilled,) = told["partitions"]
    assert (drilled["committed"], drilled["offset"], drilled["error"]) == (60, 60, "")
    assert drilled["took_ms"] > 0
    assert (shown[0]["looked_at"], told["looked_at"], told["of"], told["failed"]) == (0, 1, 1, 0)
    committer = (await case.stand.clusters.get(HERE)).committer
    assert not [group for group in await committer.groups() if group.startswith(PREFIX)]
    assert await committer.positions(case.group) == {}, "the workload's own group was not touched"

    assert await committer.commit(case.group, {(case.topic, 0): 65}) == {}
    (mine,) = (await case.plan()).partitions
    assert (mine.mapped, mine.own, mine.next_offset, mine.again) == (60, 65, 65, 7), "no barrier is nearer"
    assert await committer.commit(case.group, {(case.topic, 0): 72}) == {}
    (mine,) = (await case.plan()).partitions
    assert (mine.next_offset, mine.again) == (72, 0), "what it has finished itself it does not read again"


async def test_nothing_is_needed_of_a_region_that_is_lost(case: Case) -> None:
    await case.plan()  # it was there once
    case.lost()
    planned = await case.plan()
    (row,) = planned.partitions
    assert (row.mapped, row.again) == (60, 7), "the copy of its trackers is enough"
    assert level(planned, "left-behind") == "warn"
    (at,) = (check for check in planned.checks if check.name == "positions")
    assert f"{NOWHERE} does not answer" in at.detail


async def test_last_positions_have_come_once_the_copy_is_as_far_as_the_group(case: Case) -> None:
    workload = case.fed.catalog.workload(case.key)
    assert workload is not None
    asked = [(workload, case.stand.other)]
    assert await case.planner.arrived(asked) == {case.key: ""}
    committer = (await case.stand.clusters.get(THERE)).committer
    assert await committer.commit(case.group, {(case.topic, 0): 80}) == {}
    assert "partition 0 at 57 of 80" in (await case.planner.arrived(asked))[case.key]
    case.lost()
    assert NOWHERE in (await case.planner.arrived(asked))[case.key]


async def test_a_topic_that_is_not_here_and_another_definition_are_found_beforehand(case: Case) -> None:
    theirs = case.fed.control.view.workloads[case.key]
    other = WorkloadPut(at_ms=1, key=case.key, definition=theirs.definition, etag="other", actor="me")
    control = ControlTopics(case.stand.other).control.name
    await case.stand.send(HERE, control, {f"workload/{case.key}".encode(): wire.encode(other)})
    planned = await case.plan()
    assert level(planned, "definition") == "warn"
    await case.stand.delete(HERE, case.topic)
    gone = await case.plan()
    (check,) = (check for check in gone.checks if check.name == "topic")
    assert (check.level, "does not exist in here" in check.detail, gone.partitions) == ("blocked", True, [])


def test_a_plan_too_large_for_the_control_log_is_kept_without_its_partitions() -> None:
    def made(count: int) -> Plan:
        rows = [
            PlannedPartition(partition=n, mapped=1, again=2, lag=3, not_replicated=0) for n in range(count)
        ]
        one = PlannedWorkload(workload="a/b", mode="active-passive", region="east", epoch=1, checks=[],
                              partitions=rows)  # fmt: skip
        return Plan(at_ms=1, checks=[], workloads=[one], totals=totals([one]))

    small, large = read(kept(made(3))), read(kept(made(MAX_KEPT_BYTES // 50)))
    assert small is not None
    assert large is not None
    assert (len(small.workloads[0].partitions), small.totals.again, small.totals.lag) == (3, 6, 9)
    assert large.workloads[0].partitions == []
    assert "too many partitions" in large.workloads[0].why
    assert large.totals.partitions == MAX_KEPT_BYTES // 50
    assert read({"rows": 1}) is None
    assert read(None) is None
