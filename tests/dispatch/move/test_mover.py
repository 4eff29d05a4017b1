"""A cluster move on two real clusters: what it refuses, maps and copies, and what a killed one leaves.

Owners are heartbeats by hand; that whole workers move is shown in tests/system/test_move.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from app.controllog.codec import Heartbeat, JobStatus
from app.controllog.events import ALL, Assignment, Claim, OperatorAct, WorkloadPut
from app.controllog.log import ControlLog
from app.dev.yard import Yard
from app.dispatch.definition import Workload
from app.dispatch.dlq.merge import Merger
from app.dispatch.dlq.operation_progress import OperationTerms
from app.dispatch.dlq.query import LetterQuery
from app.dispatch.dlq.reader import queue_ends
from app.dispatch.jobs.start_position import find_start_position
from app.dispatch.model import retry_headers as names
from app.dispatch.model.retry_headers import left_out_headers
from app.dispatch.move.begin_offsets import MapOffsets, not_joined
from app.dispatch.move.mover import Mover
from app.dispatch.move.planner import MovePlanner, MoveRequest
from app.kafka.client.cluster import ClusterSpec
from app.kafka.client.topic_configs import alter
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import ByteBudget
from app.kernel.clock import now_ms
from app.kernel.fencing import TakeoverAnswer
from app.kernel.job import JobId, Kind
from app.offsets.model.translation import Log, ResumePosition
from app.worker.jobs.operator_acts import OperationRefused
from app.worker.jobs.start_position import StartPosition
from app.worker.members.membership import Members
from app.worker.runtime.operators import OperatorActions
from tests.dispatch.dlq.queues import headers
from tests.kafka.conftest import delete_before, producing
from tests.web.runtime_fake import put

BEFORE_MAX = "message.timestamp.before.max.ms"
EAST, WEST, GROUP, ME = "east-regional", "east-aggregate", "billing", "w1"
T0 = (
    now_ms() - 3_600_000
)  # copies keep their timestamps: retention must not take them while they are looked at


class Stage:
    """A workload in EAST whose owner is at rest, and its topic in WEST."""

    def __init__(self, log: ControlLog, clusters: DataClusters, topic: str) -> None:
        self.log, self.clusters, self.topic = log, clusters, topic
        self.key = f"{GROUP}/{topic}"
        self.members = Members(dead_after_s=1e9)
        self.committed: dict[tuple[str, int], int] = {}
        self.state = "paused"
        self.incidents: list[str] = []
        self.map_offsets: MapOffsets = not_joined

    @property
    def retry(self) -> str:
        return f"{self.topic}__{GROUP}__retry_1"

    @property
    def dlq(self) -> str:
        return f"{self.topic}__{GROUP}__dlq"

    def definition(self, **spec: Any) -> dict[str, Any]:
        spec = {"target": {"address": "h:1"}, "retry": [{"delay": "1h"}], **spec}
        return {"apiVersion": "switchyard/v1", "kind": "Workload", "spec": spec,
                "metadata": {"group": GROUP, "topic": self.topic, "cluster": EAST}}  # fmt: skip

    async def deploy(self, **spec: Any) -> None:
        await self.log.append(put(self.definition(**spec)))

    async def own(self, committed: dict[tuple[str, int], int]) -> None:
        """One worker has finished everything below."""
        self.committed = committed
        jobs = [str(JobId(Kind.DISPATCH, self.key, *at)) for at in committed]
        if not self.log.view.term:
            await self.log.append(Claim(at_ms=1, term=1, worker=ME))
        await self.log.append(
            *(Assignment(at_ms=1, job=job, worker=ME, epoch=1, term=1, reason="") for job in jobs)
        )
        self.beat()

    def beat(self) -> None:
        jobs = [
            JobStatus(
                job=str(JobId(Kind.DISPATCH, self.key, *at)), epoch=1, state=self.state, committed=offset
            )
            for at, offset in self.committed.items()
        ]
        beat = Heartbeat(worker=ME, at_ms=1, started_ms=1, url="", state="running", term=1, jobs=jobs)
        self.members.observe(beat, time.monotonic())

    async def beat_for_ever(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(0.1)

    async def fill(self, cluster: str, topic: str, partition: int, records: list[tuple[str, int]],
                   heads: Any = None) -> None:  # fmt: skip
        """(value, timestamp) each."""
        made = (await self.clusters.get(cluster)).client
        async with AIOKafkaProducer(**made.spec.aiokafka_options()) as producer:
            for value, timestamp in records:
                await producer.send_and_wait(
                    topic, value.encode() if value else b"", f"k-{value}".encode(), partition,
                    timestamp_ms=timestamp, headers=heads(value) if heads else None,
                )  # fmt: skip

    async def make(self, cluster: str, *topics: str, partitions: int = 2) -> None:
        client = (await self.clusters.get(cluster)).client
        await ensure_topics(client, [TopicSpec(topic, partitions) for topic in topics])

    async def records(self, cluster: str, topic: str) -> list[Any]:
        from app.dev.demo.traffic import read_all

        bootstrap = self.clusters.specs[cluster].bootstrap[0]
        return sorted(await read_all(bootstrap, topic), key=lambda record: (record.partition, record.offset))

    def mover(self, to: str = WEST, margin_ms: int = 0, **rest: Any) -> Mover:
        wanted = MoveRequest(self.key, to, margin_ms, **{"force": True, **rest})
        planner = MovePlanner(wanted, self.log, self.clusters, self.members, self.map_offsets)
        return Mover(planner, self.log)

    async def run(self, mover: Mover, name: str = "m1", on_progress: Any = None) -> dict[str, Any]:
        beating = asyncio.create_task(self.beat_for_ever())
        try:
            return await mover.run(name, "ann", on_progress or (lambda _: None))
        finally:
            beating.cancel()

    @property
    def cluster(self) -> str:
        return str(self.log.view.workloads[self.key].definition["metadata"]["cluster"])

    async def begin(self, topic: str, partition: int, answer: TakeoverAnswer | None = None) -> StartPosition:
        """The start position of the next owner of the job."""
        workload = Workload.from_wire(self.log.view.workloads[self.key].definition)
        job = JobId(Kind.DISPATCH, self.key, topic, partition)
        answer = answer or TakeoverAnswer(
            job=str(job), epoch=2, worker=ME, nonce="n", granted=True, known_epoch=2
        )
        return await find_start_position(
            job,
            workload,
            await self.clusters.get(workload.metadata.cluster),
            answer,
            recorded=self.log.view.start_of(self.key),
            reset=None,
            report_incident=lambda kind, *_: self.incidents.append(kind),
        )


@pytest.fixture
async def stage(yard: Yard, topic_name: str) -> AsyncIterator[Stage]:
    async def nowhere(_: Any) -> None: ...

    specs = {name: ClusterSpec(name, (yard.bootstrap(name),)) for name in (EAST, WEST)}
    clusters = DataClusters(specs, nowhere, ByteBudget(1 << 20))
    control = f"{topic_name}-control"
    await ensure_topics((await clusters.get(EAST)).client, [TopicSpec(control, 1)])
    log = ControlLog(control, specs[EAST].aiokafka_options())
    await log.start()
    yield Stage(log, clusters, topic_name)
    await log.stop()
    await clusters.stop()


async def traffic(stage: Stage) -> None:
    """Ten messages a partition, a second apart, in both clusters; WEST lacks the first and has two more. The
    first is finished up to 6, the second altogether; three wait for retry, two letters are dead."""
    for cluster in (EAST, WEST):
        await stage.make(cluster, stage.topic)
    await stage.make(EAST, stage.retry, stage.dlq)
    for p in range(2):
        ten = [(f"{p}-{n}", T0 + 1000 * n) for n in range(10)]
        await stage.fill(EAST, stage.topic, p, ten)
        new = [(f"{p}-{n}", T0 + 1000 * n) for n in (10, 11)]
        await stage.fill(WEST, stage.topic, p, ten[1:] + new)
    waiting = [(f"r-{n}", T0 + 500 + n) for n in range(5)]
    await stage.fill(EAST, stage.retry, 1, waiting, lambda value: headers(7, reason=value))
    await stage.fill(EAST, stage.dlq, 0, [("d-0", T0), ("d-1", T0)], lambda _: headers(3))
    await stage.deploy()
    await stage.own({(stage.topic, 0): 6, (stage.topic, 1): 10, (stage.retry, 0): 0, (stage.retry, 1): 2})


async def test_a_plan_is_read_first_and_changes_nothing(stage: Stage) -> None:
    await traffic(stage)
    seen = await stage.mover(margin_ms=2_000).foresee()
    assert [(row["position"], row["unfinished"], row["to"], row["again"]) for row in seen["partitions"]] == [
        (6, 4, 3, 2),  # message 6 is at 5 there; two seconds before it is message 4
        (10, 0, 6, 3),  # message 9, the last one, and two seconds before
    ]
    assert (seen["waiting"], seen["dlq"]["offsets"], seen["complete"]) == ({stage.retry: 3}, 2, True)
    assert (stage.cluster, stage.log.view.moves) == (EAST, {})
    assert stage.retry not in await (await stage.clusters.get(WEST)).client.topics()


async def test_a_move_passes_over_no_unfinished_message_and_copies_waiting_ones_unchanged(
    stage: Stage,
) -> None:
    await traffic(stage)
    await stage.make(WEST, stage.retry)
    await stage.fill(WEST, stage.retry, 1, [("old", T0)])
    west = await stage.clusters.get(WEST)
    # Commits left from an earlier time on that cluster: one too far, one too low.
    stale = {(stage.topic, 0): 10, (stage.topic, 1): 0, (stage.retry, 1): 0}
    assert await west.committer.commit(GROUP, stale) == {}
    result = await stage.run(stage.mover())
    assert (stage.cluster, result["copied"], result["letters"]) == (WEST, 3, 2)
    assert result["left_there"] == {stage.retry: 1}
    assert not stage.log.view.is_paused(stage.key, 0)
    for topic, partition, at in (
        (stage.topic, 0, 5),
        (stage.topic, 1, 8),
        (stage.retry, 0, 0),
        (stage.retry, 1, 1),
    ):
        for _ in range(2):  # as often as it is tried
            found = await stage.begin(topic, partition)
            assert (found.snapshot.base, found.lineage, found.known) == (at, 1, False), (topic, partition)
        assert (await west.committer.committed(GROUP, [(topic, partition)]))[topic, partition] == at
    assert stage.incidents == [], "a move that was asked for is no incident"
    for topic, start in ((stage.retry, 2), (stage.dlq, 0)):
        here, there = await stage.records(EAST, topic), await stage.records(WEST, topic)
        assert [(r.partition, r.key, r.value, r.headers, r.timestamp) for r in here[start:]] == [
            (r.partition, r.key, r.value, r.headers, r.timestamp) for r in there if r.value != b"old"
        ]
    (act,) = [e for e in stage.log.recent if e["event"] == "operator-act"]
    assert (act["action"], act["subject"], act["actor"]) == ("move", stage.key, "ann")
    (moved,) = [e for e in stage.log.recent if e["event"] == "workload-put"][1:]
    assert not moved.get("begun"), "the activity has no offset for every partition"


async def test_with_another_number_of_partitions_all_begin_at_the_least_time(stage: Stage) -> None:
    await traffic(stage)
    other = (await stage.clusters.get(WEST)).client
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

    admin = AIOKafkaAdminClient(**other.spec.aiokafka_options())
    await admin.start()
    await admin.create_partitions({stage.topic: NewPartitions(3)})
    await admin.close()
    async with asyncio.timeout(120):
        while await other.partitions(stage.topic) != 3:  # noqa: ASYNC110 - a broker hears late of it
            await asyncio.sleep(0.05)
    await stage.fill(WEST, stage.topic, 2, [("2-5", T0 + 5_000), ("2-7", T0 + 7_000)])
    result = await stage.run(stage.mover())
    assert [row["to"] for row in result["partitions"]] == [5, 5, 1]
    assert (await stage.begin(stage.topic, 2)).snapshot.base == 1


async def falling_times(stage: Stage) -> None:
    """The same 301 messages in both clusters. All but the last are finished; it is an hour older."""
    messages = [(str(n), T0 + 3_600_000 - 600_000 + n) for n in range(300)] + [("300", T0)]
    for cluster in (EAST, WEST):
        await stage.make(cluster, stage.topic, partitions=1)
        await stage.fill(cluster, stage.topic, 0, messages)
    await stage.deploy()
    await stage.own({(stage.topic, 0): 300})


async def test_where_timestamps_do_not_rise_all_that_comes_again_is_counted_and_has_to_be_forced(
    stage: Stage,
) -> None:
    await falling_times(stage)
    careful = stage.mover(force=False)
    seen = await careful.foresee()
    (row,) = seen["partitions"]
    assert (row["to"], row["again"], row["by"], seen["needs_force"]) == (0, 300, "time", True)
    with pytest.raises(OperationRefused, match=r"300 finished .* more than 1% of the 301 .* --force"):
        await stage.run(careful)
    assert (stage.cluster, stage.log.view.is_paused(stage.key, 0)) == (EAST, False)
    await stage.run(stage.mover())
    assert stage.cluster == WEST


async def test_offset_syncs_begin_a_move_exactly_but_not_behind_what_producers_wrote_there(
    stage: Stage,
) -> None:
    await falling_times(stage)

    async def at_299(*_: object) -> dict[int, ResumePosition]:
        return {0: ResumePosition(0, 299, Log(0, 301), (), None, reread_messages=1)}

    stage.map_offsets = at_299
    (row,) = (await stage.mover(force=False).foresee())["partitions"]
    assert (row["to"], row["again"], row["by"]) == (299, 1, "offset syncs")
    (row,) = (await stage.mover(force=False, margin_ms=100).foresee())["partitions"]
    assert (row["to"], row["again"]) == (199, 101), "a hundred milliseconds before the latest one there"


async def test_messages_that_the_source_has_deleted_count_where_the_copies_still_are(stage: Stage) -> None:
    messages = [(str(n), T0 + n) for n in range(50)]
    for cluster in (EAST, WEST):
        await stage.make(cluster, stage.topic, partitions=1)
        await stage.fill(cluster, stage.topic, 0, messages)
    await stage.deploy()
    await stage.own({(stage.topic, 0): 50})
    await delete_before((await stage.clusters.get(EAST)).client, stage.topic, 50)
    seen = await stage.mover().foresee()
    assert (seen["partitions"][0]["to"], seen["again"], seen["needs_force"]) == (0, 50, True)
    await stage.fill(EAST, stage.topic, 0, [("old", T0)])
    seen = await stage.mover().foresee()
    assert (seen["partitions"][0]["to"], seen["again"]) == (0, 50)


async def test_a_move_ahead_of_the_copies_counts_what_may_still_be_copied(stage: Stage) -> None:
    messages = [(str(n), T0 + n) for n in range(50)]
    for cluster, copied in ((EAST, 50), (WEST, 20)):
        await stage.make(cluster, stage.topic, partitions=1)
        await stage.fill(cluster, stage.topic, 0, messages[:copied])
    await stage.deploy()
    await stage.own({(stage.topic, 0): 40})
    careful = stage.mover(force=False)
    seen = await careful.foresee()
    assert (seen["partitions"][0]["to"], seen["again"], seen["behind"]) == (20, 40, True)
    with pytest.raises(OperationRefused, match="wait until the copies there have caught up"):
        await stage.run(careful)


async def test_what_there_was_no_time_to_read_counts_as_coming_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await falling_times(stage)
    monkeypatch.setattr("app.dispatch.move.mover.DRY_RUN_TIMEOUT_S", -1.0)
    monkeypatch.setattr("app.dispatch.move.copier.SCAN_RECORDS", 1)
    seen = await stage.mover().foresee()
    assert seen["complete"] is False
    assert seen["again"] == 300


async def test_an_impossible_move_is_refused_before_anything_is_paused(stage: Stage) -> None:
    await stage.make(EAST, stage.topic)
    await stage.deploy()
    await stage.own({(stage.topic, 0): 0, (stage.topic, 1): 0})
    for to, why in (
        ("mars", "no cluster 'mars'"),
        (EAST, "already"),
        (WEST, "does not exist in east-aggregate"),
    ):
        with pytest.raises(OperationRefused, match=why):
            await stage.run(stage.mover(to))
    stage.clusters.specs["twin"] = ClusterSpec("twin", stage.clusters.specs[EAST].bootstrap)  # type: ignore[index]
    with pytest.raises(OperationRefused, match="same cluster"):
        await stage.run(stage.mover("twin"))
    await stage.make(WEST, stage.topic)
    dlq = f"{stage.topic}__billing__dlq"
    await stage.make(WEST, taken := dlq.replace("__billing", "_.billing"))
    with pytest.raises(OperationRefused, match=f"does not create topic {dlq}: .* existing topic: {taken}"):
        await stage.run(stage.mover())
    stage.log.view.workloads[stage.key].definition["spec"]["ordering"] = "by-magic"
    with pytest.raises(OperationRefused, match=r"cannot read .*: spec\.ordering: .*\(got by-magic\)"):
        await stage.run(stage.mover())
    assert not any(event["event"] == "moving" for event in stage.log.recent)


async def test_a_group_that_others_consume_there_refuses_the_move_before_anything_is_paused(
    stage: Stage,
) -> None:
    """By whichever protocol (`tests.kafka.client.test_group_members`); its commit would fail at the end."""
    await stage.make(EAST, stage.topic)
    await stage.make(WEST, stage.topic)
    await stage.deploy()
    await stage.own({(stage.topic, 0): 0, (stage.topic, 1): 0})
    (there,) = stage.clusters.specs[WEST].bootstrap
    async with AIOKafkaConsumer(
        stage.topic, bootstrap_servers=there, group_id=GROUP, client_id="legacy"
    ) as consumer:
        async with asyncio.timeout(120):
            while not consumer.assignment():  # noqa: ASYNC110 - the coordinator gives it
                await asyncio.sleep(0.05)
        with pytest.raises(OperationRefused, match=r"group \S+ in east-aggregate has 1 member \(legacy\)"):
            await stage.run(stage.mover())
    assert stage.cluster == EAST
    assert not stage.log.view.moves


async def test_a_job_that_is_not_at_rest_ends_the_move_and_the_workload_continues_in_place(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.move.mover.SETTLE_TIMEOUT_S", 1.0)
    await traffic(stage)
    stage.state = "flowing"
    with pytest.raises(OperationRefused, match="4 jobs are not at rest"):
        await stage.run(stage.mover())
    assert (stage.cluster, stage.log.view.is_paused(stage.key, 0)) == (EAST, False)


@pytest.mark.parametrize("step", ["map", "copy", "switch"])
async def test_a_killed_move_leaves_the_workload_where_it_was_and_can_be_requested_again(
    stage: Stage, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await traffic(stage)

    class Killed(BaseException):
        pass

    def die(progress: dict[str, Any]) -> None:
        if progress["step"] == step:
            raise Killed

    async def nothing(*_: Any) -> None: ...

    with monkeypatch.context() as dead:
        dead.setattr(Mover, "_give_up", nothing)  # a killed process cleans nothing up
        with contextlib.suppress(Killed):
            await stage.run(stage.mover(), "m1", die)
    assert (stage.cluster, stage.log.view.is_paused(stage.key, 0)) == (EAST, True)
    assert (await stage.begin(stage.topic, 0)).lineage == 0
    result = await stage.run(stage.mover(), "m2")
    assert (stage.cluster, result["copied"], result["letters"]) == (WEST, 3, 2)
    first = (await stage.begin(stage.retry, 1)).snapshot.base
    there = await stage.records(WEST, stage.retry)
    fresh = [record.value for record in there if record.offset >= first]
    assert fresh == [b"r-2", b"r-3", b"r-4"], (first, there)


async def test_resuming_undoes_a_move_and_its_late_writes_do_not_count(stage: Stage) -> None:
    await traffic(stage)
    operators = OperatorActions(None, stage.log, None)  # type: ignore[arg-type]

    async def resume() -> None:
        assert await operators.pause(stage.key, [ALL], False, "bob")

    resumed: list[asyncio.Task[None]] = []

    def interfere(progress: dict[str, Any]) -> None:
        if progress["step"] == "copy" and not resumed:
            resumed.append(asyncio.create_task(resume()))

    mover = stage.mover()
    commit = mover._commit

    async def after_the_resume(*arguments: Any) -> None:
        await asyncio.wait(resumed)
        await commit(*arguments)

    mover._commit = after_the_resume  # type: ignore[method-assign]
    with pytest.raises(OperationRefused, match="meanwhile"):
        await stage.run(mover, on_progress=interfere)
    assert (stage.cluster, stage.log.view.is_paused(stage.key, 0)) == (EAST, False)
    (refused,) = stage.log.take_refused()
    assert isinstance(refused, WorkloadPut), "the leader writes the definition that counts again"


async def test_merged_letters_are_not_copied_and_the_messages_of_the_merge_are(stage: Stage) -> None:
    await traffic(stage)
    east = (await stage.clusters.get(EAST)).client
    workload = Workload.from_wire(stage.definition())
    await Merger(east, workload, "once").run(
        OperationTerms(LetterQuery(key="k-d-0")), await queue_ends(east, stage.dlq)
    )
    result = await stage.run(stage.mover())
    assert (result["copied"], result["letters"]) == (4, 1)
    assert [r.value for r in await stage.records(WEST, workload.merge_topic())] == [b"d-0"]
    assert [r.value for r in await stage.records(WEST, stage.dlq)] == [b"d-1"]


async def test_letters_that_lack_their_values_are_counted_and_reported(stage: Stage) -> None:
    """Letters that were merged already are not counted, nor those whose value is null."""
    await traffic(stage)
    merged, lacking = (left_out_headers(b"0-3", stage.topic, 0, offset, "") for offset in (3, 99))
    first = [*headers(3), (names.ORIGIN_TOPIC, stage.topic.encode())]
    east = (await stage.clusters.get(EAST)).client
    async with producing(east.spec.bootstrap[0]) as producer:
        for key, lacks in ((b"k-0-3", merged), (b"k-lacking", lacking), (b"k-null", [])):
            letter = stage.dlq, None, key, 0, T0, [*first, *lacks]
            await producer.send_and_wait(*letter)
    terms = OperationTerms(LetterQuery(key="k-0-3"))
    merger = Merger(east, Workload.from_wire(stage.definition()), "once")
    assert (await merger.run(terms, await queue_ends(east, stage.dlq))).counts()["merged"] == 1
    result = await stage.run(stage.mover())
    assert (result["letters"], result["left_out"]) == (4, 1)
    copied = {r.key: (r.value, dict(r.headers)) for r in await stage.records(WEST, stage.dlq)}
    assert [copied[key][0] for key in (b"k-lacking", b"k-null")] == [None, None]
    assert dict(lacking).items() <= copied[b"k-lacking"][1].items(), (
        "its headers still name the missing value and its place"
    )
    (act,) = [e for e in stage.log.recent if e["event"] == "operator-act"]
    where = f"4 dead letters, of which 1 lack their values, which are only in {EAST}"
    assert act["detail"].endswith(where)


async def test_dead_letters_stay_when_they_are_to(stage: Stage) -> None:
    await traffic(stage)
    assert (await stage.run(stage.mover(letters=False)))["letters"] == 0
    assert await stage.records(WEST, stage.dlq) == []


@pytest.mark.parametrize("setting", ["size", "time", "no key"])
async def test_a_record_that_is_refused_there_ends_the_move_and_is_named(stage: Stage, setting: str) -> None:
    """The other records of its batch, and later ones, fail with it and are not named."""
    await traffic(stage)
    west = (await stage.clusters.get(WEST)).client
    config, why = {
        "size": ({"max.message.bytes": "20000"}, "error 10 .*; raise max.message.bytes of the destination"),
        "time": (
            {BEFORE_MAX: "86400000"},
            f"error 32 .*; raise {BEFORE_MAX} and",
        ),
        "no key": ({"cleanup.policy": "compact"}, "error 87 .*; records without a key cannot be kept"),
    }[setting]
    await ensure_topics(west, [TopicSpec(stage.dlq, 2, config=config)])
    east, now = (await stage.clusters.get(EAST)).client, now_ms()
    async with AIOKafkaProducer(**east.spec.aiokafka_options()) as producer:
        sent = []
        for number in range(2, 400):
            is_bad = number in {150, 300}
            sent.append(
                await producer.send(
                    stage.dlq, bytes(30_000) if is_bad and setting == "size" else b"%d" % number,
                    None if is_bad and setting == "no key" else b"k", 0, headers=headers(3),
                    timestamp_ms=now - 2 * 86_400_000 if is_bad and setting == "time" else now,
                )
            )  # fmt: skip
        await asyncio.gather(*sent)
    with pytest.raises(OperationRefused) as refused:
        await stage.run(stage.mover())
    named = (
        rf"{stage.dlq} in {WEST} refuses the copy of {stage.dlq}-0, offset 150: {why}.*purge a dead letter"
    )
    assert re.match(named, str(refused.value)), refused.value
    assert (stage.cluster, stage.log.view.is_paused(stage.key, 0)) == (EAST, False)
    mended = {"max.message.bytes": None, BEFORE_MAX: None, "cleanup.policy": None}
    assert not await alter(west, {stage.dlq: {name: mended[name] for name in config}})
    result = await stage.run(stage.mover(), "m2")
    assert (stage.cluster, result["letters"]) == (WEST, 400)
    there = {record.value for record in await stage.records(WEST, stage.dlq)}
    assert there == {record.value for record in await stage.records(EAST, stage.dlq)}


async def test_records_that_are_too_large_together_only_are_moved(stage: Stage) -> None:
    """The topic's limit is below what the copier puts into a batch."""
    await traffic(stage)
    west = (await stage.clusters.get(WEST)).client
    await ensure_topics(west, [TopicSpec(stage.dlq, 2, config={"max.message.bytes": "8000"})])
    await stage.fill(
        EAST, stage.dlq, 1, [(f"{n}-" + "v" * 3_000, T0) for n in range(20)], lambda _: headers(3)
    )
    assert (await stage.run(stage.mover()))["letters"] == 22
    here, there = await stage.records(EAST, stage.dlq), await stage.records(WEST, stage.dlq)
    assert [(r.partition, r.value) for r in there] == [(r.partition, r.value) for r in here]


async def test_there_and_back_again(stage: Stage) -> None:
    await traffic(stage)
    await stage.run(stage.mover(), "m1")
    stage.committed = {(stage.topic, 0): 11, (stage.topic, 1): 11, (stage.retry, 0): 0, (stage.retry, 1): 3}
    result = await stage.run(stage.mover(EAST), "m2")
    assert (stage.cluster, result["copied"], [row["to"] for row in result["partitions"]]) == (
        EAST,
        0,
        [10, 10],
    )
    start = stage.log.view.start_of(stage.key)
    assert start is not None
    assert (start.ends, start.others[stage.retry].offsets) == ([10, 10], [0, 5])
    assert [e["action"] for e in stage.log.recent if e["event"] == OperatorAct.__struct_config__.tag] == [
        "move"
    ] * 2
