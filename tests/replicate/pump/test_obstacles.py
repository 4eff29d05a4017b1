"""A replica reports obstacles and waits for them: it passes over no record."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer

from app.dev.yard import Yard
from app.kafka.client.topic_configs import alter
from app.kafka.fetch.deliveries import LogGap
from app.kafka.records.checksum import crc32c
from app.kafka.records.verbatim_copy import VerbatimCopy
from app.kernel.troubles import TroubleSource
from app.replicate.pump.status import copying_status, job_status
from tests.kafka.conftest import create, producing
from tests.replicate.rig import ReplicaRig, replica_rig, rows
from tests.replicate.source_topics import (
    assert_same,
    batches_of,
    create_on_both_sides,
    recreate,
    start_copying,
    write,
)


async def test_a_batch_too_large_for_the_destination_is_divided_and_a_record_too_large_waits(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create(rig.source, topic_name, 1)
    await create(rig.target, topic_name, 1, max_message_bytes="3000")
    await write(rig, topic_name, 300, "some", max_batch_size=16_000)
    await write(rig, topic_name, 1, "x" * 1)
    (bootstrap,) = rig.source.spec.bootstrap
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(topic_name, bytes(range(256)) * 20, partition=0)
    await write(rig, topic_name, 100, "behind")
    pump = await rig.start_pump(topic_name)
    await rig.until(lambda: rig.incidents)
    assert rig.kinds() == ["replica-stuck"]
    assert "offsets [301, 302)" in rig.incidents[0][1]
    assert topic_name in rig.incidents[0][1]
    assert "max.message.bytes" in job_status(pump).trouble
    assert pump.base == 301, "nothing is passed over"
    await alter(rig.target, {topic_name: {"max.message.bytes": "1000000"}})
    await rig.copied([pump])
    assert await assert_same(rig, topic_name) == 402
    assert job_status(pump).trouble == ""


async def test_a_record_that_the_destination_refuses_waits_until_an_operator_skips_it(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create(rig.source, topic_name, 1)
    await create(rig.target, topic_name, 1, max_message_bytes="3000")
    (bootstrap,) = rig.source.spec.bootstrap
    await write(rig, topic_name, 10)
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(topic_name, bytes(range(256)) * 20, partition=0)
    await write(rig, topic_name, 10)
    pump = await rig.start_pump(topic_name)
    await rig.until(lambda: rig.incidents)
    assert pump.stuck == ((10, 11),)
    assert copying_status(pump).stuck == (10, 11)
    assert not pump.finish_by_operator(9, 10), "these offsets are copied"
    assert pump.finish_by_operator(10, 11)
    await rig.copied([pump])
    here = await rows(rig.source, topic_name)
    assert await rows(rig.target, topic_name) == here[:10] + here[11:]
    assert rig.kinds() == ["replica-stuck", "replica-skipped"]
    assert not pump.finish_by_operator(10, 11), "nothing waits any more"


async def test_a_damaged_batch_is_not_passed_over(rig: ReplicaRig, topic_name: str) -> None:
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 30, max_batch_size=400, compression_type="gzip")
    batches = await batches_of(rig.source, topic_name, 0)
    pump = await rig.start_pump(topic_name, fetches=False)
    first, second = batches[0][1], batches[0][1] + batches[1][1]
    rig.feed(pump, batches[0][0], 0, first)
    rig.feed(pump, batches[1][0], first, second, damage="its checksum does not match")
    rig.feed(pump, b"".join(data for data, _ in batches[2:]), second, 30)
    await rig.until(lambda: rig.incidents and not pump.in_flight)
    assert pump.base == first
    assert pump.finish_by_operator(first, second)
    await rig.until(lambda: pump.base == 30)
    here = await rows(rig.source, topic_name)
    assert await rows(rig.target, topic_name) == here[:first] + here[second:]


@pytest.mark.deep(minutes=0.3)
async def test_while_the_destination_is_away_nothing_is_lost_and_afterwards_all_is_there_once(
    killable_yard: Yard, topic_name: str
) -> None:
    """uReplicator committed after a failed send. Here the position stays until the destination has the
    records."""
    yard = killable_yard
    async with replica_rig(yard.bootstrap("east-regional"), yard.bootstrap("east-aggregate")) as rig:
        await create_on_both_sides(rig, topic_name)
        await write(rig, topic_name, 300)
        pump = await rig.start_pump(topic_name)
        await rig.copied([pump])
        await asyncio.to_thread(yard.kill, "east-aggregate")
        await write(rig, topic_name, 700, "while it is away")
        await rig.until(lambda: pump.in_flight > 0 and "append" in job_status(pump).trouble)
        assert pump.base == 300
        await asyncio.to_thread(yard.start, "east-aggregate")
        await rig.copied([pump])
        assert await assert_same(rig, topic_name) == 1_000
        assert job_status(pump).trouble == ""


async def test_offsets_that_the_source_lost_are_passed_over_once_all_records_before_them_are_copied(
    rig: ReplicaRig, topic_name: str
) -> None:
    pump = await start_copying(rig, topic_name)
    pump.skip(LogGap("k", topic_name, 0, 100, 150, "deleted"))
    await rig.until(lambda: pump.base == 150)
    pump.skip(LogGap("k", topic_name, 0, 140, 150, "deleted"))
    assert not pump.lost, "the gap was known"


async def test_a_gap_behind_missing_offsets_restarts_the_replica_and_a_draining_one_takes_none(
    rig: ReplicaRig, topic_name: str
) -> None:
    pump = await start_copying(rig, topic_name)
    pump.skip(LogGap("k", topic_name, 0, 120, 150, "deleted"))
    assert "the offsets before it ended at 100" in pump.lost
    pump.skip(LogGap("k", topic_name, 0, 100, 150, "deleted"))
    await rig.until(lambda: not pump.is_busy)
    assert pump.base == 100


async def test_a_replica_that_halts_at_a_gap_reports_it_until_an_operator_skips_it(
    rig: ReplicaRig, topic_name: str
) -> None:
    pump = await start_copying(rig, topic_name)
    pump.halt(LogGap("k", topic_name, 0, 100, 150, "deleted"), "offsets [100, 150) are gone")
    pump.troubles.show(TroubleSource.FETCH, "fetch: something else")
    assert (job_status(pump).state, job_status(pump).trouble) == ("halted", "offsets [100, 150) are gone")
    assert copying_status(pump).halted == pump.halted == "offsets [100, 150) are gone"
    assert pump.stuck == ((100, 150),)
    await write(rig, topic_name, 10)
    assert job_status(pump).oldest_ms == pump.copied_ms > 0, "its first record is not fetched, and has an age"
    assert not pump.finish_by_operator(100, 101)
    assert not pump.intake.wants_fetching(pump.base)
    assert pump.finish_by_operator(100, 150)
    await rig.until(lambda: pump.intake.wants_fetching(pump.base))
    assert (pump.halted, pump.base, list(pump.stuck)) == (None, 150, [])


@pytest.mark.usefixtures("unjoined")
async def test_a_fault_of_its_own_makes_the_replica_begin_again_and_skips_nothing(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uReplicator swallowed an exception, and with it a record."""
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 1_000)
    pump = await rig.start_pump(topic_name)
    send = pump._send
    calls = 0

    async def failing(copy: VerbatimCopy) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("a fault")
        await send(copy)

    monkeypatch.setattr(pump, "_send", failing)
    await rig.until(lambda: pump.lost)
    assert "a fault" in job_status(pump).trouble
    await rig.until(lambda: not pump.in_flight)
    assert pump.base < 1_000
    rig.kill(pump)
    pump = await rig.start_pump(topic_name)
    await rig.copied([pump])
    assert await assert_same(rig, topic_name) == 1_000


