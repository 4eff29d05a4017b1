"""A failover plan over real clusters: positions, messages to read again and missing records, also when the
other region is lost. A drill leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.controllog import codec
from app.controllog.events import FailoverPut, RolePut, WorkloadPut, compaction_key
from app.controllog.failover_run import Missing
from app.controllog.topics import ControlTopics
from app.dev.yard import Yard
from app.dispatch.definition import Workload
from app.failover.definition import FailoverDefinition
from app.failover.plan import planner as plan_planner
from app.failover.plan.cluster_queries import TOPICS_AT_ONCE, ClusterQueries
from app.failover.plan.document import Plan, PlannedWorkload
from app.failover.plan.drill import LEFTOVER_MS, PREFIX, Drill
from app.failover.plan.planner import FailoverPlanner
from app.failover.run.participant import FailoverParticipant, FailoverPorts
from app.failover.run.presence import Presence
from app.failover.topology import AGGREGATE, REGIONAL, Layout, Site
from app.kafka.client.cluster import ClusterClient
from app.kernel.clock import now_ms
from app.kernel.fencing import TrackerRecord
from app.offsets.model.group_sync import stamped
from app.offsets.model.translation import Log
from app.offsets.sync.regions import GroupConsumers, MovingWorkloads, OwnRoutes, Regions
from app.worker.catalog import Catalog
from app.worker.readable_definitions import ReadableDefinitions
from tests.offsets.clusters import HERE, NOWHERE, THERE, a_line, regions
from tests.offsets.clusters import Regions as Stand
from tests.web.runtime_fake import (
    Alone,
    FakeRuntime,
    assigned,
    beat,
    copying,
    definition,
    flowing,
    put_route,
    route,
)

BARRIERS = [(n, n + 10) for n in range(0, 101, 10)]  # the copy here has offsets that are higher by ten


@dataclass
class Case:
    """The other region is active: its group has committed 55 of 100 and its tracker says 57. The copy is
    here."""

    stand: Stand
    fed: FakeRuntime
    topic: str
    group: str

    @property
    def key(self) -> str:
        return f"{self.group}/{self.topic}"

    @property
    def planner(self) -> FailoverPlanner:
        runtime: Any = self.fed
        return FailoverPlanner(runtime)

    def lost(self) -> None:
        """The other region stops answering."""
        self.lay_out(NOWHERE)

    def lay_out(self, theirs: str) -> None:
        own, other = self.stand.own, self.stand.other
        sites = {
            HERE: Site(own, AGGREGATE), theirs: Site(other, AGGREGATE),
            "here-regional": Site(own, REGIONAL), "there-regional": Site(other, REGIONAL),
        }  # fmt: skip
        nothing: Any = None
        control: Any = self.fed.control
        clusters: Any = self.fed.clusters
        layout = Layout(own, sites, HERE)
        definitions = ReadableDefinitions(control, lambda *_: None, layout)
        self.fed.catalog = Catalog(control, clusters, lambda *_: None, definitions, Alone())
        self.fed.failover = FailoverParticipant(
            control,
            nothing,
            {},
            layout,
            self.fed.catalog.workloads.workload,
            FailoverPorts(leads=lambda: True, on_news=lambda: None, report_incident=lambda *_: None),
            presence=Presence("a-worker", time.monotonic),
        )

    async def whole(self) -> Plan:
        return await self.planner.plan(self.planner.choose(self.stand.own), forced=True)

    async def plan(self) -> PlannedWorkload:
        return (await self.whole()).workloads[0]


@pytest.fixture
async def case(yard: Yard, tmp_path: Path, topic_name: str) -> AsyncIterator[Case]:
    async with regions(yard, tmp_path) as stand:
        fed, topic, group = FakeRuntime(), topic_name, f"g-{uuid.uuid4().hex[:8]}"
        clusters: Any = stand.clusters
        fed.clusters = clusters
        for cluster, count in ((THERE, 100), (HERE, 110)):
            await stand.make(cluster, topic, 1)
            await stand.values(cluster, topic, 0, *(b"%d" % n for n in range(count)))
        theirs, ours = [await stand.log_id(cluster, topic) for cluster in (THERE, HERE)]
        line = a_line(theirs, ours, topic, 0, *BARRIERS)
        await stand.send(HERE, stand.topic(stand.own), {f"mirror/{topic}/0".encode(): line})
        # Copies of the other region's trackers and control log.
        trackers = ControlTopics(stand.other).changelog("trackers", 0).name
        await stand.make(HERE, trackers)
        job = f"dispatch:{group}/{topic}:{topic}:0"
        known = TrackerRecord(
            base=57, epoch=1, cluster_id=theirs.cluster_id, topic_id=theirs.topic_id, at_ms=1
        )
        await stand.send(HERE, trackers, {job.encode(): codec.encode(known)})
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
        common = {"at_ms": 1, "actor": "me"}
        fed.apply(
            WorkloadPut(key=workload.key, definition=workload.to_wire(), etag=workload.etag(), **common),
            FailoverPut(key=shared.key, definition=shared.to_wire(), etag=shared.etag(), **common),
            RolePut(at_ms=1, key=workload.key, region=stand.other, epoch=1, state="active"),
            put_route(route("mirror", THERE, HERE, topic)), put_route(route("gone", NOWHERE, HERE, topic)),
        )  # fmt: skip
        fed.observe(beat(
            flowing(copying(0, topic), committed=100, high_watermark=103),
            flowing(copying(0, topic, "gone"), committed=40, high_watermark=47),
        ))  # fmt: skip
        made = Case(stand, fed, topic, group)
        made.lay_out(THERE)
        fed.regions = Regions(
            stand.atlas,
            clusters,
            tmp_path,
            OwnRoutes(routes=dict, jobs=list),
            GroupConsumers(busy=lambda *_: ""),
            MovingWorkloads(regions_of=lambda _: (stand.own, stand.other)),
            may_act=lambda: False,
            report_incident=lambda *_: None,
        )
        try:
            yield made
        finally:
            await fed.regions.remote_progress.stop()
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
    assert f"{NOWHERE} does not answer: 7 or more of its records are not here" in away.detail
    for name in ("topic", "offset-map", "positions", "definition", "left-behind"):
        assert level(planned, name) == "ok", planned.checks

    plan = await case.whole()
    shown: list[Any] = []
    runtime: Any = case.fed
    result = await Drill(runtime, "d1", plan).run(shown.append)
    (drilled,) = result["partitions"]
    assert (drilled["committed"], drilled["offset"], drilled["error"]) == (60, 60, "")
    assert drilled["took_ms"] > 0
    assert (shown[0]["looked_at"], result["looked_at"], result["of"], result["failed"]) == (0, 1, 1, 0)
    committer = (await case.stand.clusters.get(HERE)).committer
    left = [group for group in await committer.groups() if case.group in group and group.startswith(PREFIX)]
    assert not left
    assert await committer.positions(case.group) == {}, "the workload's own group was not touched"

    beside = {(case.topic, 0): stamped("a-worker", 1)}
    assert await committer.commit(case.group, {(case.topic, 0): 65}, beside) == {}
    planned = await case.plan()
    (mine,) = planned.partitions
    assert (mine.mapped, mine.own, mine.next_offset, mine.again) == (60, 65, 65, 7), (
        "no nearer barrier is known"
    )
    assert "own-positions" not in {check.name for check in planned.checks}
    assert await committer.commit(case.group, {(case.topic, 0): 72}, beside) == {}
    (mine,) = (await case.plan()).partitions
    assert (mine.next_offset, mine.again) == (72, 0), "it does not read its own finished messages again"


async def test_a_foreign_position_here_is_a_warning_with_the_skipped_records(case: Case) -> None:
    committer = (await case.stand.clusters.get(HERE)).committer
    assert await committer.commit(case.group, {(case.topic, 0): 110}) == {}
    planned = await case.plan()
    (row,) = planned.partitions
    assert (row.mapped, row.own, row.own_is_foreign, row.next_offset, row.lag) == (60, 110, True, 110, 0)
    (check,) = (check for check in planned.checks if check.name == "own-positions")
    assert (check.level, "50 records beyond 60" in check.detail) == ("warn", True)
    assert f"--group {case.group} --topic {case.topic}:0 --to-offset 60" in check.remedy


async def test_the_count_of_missing_records_is_unknown_while_a_copys_job_has_no_owner(case: Case) -> None:
    idle = put_route(route("idle", NOWHERE, HERE, case.topic))
    case.fed.apply(idle, assigned(copying(0, case.topic, "idle"), worker=""))
    planned = await case.plan()
    (row,) = planned.partitions
    assert (row.not_replicated, row.unreachable) == (None, None)
    assert ("idle", None, False) in {(one.route, one.records, one.reachable) for one in row.routes}
    (away,) = (check for check in planned.checks if check.name == "sources")
    assert "at least 7 of its records are not here, and how many more is not known" in away.detail
    made = await case.whole()
    assert (made.totals.not_replicated, made.totals.unreachable) == (None, None)


async def test_many_topics_take_few_queries_and_a_group_one(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    real = ClusterClient.send

    async def send(client: ClusterClient, node: int, request: Any, group: Any = 0) -> Any:
        sent.append(type(request).__name__)
        return await real(client, node, request, group)

    runtime: Any = case.fed
    queries = ClusterQueries(runtime, time.monotonic() + 30.0)
    others = [f"{case.topic}-{n}" for n in range(2 * TOPICS_AT_ONCE)]
    queries.expect(HERE, [case.topic, *others], [case.group])
    await queries.cluster(HERE)
    monkeypatch.setattr(ClusterClient, "send", send)
    queries.start()
    found = await asyncio.gather(*(queries.topic(HERE, topic) for topic in [*others, case.topic]))
    assert found[:-1] == [None] * len(others)
    assert found[-1] is not None
    assert (found[-1].count, found[-1].all_logs()) == (1, {0: Log(0, 110)})
    log_id = await case.stand.log_id(HERE, case.topic)
    assert (found[-1].cluster_id, found[-1].topic_id) == (log_id.cluster_id, log_id.topic_id)
    for _ in range(5):
        await queries.positions(HERE, case.group)
    assert len([name for name in sent if name.startswith("OffsetFetch")]) == 1
    assert len(sent) < 20, "a few queries for each of the three steps"


async def test_workloads_beyond_the_time_limit_are_unknown_and_not_queried(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_planner, "PLAN_TIMEOUT_S", 0.0)
    planned = await case.plan()
    (check,) = (check for check in planned.checks if check.name == "offset-map")
    assert (check.level, "plan fewer workloads at once" in check.detail) == ("warn", True)
    assert planned.partitions == []


async def test_the_next_drill_deletes_the_groups_of_a_killed_one(case: Case) -> None:
    committer = (await case.stand.clusters.get(HERE)).committer
    old, new = (f"{PREFIX}{now_ms() - ms}-3f9a2c11-{case.group}" for ms in (LEFTOVER_MS + 1_000, 0))
    for group in (old, new):
        assert await committer.commit(group, {(case.topic, 0): 5}) == {}
    plan = await case.whole()
    runtime: Any = case.fed
    result = await Drill(runtime, "d2", plan).run(lambda _: None)
    assert result["failed"] == 0
    left = [group for group in await committer.groups() if case.group in group and group.startswith(PREFIX)]
    assert left == [new], "another worker may still run its drill"


async def test_a_plan_needs_nothing_from_a_lost_region(case: Case) -> None:
    await case.plan()  # it existed once
    case.lost()
    planned = await case.plan()
    (row,) = planned.partitions
    assert (row.mapped, row.again) == (60, 7), "the copy of its trackers is enough"
    assert level(planned, "left-behind") == "warn"
    (at,) = (check for check in planned.checks if check.name == "positions")
    assert f"{NOWHERE} does not answer" in at.detail


async def test_last_positions_have_arrived_once_the_copy_is_as_far_as_the_group(case: Case) -> None:
    workload = case.fed.catalog.workloads.workload(case.key)
    assert workload is not None
    requests = [(workload, case.stand.other)]
    assert await case.planner.arrived(requests) == {case.key: Missing()}
    committer = (await case.stand.clusters.get(THERE)).committer
    assert await committer.commit(case.group, {(case.topic, 0): 80}) == {}
    late = (await case.planner.arrived(requests))[case.key]
    assert "partition 0 at 57 of 80" in late.words
    assert late.behind == 23
    case.lost()
    away = (await case.planner.arrived(requests))[case.key]
    assert NOWHERE in away.words
    assert away.behind is None


async def test_a_topic_that_is_not_here_and_another_definition_are_found_beforehand(case: Case) -> None:
    theirs = case.fed.control.view.workloads[case.key]
    other = WorkloadPut(at_ms=1, key=case.key, definition=theirs.definition, etag="other", actor="me")
    control = ControlTopics(case.stand.other).control.name
    await case.stand.send(HERE, control, {f"workload/{case.key}".encode(): codec.encode(other)})
    shared = FailoverDefinition.model_validate({
        "apiVersion": "switchyard/v1", "kind": "Failover", "metadata": {"name": "shared"},
        "spec": {"regions": [case.stand.own, case.stand.other, "third"], "topics": [case.topic]},
    })  # fmt: skip
    put = FailoverPut(at_ms=1, key=shared.key, definition=shared.to_wire(), etag=shared.etag(), actor="me")
    await case.stand.send(HERE, control, {compaction_key(put).encode(): codec.encode(put)})
    planned = await case.plan()
    assert level(planned, "definition") == "warn"
    assert level(planned, "regions") == "blocked"
    run = case.planner.made(
        case.stand.own, case.planner.choose(case.stand.own), await case.whole(), forced=True, actor="me",
        reason="", name="f",
    )  # fmt: skip
    (why,) = case.planner.in_the_way(run, forced=True)
    assert "two regions could then issue the same epoch; deploy the same file in both" in why
    await case.stand.delete(HERE, case.topic)
    without_topic = await case.plan()
    (check,) = (check for check in without_topic.checks if check.name == "topic")
    assert (check.level, "does not exist in here" in check.detail, without_topic.partitions) == (
        "blocked",
        True,
        [],
    )
