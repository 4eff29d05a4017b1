"""A job's start position, on a real cluster: a position counts only for the log that it was saved for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from app.controllog.events import StartOffsets, StartRecorded
from app.dispatch.definition import Workload
from app.dispatch.jobs.start_position import find_start_position
from app.kafka.client.cluster import ClusterSpec
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.data_clusters import DataCluster
from app.kafka.fetch.deliveries import ByteBudget
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.job import JobId, Kind
from app.kernel.ranges import Snapshot
from app.offsets.sync.remote_progress import ImportedProgress
from app.worker.jobs.start_position import LineageReset, StartPosition

GROUP = "billing"


class Place:
    """A topic of one partition, in a real cluster, and the incidents that jobs of it reported."""

    def __init__(self, cluster: DataCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self.job = JobId(Kind.DISPATCH, f"{GROUP}/{topic}", topic, 0)
        self.reported: list[str] = []

    async def make(self, messages: int) -> None:
        """Creates the topic with this many messages."""
        await ensure_topics(self.cluster.client, [TopicSpec(self.topic, 1)])
        producer = AIOKafkaProducer(**self.cluster.client.spec.aiokafka_options())
        await producer.start()
        for _ in range(messages):
            await producer.send(self.topic, b"m", partition=0)
        await producer.stop()

    async def recreate(self, messages: int) -> None:
        """Deletes the topic and creates it with this many messages."""
        admin = AIOKafkaAdminClient(**self.cluster.client.spec.aiokafka_options())
        await admin.start()
        await admin.delete_topics([self.topic])
        await admin.close()
        async with asyncio.timeout(120):
            while self.topic in await self.cluster.client.topics():  # noqa: ASYNC110 - the broker's
                await asyncio.sleep(0.05)
        await self.make(messages)

    async def log(self) -> LogId:
        ids = await self.cluster.client.topic_ids([self.topic])
        return LogId(await self.cluster.client.cluster_id(), ids[self.topic])

    async def commit(self, offset: int) -> None:
        assert await self.cluster.committer.commit(GROUP, {(self.topic, 0): offset}) == {}

    async def begin(
        self, base: int | None = None, *, lineage: int = 0, log: LogId | None = None,
        start: str = "earliest", recorded: StartRecorded | None = None, reset: LineageReset | None = None,
        carried: ImportedProgress | None = None,
    ) -> StartPosition:  # fmt: skip
        """The start position when the tracker table's answer has this base."""
        answer = TakeoverAnswer(
            job=str(self.job), epoch=1, worker="w", nonce="n", granted=True, known_epoch=1, lineage=lineage,
            snapshot=b"" if base is None else Snapshot(base).to_bytes(), log=log or LogId(),
        )  # fmt: skip
        definition: dict[str, Any] = {
            "apiVersion": "switchyard/v1",
            "kind": "Workload",
            "metadata": {"group": GROUP, "topic": self.topic, "cluster": "east"},
            "spec": {"target": {"address": "h:1"}, "start": start},
        }

        def report(kind: str, _subject: str, message: str, *_: object) -> None:
            self.reported.append(f"{kind}: {message}")

        return await find_start_position(
            self.job,
            Workload.from_wire(definition),
            self.cluster,
            answer,
            recorded=recorded,
            reset=reset,
            report_incident=report,
            carried=carried,
        )


@pytest.fixture
async def place(bootstrap: str, topic_name: str) -> AsyncIterator[Place]:
    async def nowhere(_: Any) -> None: ...

    cluster = DataCluster(ClusterSpec("east", (bootstrap,)), nowhere, ByteBudget(1 << 20))
    await cluster.start()
    made = Place(cluster, topic_name)
    await made.make(10)
    yield made
    await cluster.stop()


def recorded_start(place: Place, *ends: int, topic_id: str = "") -> StartRecorded:
    return StartRecorded(at_ms=0, key=place.job.name, ends=list(ends), topic_id=topic_id)


async def test_table_and_group_are_joined_and_the_present_ids_adopted(place: Place) -> None:
    first = await place.begin()
    assert (first.snapshot.base, first.log, first.known) == (0, await place.log(), False)
    await place.commit(7)
    assert (await place.begin()).snapshot.base == 7
    without_ids = await place.begin(5)
    assert (without_ids.snapshot.base, without_ids.log, without_ids.known, without_ids.lineage) == (
        7,
        await place.log(),
        False,
        0,
    )
    assert (await place.begin(9, log=await place.log())).known
    assert place.reported == []


async def test_a_recreated_topic_is_delivered_from_its_start_although_it_reaches_the_old_position(
    place: Place,
) -> None:
    former = await place.log()
    await place.recreate(300)
    await place.commit(100)  # the last commit of an old owner
    found = await place.begin(100, log=former, lineage=2)
    assert (found.snapshot, found.lineage, found.known) == (Snapshot(0), 3, False)
    assert found.log == await place.log()
    assert "recreated" in place.reported[0]
    assert former.topic_id in place.reported[0]
    assert found.log.topic_id in place.reported[0]
    # Once the table has the new log, there is no second incident, and the group's old commit does not count.
    again = await place.begin(0, log=found.log, lineage=3)
    assert (again.snapshot.base, again.known, len(place.reported)) == (0, True, 1)


async def test_a_workload_moved_by_a_deployment_starts_at_the_new_logs_beginning(place: Place) -> None:
    former_log = LogId("another-cluster", "another-topic")
    await place.commit(4)
    found = await place.begin(8, log=former_log, start="latest")
    assert (found.snapshot.base, found.lineage) == (0, 1)
    assert "went to another cluster" in place.reported[0]