async def test_a_destination_that_is_recreated_while_copying_restarts_the_replica(
    rig: ReplicaRig, topic_name: str
) -> None:
    pump = await start_copying(rig, topic_name)
    await recreate(rig.target, topic_name)
    await rig.until(lambda: pump.lost)
    assert "recreated" in job_status(pump).trouble


async def test_another_log_of_the_source_begins_once_all_fetched_records_of_the_former_are_copied(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 3_000)
    pump = await rig.start_pump(topic_name)
    await rig.until(lambda: job_status(pump).fetched == 3_000)
    pump.skip(LogGap("k", topic_name, 0, 3_000, 0, "deleted and recreated", begun_anew=True))
    await rig.until(lambda: pump.reset is not None)
    assert pump.base == 3_000
    assert await assert_same(rig, topic_name) == 3_000


async def test_offsets_that_were_not_fetched_are_never_passed_over(rig: ReplicaRig, topic_name: str) -> None:
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 60, max_batch_size=300)
    batches = await batches_of(rig.source, topic_name, 0)
    pump = await rig.start_pump(topic_name, fetches=False)
    first, second = batches[0][1], batches[0][1] + batches[1][1]
    rig.feed(pump, batches[0][0], 0, first)
    rig.feed(pump, batches[2][0], second, second + batches[2][1])
    assert f"[{first}, {second}) was not fetched" in pump.lost
    await rig.until(lambda: not pump.is_busy)
    assert pump.base <= first


