"""Faust's clients outlast a broker that is away, or lies still, for longer than they would wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import faust
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaTimeoutError, TopicAuthorizationFailedError
from faust.types import TP

from app import patient_faust
from app.kafka.clusters import ClusterClient, ClusterSpec
from app.kafka.topics import TopicSpec, ensure_topics
from app.patient_faust import (
    PatientAIOKafkaProducer,
    PatientConsumerThread,
    PatientRecovery,
    PatientTableManager,
    PatientTransport,
)
from app.yard import Yard

CLUSTER = "east-aggregate"  # not the one other tests use at the same time
ENOUGH_S = 60.0
SOON_S = 0.05


class App(faust.App):
    """With these clients, of nothing else."""

    def _new_transport(self) -> PatientTransport:
        return PatientTransport(self.conf.broker_consumer, self)


def make_app() -> App:
    """Of a broker that is not there."""
    broker = "aiokafka://127.0.0.1:1"
    return App("patient", broker=broker, store="memory://", TableManager=PatientTableManager)


@asynccontextmanager
async def a_thread() -> AsyncIterator[PatientConsumerThread]:
    """Of a consumer that has one partition."""
    thread = make_app().consumer._thread  # type: ignore[attr-defined]
    assert isinstance(thread, PatientConsumerThread)
    thread._consumer = AIOKafkaConsumer(group_id="patient", bootstrap_servers="127.0.0.1:1")
    thread._consumer.assign([TopicPartition("here", 0)])
    try:
        yield thread
    finally:
        await thread._consumer.stop()


async def test_a_step_of_a_recovery_takes_as_long_as_it_takes() -> None:
    recovery = make_app().tables.recovery  # type: ignore[attr-defined]
    assert isinstance(recovery, PatientRecovery)
    await recovery._wait(asyncio.sleep(2 * SOON_S), timeout=SOON_S)  # Faust's gives the recovery up for good


async def test_a_commit_of_what_a_rebalance_has_taken_meanwhile_is_none() -> None:
    async with a_thread() as thread:
        assert await thread._commit({TP("elsewhere", 0): 7}) is False
        assert thread.crash_reason is None


async def test_a_question_about_changelogs_is_asked_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patient_faust, "RETRY_S", 0.0)
    tp = TP("changelog", 0)

    async def asked(*answers: Exception | Mapping[TP, int]) -> Mapping[TP, int]:
        left = list(answers)

        async def ask() -> Mapping[TP, int]:
            match left.pop(0):
                case Exception() as error:
                    raise error
                case answer:
                    return answer

        async with a_thread() as thread:
            return await thread._answered(ask, "where it ends")

    assert await asked(KafkaTimeoutError(), KafkaTimeoutError(), {tp: 7}) == {tp: 7}
    for final in (IllegalStateError(), TopicAuthorizationFailedError()):
        with pytest.raises(type(final)):
            await asked(final, {tp: 7})


async def test_nothing_that_was_given_to_the_producer_is_dropped_while_its_broker_lies_still(
    killable_yard: Yard, topic_name: str
) -> None:
    timeout_s, client = 1.0, ClusterClient(ClusterSpec(CLUSTER, (killable_yard.bootstrap(CLUSTER),)))
    await client.start()
    await ensure_topics(client, [TopicSpec(topic_name, 1)])
    await client.stop()
    producer: Any = PatientAIOKafkaProducer(
        bootstrap_servers=killable_yard.bootstrap(CLUSTER), request_timeout_ms=int(timeout_s * 1000)
    )
    await producer.start()
    try:
        await producer.send_and_wait(topic_name, b"before", partition=0)
        await asyncio.to_thread(killable_yard.pause, CLUSTER)
        sent = await producer.send(topic_name, b"meanwhile", partition=0)
        _, unanswered = await asyncio.wait([sent], timeout=5 * timeout_s)
        await asyncio.to_thread(killable_yard.resume, CLUSTER)
        assert unanswered == {sent}
        async with asyncio.timeout(ENOUGH_S):
            assert (await sent).offset > 0
    finally:
        await producer.stop()
