"""A destination with smaller limits gets the records that fit, in order; the others wait and are reported."""

from __future__ import annotations

import time

from app.kafka.client.topic_configs import alter
from app.replicate.model.destination_topic import ANY_AGE, NEWEST
from app.replicate.pump.status import job_status
from tests.kafka.conftest import create, producing
from tests.replicate.rig import ReplicaRig, definition, rows
from tests.replicate.source_topics import assert_same, write

HOUR_MS = 3_600_000


async def test_records_from_the_future_that_a_newer_broker_refuses_wait_alone_and_earlier_ones_are_copied(
    rig: ReplicaRig, topic_name: str
) -> None:
    """Kafka 4 accepts timestamps up to one hour ahead (KIP-1030), Kafka 3 accepted all."""
    await create(rig.source, topic_name, 1, message_timestamp_after_max_ms=ANY_AGE)
    await create(rig.target, topic_name, 1, message_timestamp_after_max_ms=str(HOUR_MS))
    (bootstrap,) = rig.source.spec.bootstrap
    now_ms = int(time.time() * 1000)
    async with producing(bootstrap, linger_ms=500) as producer:  # all in one batch
        sent = [
            await producer.send(
                topic_name, b"%d" % n, partition=0, timestamp_ms=now_ms + (n == 7) * 48 * HOUR_MS
            )
            for n in range(10)
        ]
        for future in sent:
            await future
    pump = await rig.start_pump(topic_name)
    await rig.until(lambda: rig.incidents)
    assert rig.kinds() == ["replica-stuck"]
    assert "offsets [7, 8)" in rig.incidents[0][1]
    assert NEWEST in rig.remedies[0]
    assert pump.base == 7, "the records that fit are copied, and none is passed over"
    assert [value for _, _, value, _ in await rows(rig.target, topic_name)] == [b"%d" % n for n in range(7)]
    await alter(rig.target, {topic_name: {NEWEST: ANY_AGE}})
    await rig.copied([pump])
    assert await assert_same(rig, topic_name) == 10
    assert job_status(pump).trouble == ""


async def test_a_verbatim_route_waits_at_a_batch_that_does_not_fit_until_it_may_divide_it(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create(rig.source, topic_name, 1)
    await create(rig.target, topic_name, 1, max_message_bytes="3000")
    await write(rig, topic_name, 20, "small", max_batch_size=1_000)
    pump = await rig.start_pump(topic_name, sync={"onSmallerLimits": "copy"})
    await rig.copied([pump])
    await write(rig, topic_name, 1_000, "large", max_batch_size=16_000)
    await rig.until(lambda: rig.incidents)
    assert rig.kinds() == ["replica-stuck"]
    assert "onSmallerLimits: divide" in rig.remedies[0]
    start, end = pump.stuck[0]
    assert end - start > 1, "the batch is whole"
    changed = definition(rig.source.name, rig.target.name, topic_name)
    assert pump.runtime.takes(changed), "the change applies at once"
    pump.runtime.change(changed)
    await rig.copied([pump])
    assert await assert_same(rig, topic_name) == 1_020