async def test_a_recreated_log_before_which_a_replica_halts_is_not_fetched_by_it_again(
    rig: ReplicaRig, topic_name: str
) -> None:
    """It would be fetched from a position in another log."""
    pump = await start_copying(rig, topic_name)
    pump.halt(LogGap("k", topic_name, 0, 100, 0, "recreated", begun_anew=True), "it is another")
    assert pump.intake.new_lineage_at == 0
    assert pump.finish_by_operator(100, 101)
    assert not pump.intake.wants_fetching(pump.base)
    await rig.until(lambda: pump.reset is not None)


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_one_record_that_the_destination_refuses_waits_and_is_skipped_alone(
    rig: ReplicaRig, topic_name: str, is_transactional: bool
) -> None:
    """The fault: nine good records waited for a tenth, and the printed remedy skipped them with it."""
    await create(rig.source, topic_name, 1)
    await create(rig.target, topic_name, 1, cleanup_policy="compact")
    (bootstrap,) = rig.source.spec.bootstrap
    keyless = {13, 14, 17}
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        linger_ms=500,
        enable_idempotence=True,
        transactional_id=topic_name if is_transactional else None,
    ) as producer:
        for start in (0, 10):  # markers, if any, lie between
            if is_transactional:
                await producer.begin_transaction()
            sent = [
                await producer.send(
                    topic_name, b"v%d" % n, key=None if n in keyless else b"k%d" % n, partition=0
                )
                for n in range(start, start + 10)
            ]
            await asyncio.gather(*sent)
            if is_transactional:
                await producer.commit_transaction()
    here = await rows(rig.source, topic_name)
    marker = int(is_transactional)
    pump = await rig.start_pump(topic_name)
    for first, behind in ((13, 15), (17, 18)):
        at = first + marker, behind + marker
        await rig.until(lambda at=at: pump.stuck == (at,))
        assert await rows(rig.target, topic_name) == [
            row for row, n in zip(here, range(first), strict=False) if n not in keyless
        ], "all records before it are copied"
        assert (
            f"offsets [{at[0]}, {at[1]}) wait: the destination refuses them with error 87"
            in job_status(pump).trouble
        )
        assert pump.finish_by_operator(*at)
    await rig.copied([pump])
    assert await rows(rig.target, topic_name) == [row for n, row in enumerate(here) if n not in keyless]
    assert rig.kinds() == ["replica-stuck", "replica-skipped"] * 2


async def test_a_batch_over_which_the_destination_fails_without_a_reason_can_be_skipped(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed data that the destination has to compress anew and cannot read: it answers -1 for ever."""
    monkeypatch.setattr("app.kafka.append.lane.UNEXPLAINED_S", 2.0)
    await create(rig.source, topic_name, 1)
    await create(rig.target, topic_name, 1, compression_type="lz4")
    (bootstrap,) = rig.source.spec.bootstrap
    for value in (b"broken", b"behind"):
        async with producing(bootstrap, compression_type="gzip", linger_ms=300) as producer:
            await asyncio.gather(
                *[await producer.send(topic_name, value * 50, partition=0) for _ in range(9)]
            )
    (broken, _), (behind, _) = await batches_of(rig.source, topic_name, 0)
    damaged = bytearray(broken)
    damaged[75:80] = bytes(5)
    damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4)
    pump = await rig.start_pump(topic_name, fetches=False)
    rig.feed(pump, bytes(damaged), 0, 9)
    rig.feed(pump, behind, 9, 18)
    await rig.until(lambda: pump.stuck == ((0, 9),))
    assert "the destination refuses them with error -1" in job_status(pump).trouble
    assert "UnknownError; see the leader's log" in job_status(pump).trouble
    assert pump.finish_by_operator(0, 9)
    await rig.until(lambda: pump.base == 18)
    assert [value for *_, value, _ in await rows(rig.target, topic_name)] == [b"behind" * 50] * 9
    assert "replica-skipped" in rig.kinds()
