"""Copies between real brokers: all records, unchanged, with the headers that a route adds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from app.kafka.append.encoder import copies
from app.kafka.append.lane import AppendLane
from app.kafka.records.batch import HEADER_BYTES
from app.kafka.records.verbatim_copy import Bytes, VerbatimCopy
from app.replicate.pump.status import copying_status, job_status
from tests.kafka.append.test_appender import batch_of
from tests.kafka.conftest import create, producing
from tests.replicate.rig import ReplicaRig, rows
from tests.replicate.source_topics import assert_same, create_on_both_sides, start_copying, write


async def test_every_record_is_copied_as_it_is_whatever_its_compression_and_its_transaction(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create_on_both_sides(rig, topic_name)
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        await write(rig, topic_name, 200, str(codec), compression_type=codec)
    pump = await rig.start_pump(topic_name)
    producer = AIOKafkaProducer(bootstrap_servers=rig.source.spec.bootstrap[0], transactional_id=topic_name)
    await producer.start()
    for number in range(6):
        await producer.begin_transaction()
        for _ in range(20):
            await producer.send(topic_name, f"transaction {number}".encode(), partition=0)
        await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
    await producer.stop()
    await rig.copied([pump])
    assert await assert_same(rig, topic_name) == 1_000 + 60
    assert rig.incidents == []
    assert job_status(pump).delivered == 1_060
    assert job_status(pump).committed == (await rig.source.end_offsets([(topic_name, 0)]))[topic_name, 0]


async def test_headers_are_kept_dropped_and_given_provenance_and_no_record_loops(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create_on_both_sides(rig, topic_name)
    (bootstrap,) = rig.source.spec.bootstrap
    been = f"east-aggregate/{topic_name}/0/7".encode()
    headers: list[list[tuple[str, bytes | None]]] = [
        [("keep", b"1"), ("secret", b"2"), ("keep", None)],
        [("switchyard-origin", b"west/t/1/5"), ("switchyard-route", b"other")],
        [("switchyard-origin", been)],
        [],
    ]
    async with producing(bootstrap) as producer:
        for each in headers:
            await producer.send_and_wait(topic_name, b"v", partition=0, headers=each)
    pump = await rig.start_pump(topic_name, headers={"drop": ["secret"], "provenance": True})
    await rig.copied([pump])
    route = ("switchyard-route", b"r")

    def origin(offset: int) -> tuple[str, bytes]:
        return "switchyard-origin", f"east-regional/{topic_name}/0/{offset}".encode()

    assert [found[3] for found in await rows(rig.target, topic_name)] == [
        (("keep", b"1"), ("keep", None), route, origin(0)),
        (("switchyard-origin", b"west/t/1/5"), route, origin(1)),
        (route, origin(3)),
    ]
    assert copying_status(pump).left_out == 1


@pytest.mark.usefixtures("unjoined")
async def test_limits_are_held(rig: ReplicaRig, topic_name: str) -> None:
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 200, max_batch_size=300)
    pump = await rig.start_pump(topic_name, limits={"messages_per_second": 30.0})
    await rig.until(lambda: pump.base > 20)
    assert pump.base < 200, "they take more than six seconds"
    slow = pump.runtime.definition
    fast = slow.model_copy(update={"spec": slow.spec.model_copy(update={"limits": type(slow.spec.limits)()})})
    assert pump.runtime.takes(fast)
    pump.runtime.change(fast)
    await rig.copied([pump])
    assert await assert_same(rig, topic_name) == 200


@pytest.mark.usefixtures("unjoined")
async def test_offset_syncs_are_true_and_emitted_at_the_beginning_by_count_and_when_idle(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create_on_both_sides(rig, topic_name)
    async with producing(rig.target.spec.bootstrap[0]) as other:
        for n in range(7):
            await other.send_and_wait(topic_name, b"another route's %d" % n, partition=0)
        await write(rig, topic_name, 1_000)
        checkpoint = {"records": 100, "every": "1s"}
        pump = await rig.start_pump(topic_name, checkpoint=checkpoint)
        await rig.copied([pump])
        assert rig.barriers[0] == (0, 0, 7), "the genesis"
        await rig.until(lambda: rig.barriers[-1] == (0, 1_000, 1_007))
        await other.send_and_wait(topic_name, b"and one more", partition=0)
        await rig.until(lambda: rig.barriers[-1] == (0, 1_000, 1_008))
    assert len(rig.barriers) >= 8, "by count"
    for _, source_end, target_end in rig.barriers[:-1]:
        assert target_end == source_end + 7
    rig.kill(pump)
    known = len(rig.barriers)
    successor = await rig.start_pump(topic_name, checkpoint=checkpoint)
    await write(rig, topic_name, 300)
    await rig.copied([successor])
    later = rig.barriers[known:]
    assert later
    assert later == sorted(later)
    if later[0] == (0, 1_000, 1_007):
        assert rig.stamped[known].stamp == rig.stamped[known - 1].stamp, "where the former lane ended"
        del later[0]
    assert all(target_end == source_end + 8 for _, source_end, target_end in later), (
        "1,000 are not emitted again"
    )


async def test_nothing_is_appended_while_the_lease_does_not_hold_nor_while_paused(
    rig: ReplicaRig, topic_name: str
) -> None:
    pump = await start_copying(rig, topic_name)
    rig.lease.expires_at_s = 0.0
    await write(rig, topic_name, 100)
    await asyncio.sleep(0.3)
    assert len(await rows(rig.target, topic_name)) == 100
    pump.pause(True)
    rig.lease.renewed(1e9)
    await asyncio.sleep(0.3)
    assert job_status(pump).state == "paused"
    assert len(await rows(rig.target, topic_name)) == 100
    pump.pause(False)
    await rig.copied([pump])
    assert await assert_same(rig, topic_name) == 200


async def test_every_copy_of_a_slow_flow_is_read_back_and_a_difference_is_reported_with_its_offsets(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 200, compression_type="lz4")
    pump = await rig.start_pump(topic_name)
    verifier = pump.runtime.verifier
    await rig.copied([pump])
    await rig.until(lambda: verifier.compared.total() == 200)
    assert verifier.differing.total() == 0
    assert rig.incidents == []

    data, count = batch_of(b"what is not there")
    verifier.add(pump.job, pump.target, 0, VerbatimCopy(data, count, 700, 701))
    verifier.add(pump.job, pump.target, 10_000, VerbatimCopy(data, count, 701, 702))
    await rig.until(lambda: len(rig.incidents) == 2)
    assert rig.kinds() == ["copy-differs"] * 2
    here = f"{topic_name}-0 in east-aggregate"
    assert here in rig.incidents[0][1]
    assert f"offsets [0, 1), copied from [700, 701) of {topic_name}-0" in rig.incidents[0][1]
    assert "ends before it" in rig.incidents[1][1]


async def test_a_record_removed_by_compaction_is_no_difference_and_a_changed_one_is(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create(rig.source, topic_name, 1)
    await create(rig.target, topic_name, 1, cleanup_policy="compact")
    async with producing(rig.source.spec.bootstrap[0]) as producer:
        for n in range(20):
            await producer.send(topic_name, b"v", key=b"%d" % n, partition=0, timestamp_ms=1_000)
    pump = await rig.start_pump(topic_name)
    verifier = pump.runtime.verifier
    await rig.copied([pump])
    await rig.until(lambda: verifier.compared.total() == 20)
    gone, count = batch_of(*[b"taken by the cleaner"] * 7)
    verifier.add(pump.job, pump.target, 0, VerbatimCopy(gone, count, 0, 7))
    await rig.until(lambda: not verifier.waiting)
    assert (verifier.compared.total(), rig.incidents) == (20, [])  # its bytes cannot be compared there
    other = [(0, (1_000, b"0", b"another value", ()))]
    verifier.add(pump.job, pump.target, 0, VerbatimCopy(gone, count, 0, 7, lambda: iter(other * 7)))
    await rig.until(lambda: rig.incidents)
    assert rig.kinds() == ["copy-differs"]
    assert "the record at 0 has other contents" in rig.incidents[0][1]


@pytest.mark.usefixtures("unjoined")
@pytest.mark.parametrize("provenance", [False, True], ids=["unchanged", "encoded again"])
async def test_a_byte_that_changes_on_the_way_is_reported_with_topic_partition_and_offsets(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch, provenance: bool
) -> None:
    """The copy's checksum in the destination's log is valid, but its contents differ."""
    append, altered = AppendLane.append, list[int]()

    async def append_altered(lane: AppendLane, data: Bytes, record_count: int) -> asyncio.Future[int]:
        at = bytes(data).find(b"the one")
        if at > HEADER_BYTES and not altered:
            data = bytes(data[:at]) + b"T" + bytes(data[at + 1 :])
            altered.append(record_count)
        return await append(lane, data, record_count)

    monkeypatch.setattr(AppendLane, "append", append_altered)
    await create_on_both_sides(rig, topic_name)
    async with producing(rig.target.spec.bootstrap[0]) as other:
        await other.send_and_wait(topic_name, b"another's", partition=0)
    for name in ("before", "the one", "behind"):
        async with producing(rig.source.spec.bootstrap[0]) as producer:
            await asyncio.gather(
                *[await producer.send(topic_name, f"{name} {n}".encode(), partition=0) for n in range(3)]
            )
    pump = await rig.start_pump(topic_name, headers={"provenance": provenance}, verify="all")
    verifier = pump.runtime.verifier
    await rig.copied([pump])
    await rig.until(lambda: not verifier.waiting)
    (count,) = altered
    assert verifier.differing[pump.job] == count
    assert verifier.compared[pump.job] == 9 - count
    ((kind, message),) = rig.incidents
    assert kind == "copy-differs"
    assert f"{topic_name}-0 in east-aggregate differs from what was sent: offsets [4, {4 + count})" in message
    assert f"copied from [3, {3 + count}) of {topic_name}-0" in message


@pytest.mark.usefixtures("unjoined")
async def test_a_record_that_goes_missing_before_it_is_a_copy_is_no_copy_left_out(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing behind the record is appended, and the job begins again before it."""
    missed: list[VerbatimCopy] = []

    def all_but_one(*fetched: Any) -> Iterator[VerbatimCopy]:
        for copy in copies(*fetched):
            if copy.source_start > 20 and not missed:
                missed.append(copy)
            else:
                yield copy

    monkeypatch.setattr("app.replicate.pump.partition.copies", all_but_one)
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 100, max_batch_size=300)
    pump = await rig.start_pump(topic_name)
    await rig.until(lambda: pump.lost and pump.base == missed[0].source_start)
    ((kind, message),) = rig.incidents
    assert kind == "replica-begins-again"
    assert f"ended at {missed[0].source_start}: an internal error" in message
    rig.kill(pump)
    await rig.copied([await rig.start_pump(topic_name)])
    assert await assert_same(rig, topic_name) == 100
