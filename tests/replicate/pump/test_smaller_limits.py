"""A destination with smaller limits gets the records that fit, in order; the others wait and are reported."""

from __future__ import annotations

import time

from app.kafka.client.topic_configs import alter
from app.replicate.model.destination_topic import ANY_AGE, NEWEST
from tests.kafka.conftest import create, producing
from tests.replicate.rig import ReplicaRig, definition, rows
from tests.replicate.source_topics import assert_same, write

HOUR_MS = 3_600_000


async def test_records_from_the_future_that_a_newer_broker_refuses_wait_alone_and_earlier_ones_are_copied(
    stand: ReplicaRig, topic_name: str
) -> None:
    """Kafka 4 accepts timestamps up to one hour ahead (KIP-1030), Kafka 3 accepted all."""
    await create(stand.source, topic_name, 1, message_timestamp_after_max_ms=ANY_AGE)
    await create(stand.target, topic_name, 1, message_timestamp_after_max_ms=str(HOUR_MS))
    (bootstrap,) = stand.source.spec.bootstrap
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
    pump = await stand.start_pump(topic_name)
    await stand.until(lambda: stand.incidents)
    assert stand.kinds() == ["replica-stuck"]
    assert "offsets [7, 8)" in stand.incidents[0][1]
    assert NEWEST in stand.remedies[0]
    assert pump.base == 7, "the records that fit are copied, and none is passed over"
    assert [value for _, _, value, _ in await rows(stand.target, topic_name)] == [b"%d" % n for n in range(7)]
    await alter(stand.target, {topic_name: {NEWEST: ANY_AGE}})
    await stand.copied([pump])
    assert await assert_same(stand, topic_name) == 10
    assert pump.status().trouble == ""


async def test_a_route_that_copies_batches_as_they_are_waits_at_one_that_does_not_fit_until_it_may_divide_it(
    stand: ReplicaRig, topic_name: str
) -> None:
    await create(stand.source, topic_name, 1)
    await create(stand.target, topic_name, 1, max_message_bytes="3000")
    await write(stand, topic_name, 20, "small", max_batch_size=1_000)
    pump = await stand.start_pump(topic_name, sync={"onSmallerLimits": "copy"})
    await stand.copied([pump])
    await write(stand, topic_name, 1_000, "large", max_batch_size=16_000)
    await stand.until(lambda: stand.incidents)
    assert stand.kinds() == ["replica-stuck"]
    assert "onSmallerLimits: divide" in stand.remedies[0]
    start, end = pump.stuck[0]
    assert end - start > 1, "the batch is whole"
    changed = definition(stand.source.name, stand.target.name, topic_name)
    assert pump.runtime.takes(changed), "the change applies at once"
    pump.runtime.change(changed)
    await stand.copied([pump])
    assert await assert_same(stand, topic_name) == 1_020
