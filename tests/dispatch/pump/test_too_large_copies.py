"""Messages that retry topics or the DLQ refuse get their attempts in place, and their letters name the
missing parts.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from aiokafka.errors import CorruptRecordException

from app.dev.demo.traffic import read_all
from app.dev.yard import Yard
from app.dispatch.model import retry_headers as names
from app.dispatch.pump import partition
from app.kafka.append.lone_batch import ZSTD
from app.kafka.append.producer import Producer, RecordTooLarge
from app.kafka.client.aiokafka_patches import InvalidRecordError
from switchyard.receiver import Message, Retry, Stash
from tests.dispatch.pump.rig import ENOUGH_S, TOPIC, DispatchRig, dispatch_rig, numbers
from tests.kafka.conftest import connected, create

TIERS = [{"delay": "10ms", "attempts": 2}, {"delay": "20ms", "attempts": 1}]
LARGE = b"x" * 2_000
MANY_HEADERS = [(f"h{n}", b"y" * 1_000) for n in range(100)]


def refuse(_: Message) -> Stash:
    return Stash()


async def test_a_message_that_no_retry_topic_takes_gets_its_attempts_in_place_and_others_flow() -> None:
    def fails(message: Message) -> Retry | None:
        return Retry() if message.value == LARGE else None

    async with dispatch_rig(fails, retry=TIERS) as rig:
        rig.copied.most_bytes = 1_000
        pump = rig.pump()
        pump.topic_id = "an-id"
        rig.feed(pump, [(b"k", LARGE)], headers=[("own", b"kept")], codec=ZSTD)
        rig.feed(pump, numbers(50))
        await rig.idle()

    # One attempt in the topic, two and one of the tiers, each with its own retry count.
    assert rig.values()[LARGE] == 4
    retry_counts = [message.retry_count for message in rig.seen if message.value == LARGE]
    assert retry_counts == [0, 1, 2, 3]
    assert all(count == 1 for value, count in rig.values().items() if value != LARGE)
    assert Counter(rig.copied.refused).keys() == {
        *rig.runtime.settings.retry_topics, rig.runtime.settings.dlq_topic
    }  # fmt: skip
    ((topic, key, value, headers),) = rig.copied.records
    assert (topic, key, value) == (rig.runtime.settings.dlq_topic, b"k", None)
    assert headers["own"] == b"kept"
    assert headers[names.VALUE_BYTES] == b"2000"
    assert headers[names.VALUE_AT] == f"{TOPIC}/0/0/an-id".encode()
    assert headers[names.ATTEMPT] == b"4"
    assert rig.copied.codecs == [ZSTD]


def in_place(rig: DispatchRig) -> tuple[int, list[int]]:
    """How often `LARGE` was delivered, and each retry count; every other message was delivered once."""
    assert all(count == 1 for value, count in rig.values().items() if value != LARGE)
    return rig.values()[LARGE], [message.retry_count for message in rig.seen if message.value == LARGE]


@pytest.mark.parametrize("refusal", [RecordTooLarge, InvalidRecordError, CorruptRecordException])
async def test_a_message_that_a_retry_topic_refuses_for_any_reason_gets_its_attempts_in_place(
    refusal: type[Exception],
) -> None:
    """Brokers before Kafka 2.4 answer CORRUPT_MESSAGE for a record without a key in a compacted topic."""

    def fails(message: Message) -> Retry | None:
        return Retry() if message.value == LARGE else None

    async with dispatch_rig(fails, retry=TIERS) as rig:
        rig.copied.keyless = dict.fromkeys(rig.runtime.settings.retry_topics, refusal("not as a copy"))
        rig.feed(rig.pump(), [(None, LARGE), *numbers(50)])
        await rig.idle()

    assert in_place(rig) == (4, [0, 1, 2, 3])
    ((topic, _, value, headers),) = rig.copied.records
    assert (topic, value, headers[names.ATTEMPT]) == (rig.runtime.settings.dlq_topic, LARGE, b"4")


class PrefixedCopies:
    """Real copies, in topics that no other test uses."""

    def __init__(self, producer: Producer, prefix: str) -> None:
        self._producer, self._prefix = producer, prefix

    async def send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[names.Header],
        partition: int | None = None, codec: int = 0,
    ) -> None:  # fmt: skip
        await self._producer.send(f"{self._prefix}-{topic}", key, value, headers, partition, codec)


async def test_on_a_real_broker_a_message_that_a_compacted_retry_topic_refuses_is_tried_in_place(
    yard: Yard, topic_name: str
) -> None:
    def fails(message: Message) -> Retry | None:
        return Retry() if message.value == LARGE else None

    bootstrap = yard.bootstrap("east-regional")
    async with connected(bootstrap) as client:
        producer = Producer(client.spec)
        await producer.start()
        async with dispatch_rig(fails, copies=PrefixedCopies(producer, topic_name), retry=TIERS) as rig:
            for topic in rig.runtime.settings.retry_topics:
                await create(client, f"{topic_name}-{topic}", cleanup_policy="compact")
            letters = await create(client, f"{topic_name}-{rig.runtime.settings.dlq_topic}")
            rig.feed(rig.pump(), [(None, LARGE), *numbers(50)])
            await rig.idle()
        await producer.stop()

    assert in_place(rig) == (4, [0, 1, 2, 3])
    (letter,) = await read_all(bootstrap, letters)
    assert (letter.value, dict(letter.headers)[names.ATTEMPT]) == (LARGE, b"4")


@pytest.mark.parametrize(
    ("key", "own", "lacks_key"),
    [(b"k", [("h", b"y")], False), (b"k", MANY_HEADERS, True), (b"k" * 3_000, [("h", b"y")], True)],
)
async def test_a_dead_letter_leaves_out_no_more_than_it_must(
    key: bytes, own: list[tuple[str, bytes | None]], lacks_key: bool
) -> None:
    async with dispatch_rig(refuse) as rig:
        rig.copied.most_bytes = 2_000
        pump = rig.pump()
        rig.feed(pump, [(key, LARGE)], headers=own)
        await rig.idle()

    ((_, found, value, headers),) = rig.copied.records
    assert (value, headers[names.VALUE_BYTES]) == (None, b"2000")
    assert found == (None if lacks_key else key)
    assert headers.get(names.KEY_BYTES) == (str(len(key)).encode() if lacks_key else None)
    assert (own[0][0] in headers) != lacks_key
    assert b"too large for a copy" in (headers[names.REASON] or b"")


@pytest.mark.parametrize("stash", ["retry", "dlq"])
async def test_a_blocked_head_that_no_retry_topic_takes_makes_room(stash: str) -> None:
    """Also a head that waits for an attempt in place while the pump cannot read on."""

    async def handle(message: Message) -> Retry | None:
        return Retry() if message.value == LARGE else None

    spec: dict[str, Any] = {"retry": [{"delay": "1h", "attempts": 3}], "headOfLine": {"stash": stash}}
    async with dispatch_rig(handle, **spec) as rig:
        rig.copied.most_bytes = 1_000
        pump = rig.pump(capacity=20)
        rig.feed(pump, [(b"k", LARGE)])
        await rig.until(lambda: rig.copied.refused != [])
        rig.feed(pump, numbers(100, 1))
        async with asyncio.timeout(ENOUGH_S):
            while pump.tracker.base < 101:
                pump.free_head(time.monotonic())
                await asyncio.sleep(0.02)

    ((topic, _, value, headers),) = rig.copied.records
    assert (topic, value) == (rig.runtime.settings.dlq_topic, None)
    assert b"head of line" in (headers[names.REASON] or b"")


async def test_a_message_that_waits_for_an_attempt_in_place_is_no_blocked_head_while_others_flow() -> None:
    def fails(message: Message) -> Retry | None:
        return Retry() if message.value == LARGE else None

    spec: dict[str, Any] = {"retry": [{"delay": "1s", "attempts": 2}], "headOfLine": {"after": "300ms"}}
    async with dispatch_rig(fails, **spec) as rig:
        rig.copied.most_bytes = 1_000
        pump = rig.pump(capacity=10_000)
        rig.feed(pump, [(b"k", LARGE)])
        number = 0
        while pump.tracker.base == 0:
            number += 1
            rig.feed(pump, numbers(1, number))
            pump.free_head(time.monotonic())
            await asyncio.sleep(0.02)
        await rig.idle()

    assert rig.values()[LARGE] == 3
    assert rig.copied.records[0][3][names.ATTEMPT] == b"3"


async def test_messages_that_wait_in_place_leave_room_to_read_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "HELD_BYTES", 3 * len(LARGE))

    def fails(message: Message) -> Retry | None:
        return Retry() if message.value == LARGE else None

    async with dispatch_rig(fails, retry=[{"delay": "1h", "attempts": 1}]) as rig:
        rig.copied.most_bytes = 1_000
        pump = rig.pump()
        rig.feed(pump, [(None, LARGE)] * 5 + numbers(50))
        await rig.until(lambda: pump.delivered == 50 and len(rig.copied.records) == 3)
        assert {topic for topic, *_ in rig.copied.records} == {rig.runtime.settings.dlq_topic}
        assert pump.tracker.unfinished == 2


async def test_without_a_dlq_a_message_that_no_retry_topic_takes_is_tried_for_ever() -> None:
    answers: list[float] = []

    def fails_at_first(_: Message) -> Retry | None:
        answers.append(time.monotonic())
        return Retry() if len(answers) < 9 else None

    async with dispatch_rig(fails_at_first, retry=TIERS, dlq={"enabled": False}) as rig:
        rig.copied.most_bytes = 1_000
        pump = rig.pump()
        rig.feed(pump, [(None, LARGE)])
        await rig.idle()

    assert len(answers) == 9
    assert rig.copied.records == []


@pytest.mark.parametrize("codec", [0, 1, ZSTD])
async def test_copies_are_compressed_like_their_source(codec: int) -> None:
    async with dispatch_rig(refuse) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(20), codec=codec)
        await rig.idle()

    assert rig.copied.codecs == [codec] * 20