async def test_a_running_job_restarts_where_it_found_its_log_recreated(
    place: Place,
) -> None:
    await place.commit(9)
    found = await place.begin(9, log=LogId("", "gone"), reset=LineageReset(1, 5, 3, "it was made anew"))
    assert (found.snapshot.base, found.lineage, found.log) == (3, 5, await place.log())
    assert "it was made anew" in place.reported[0]
    assert "topic id gone" in place.reported[0]
    assert found.log.topic_id in place.reported[0]


async def test_a_reset_is_no_incident(place: Place) -> None:
    found = await place.begin(9, log=await place.log(), reset=LineageReset(1, 5, 3))
    assert (found.snapshot.base, found.lineage, place.reported) == (3, 5, [])


async def test_latest_is_where_the_topic_ended_when_it_was_deployed(place: Place) -> None:
    assert (await place.begin(start="latest", recorded=recorded_start(place, 6))).snapshot.base == 6
    with pytest.raises(LookupError, match="not recorded"):
        await place.begin(start="latest")


async def test_latest_does_not_apply_to_an_added_partition_or_a_recreated_topic(
    place: Place,
) -> None:
    assert (await place.begin(start="latest", recorded=recorded_start(place))).snapshot.base == 0
    of_another = recorded_start(place, 6, topic_id="another")
    assert (await place.begin(start="latest", recorded=of_another)).snapshot.base == 0


async def test_a_moved_workload_starts_at_the_mapped_offset_until_the_table_knows_it(
    place: Place,
) -> None:
    present = await place.log()
    at = StartRecorded(at_ms=0, key=place.job.name, ends=[6], topic_id=present.topic_id,
               cluster_id=present.cluster_id)  # fmt: skip
    former_log = LogId("another-cluster", "another-topic")
    for committed in (9, 2):  # left from an earlier time on that cluster
        await place.commit(committed)
        for base, log, lineage in ((None, None, 0), (8, former_log, 3)):
            found = await place.begin(base, log=log, lineage=lineage, recorded=at, start="latest")
            assert (found.snapshot, found.lineage, found.log, found.known) == (
                Snapshot(6), lineage + 1, present, False,
            )  # fmt: skip
    # From then on the table's offset for this log counts.
    assert (await place.begin(7, log=present, lineage=1, recorded=at)).snapshot == Snapshot(7)
    assert place.reported == [], "a move is no incident"


async def test_a_mapped_position_is_of_one_log_only(place: Place) -> None:
    present = await place.log()
    for cluster_id, topic_id in (("another", present.topic_id), (present.cluster_id, "another")):
        at = StartRecorded(at_ms=0, key=place.job.name, ends=[6], topic_id=topic_id, cluster_id=cluster_id)
        assert (await place.begin(8, log=LogId("old", "old"), recorded=at)).snapshot.base == 0
    retry = StartRecorded(at_ms=0, key="g/other", ends=[], cluster_id=present.cluster_id,
                  others={place.topic: StartOffsets(present.topic_id, [4])})  # fmt: skip
    assert (await place.begin(8, log=LogId("old", "old"), recorded=retry)).snapshot.base == 4


async def test_progress_of_other_regions_is_joined_and_latest_skips_nothing_unfinished(
    place: Place,
) -> None:
    present, seven, unknown = (
        await place.log(),
        ImportedProgress(7, was_read=True),
        ImportedProgress(was_read=True),
    )
    assert (await place.begin(carried=seven)).snapshot.base == 7
    found = await place.begin(5, log=present, carried=seven)
    assert (found.snapshot.base, found.known) == (7, False), "the table learns that the import was looked up"
    found = await place.begin(9, log=present, carried=seven)
    assert (found.snapshot.base, found.known) == (9, False)
    assert (await place.begin(9, log=present, carried=unknown)).snapshot.base == 9
    latest = recorded_start(place, 8)
    for carried, base in ((ImportedProgress(), 8), (seven, 7), (unknown, 0)):
        assert (await place.begin(start="latest", recorded=latest, carried=carried)).snapshot.base == base
    reset = await place.begin(9, log=present, reset=LineageReset(1, 5, 3), carried=seven)
    assert reset.snapshot.base == 3, "an operator asked for it"
    assert place.reported == []


async def test_a_corrupt_snapshot_gives_way_to_the_groups_commit(place: Place) -> None:
    await place.commit(4)
    answer = TakeoverAnswer(job=str(place.job), epoch=1, worker="w", nonce="n", granted=True, known_epoch=1,
                            snapshot=b"\x01nonsense")  # fmt: skip
    workload: Any = Workload.from_wire(
        {"apiVersion": "switchyard/v1", "kind": "Workload",
         "metadata": {"group": GROUP, "topic": place.topic, "cluster": "east"},
         "spec": {"target": {"address": "h:1"}}}
    )  # fmt: skip
    reported: list[str] = []
    found = await find_start_position(
        place.job,
        workload,
        place.cluster,
        answer,
        recorded=None,
        reset=None,
        report_incident=lambda *t: reported.append(t[0]),
    )
    assert (found.snapshot.base, found.known, reported) == (4, False, ["snapshot-corrupt"])


async def test_a_job_of_a_missing_topic_waits(place: Place) -> None:
    place.job = JobId(Kind.DISPATCH, place.job.name, f"{place.topic}-not", 0)
    with pytest.raises(LookupError, match="does not exist"):
        await place.begin(5)
