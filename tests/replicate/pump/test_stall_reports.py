"""A stalled replica is reported with its cause, and its first record has an age."""

from __future__ import annotations

import time

import pytest
from aiokafka import AIOKafkaProducer

from app.kernel.fencing import LogId
from app.replicate.destination import session
from app.replicate.destination.session import DESTINATION_RECREATED, NOT_SAVED
from app.replicate.pump.status import UNREAD_S, check_progress, job_status
from tests.replicate.rig import ReplicaRig
from tests.replicate.source_topics import create_on_both_sides, start_copying, write

ANOTHER = LogId("", "AAAAAAAAAAAAAAAAAAAAAA")


async def test_a_hanging_transaction_is_reported_and_records_behind_it_have_an_age(
    rig: ReplicaRig, topic_name: str
) -> None:
    pump = await start_copying(rig, topic_name)
    producer = AIOKafkaProducer(bootstrap_servers=rig.source.spec.bootstrap[0], transactional_id=topic_name)
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait(topic_name, b"held back", partition=0)
        await rig.until(lambda: pump.high_watermark == 101)
        assert (pump.base, pump.intake.is_empty) == (100, True)
        assert 0 < job_status(pump).oldest_ms == pump.copied_ms
        check_progress(pump, time.monotonic())
        assert rig.incidents == []
        check_progress(pump, time.monotonic() + UNREAD_S + 1)
        ((kind, message),) = rig.incidents
        assert (kind, "[100, 101)" in message) == ("replica-no-progress", True)
        assert "a transaction may be open" in message
        await producer.commit_transaction()
    finally:
        await producer.stop()
    await rig.copied([pump])
    assert job_status(pump).oldest_ms == -1


async def test_an_unsaved_state_is_not_blamed_on_the_destination(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SNAPSHOT_TIMEOUT_S", 0.0)
    await create_on_both_sides(rig, topic_name)
    rig.saves = False
    pump = await rig.start_pump(topic_name)
    await write(rig, topic_name, 10)
    await rig.until(lambda: job_status(pump).trouble == NOT_SAVED)
    assert job_status(pump).oldest_ms > 0
    check_progress(pump, time.monotonic() + UNREAD_S)
    assert [NOT_SAVED in message for _, message in rig.incidents] == [True]
    rig.saves = True
    await rig.copied([pump])
    assert job_status(pump).trouble == ""


async def test_a_recreated_destination_counts_as_not_truncated(rig: ReplicaRig, topic_name: str) -> None:
    pump = await start_copying(rig, topic_name)
    pump.session._target_end, pump.session.log = 1_000, ANOTHER
    await write(rig, topic_name, 10)
    await rig.until(lambda: pump.lost)
    assert pump.lost == DESTINATION_RECREATED
    assert "destination-truncated" not in rig.kinds()


async def test_a_recreated_destination_is_noticed_while_its_end_cannot_be_read(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump = await start_copying(rig, topic_name)

    async def fails() -> None:
        raise TimeoutError

    monkeypatch.setattr(pump.runtime, "_idle_barriers", fails)
    pump.session.log = ANOTHER
    await rig.until(lambda: pump.lost == DESTINATION_RECREATED)
