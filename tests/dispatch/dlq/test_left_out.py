"""Dead letters without their values are merged with the value of another record, and never as null."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from app.dispatch.api.dlq_view import newest
from app.dispatch.dlq.letter import exported, read_letter
from app.dispatch.dlq.operation_progress import OperationTerms
from app.dispatch.dlq.reader import reading, scan
from app.dispatch.dlq.survey import foresee
from app.dispatch.model import retry_headers as names
from app.dispatch.model.retry_headers import MERGES, left_out_headers, read_value_places
from app.dispatch.move.copier import copy_topic
from app.kafka.append.producer import Producer
from tests.dispatch.dlq.queues import DeadLetterQueue, create, headers
from tests.kafka.conftest import delete_before

ZSTD = 4
LARGE = b"0123456789abcdef" * 1_250_000  # 20 MB, of which compression leaves some kB
OWN = [("own", b"as produced"), ("own", None)]


async def send(queue: DeadLetterQueue, *record: Any) -> None:
    producer = Producer(queue.client.spec)
    await producer.start()
    await producer.send(*record)
    await producer.stop()


async def put_original(queue: DeadLetterQueue, value: bytes | None, key: bytes | None = b"k") -> str:
    """The message in the workload's topic, at offset 0; the topic's id."""
    await create(queue.bootstrap, queue.topic, 1)
    await send(queue, queue.topic, key, value, OWN, 0, ZSTD)
    return (await queue.client.topic_ids([queue.topic]))[queue.topic]


async def put(queue: DeadLetterQueue, lacks: list[tuple[str, bytes | None]], key: bytes | None) -> None:
    """A dead letter that lacks its value, between two that do not."""
    await queue.create()
    await queue.fill([1])
    origin: list[tuple[str, bytes | None]] = []
    for place in read_value_places(dict(lacks)):
        values = (
            (names.ORIGIN_TOPIC, place.topic),
            (names.ORIGIN_PARTITION, place.partition),
            (names.ORIGIN_OFFSET, place.offset),
        )
        origin = [(name, str(value).encode()) for name, value in values]
    await send(queue, queue.workload.dlq_topic(), key, None, [*headers(5), *origin, *lacks])
    await queue.fill([2])


async def delete_all(queue: DeadLetterQueue) -> None:
    """Deletes the records of the workload's topic, as retention does."""
    await delete_before(queue.client, queue.topic, -1)


async def counted(queue: DeadLetterQueue, operation: str, **terms: Any) -> dict[str, int]:
    """The counts of a merge, which are those of its dry run."""
    chosen = OperationTerms(**terms)
    foreseen = (await foresee(queue.client, queue.workload, chosen, {}, 30))["counts"]
    done = (await queue.merge(operation, chosen)).counts()
    assert {what: count for what, count in done.items() if count} == {k: v for k, v in foreseen.items() if v}
    return done


@pytest.mark.parametrize("key", [b"k", None])
async def test_a_value_that_no_topic_took_is_merged_from_its_record(
    queue: DeadLetterQueue, key: bytes | None
) -> None:
    topic_id = await put_original(queue, LARGE)
    lacks_key = b"k" if key is None else None
    await put(queue, left_out_headers(LARGE, queue.topic, 0, 0, topic_id, lacks_key), key)
    assert (await counted(queue, "op"))["merged"] == 3
    first, large, last = await queue.merged()
    assert [first.value, last.value] == [b"1", b"2"]
    assert (large.key, large.value) == (b"k", LARGE)
    copied = dict(large.headers)
    assert [header for header in large.headers if header[0] == "own"] == OWN
    assert (copied[names.ORIGIN_OFFSET], copied[MERGES]) == (b"0", b"1")
    assert names.KEY_BYTES not in copied
    assert names.VALUE_BYTES not in copied
    await delete_all(queue)
    assert (await counted(queue, "later"))["before"] == 3, "also after the value is gone"


async def test_a_letter_of_more_than_a_request_takes_is_merged_and_moved_compressed(
    queue: DeadLetterQueue,
) -> None:
    """Where it does not compress, the merge topic refuses it, and it stays."""
    huge, noise = b"0123456789abcdef" * 2_500_000, os.urandom(34 * 1024 * 1024)
    topic = queue.workload.dlq_topic()
    await queue.create(1, **{"max.message.bytes": str(64 * 1024 * 1024)})
    for number, value in enumerate((huge, noise)):
        await send(queue, topic, b"k", value, headers(number), 0, ZSTD)
    counts = (await queue.merge("op", OperationTerms())).counts()
    assert (counts["merged"], counts["refused"]) == (1, 1)
    assert [one.value for one in await queue.merged()] == [huge]

    onto_itself = queue.client, queue.client, topic, {0: (0, 1)}
    assert await copy_topic(*onto_itself, lambda _: True, lambda _: None) == 1
    async with reading(queue.client, topic) as reader:
        original, _, copied = [one async for found, _ in reader.chunks(0, (0, 3), 1) for one in found]
    assert (copied.value, copied.timestamp_ms) == (huge, original.timestamp_ms)


async def test_a_letter_of_an_earlier_version_is_merged_from_its_original_record(
    queue: DeadLetterQueue,
) -> None:
    await put_original(queue, b"v" * 100)
    origin = [(names.ORIGIN_TOPIC, queue.topic.encode()), (names.ORIGIN_PARTITION, b"0"),
              (names.ORIGIN_OFFSET, b"0")]  # fmt: skip
    await queue.create()
    await queue.put(None, key=b"k", headers=[*origin, (names.VALUE_BYTES, b"100")])
    assert (await counted(queue, "op"))["merged"] == 1
    (merged,) = await queue.merged()
    assert (merged.key, merged.value) == (b"k", b"v" * 100)


@pytest.mark.parametrize(("is_later", "merged"), [(False, 1), (True, 0)])
async def test_another_message_at_the_place_of_an_earlier_letters_is_not_taken_for_it(
    queue: DeadLetterQueue, is_later: bool, merged: int
) -> None:
    """The other has the same key and length, in a recreated topic; earlier versions wrote no topic id."""
    await put_original(queue, b"another")
    (there,) = [one async for found, _ in scan(queue.client, queue.topic, {0: (0, 1)}) for one in found]
    written_ms = there.timestamp_ms - is_later
    origin = [(names.ORIGIN_TOPIC, queue.topic.encode()), (names.ORIGIN_PARTITION, b"0"),
              (names.ORIGIN_OFFSET, b"0"), (names.ORIGIN_TIMESTAMP, str(written_ms).encode())]  # fmt: skip
    await queue.create()
    await queue.put(None, key=b"k", headers=[*origin, (names.VALUE_BYTES, b"7")])
    counts = await counted(queue, "op")
    assert (counts["merged"], counts["left-out"]) == (merged, 1 - merged)


@pytest.mark.parametrize("topic", ["{}__billing__retry_9", "{}__billing__delayed"])
@pytest.mark.parametrize("is_copy", [True, False])
async def test_a_copy_with_the_same_origin_in_the_workloads_topics_is_read(
    queue: DeadLetterQueue, topic: str, is_copy: bool
) -> None:
    """Also of a tier that the definition no longer has. Where the copy is gone, the first message is read."""
    name = topic.format(queue.topic)
    await create(queue.bootstrap, name, 1)
    topic_id = await put_original(queue, b"value")
    origin = [(names.ORIGIN_TOPIC, queue.topic.encode()), (names.ORIGIN_PARTITION, b"0"),
              (names.ORIGIN_OFFSET, b"0")]  # fmt: skip
    of_another = [(one, b"7") if one == names.ORIGIN_OFFSET else (one, copied) for one, copied in origin]
    await queue.put(b"copy!", topic=name, key=b"k", headers=origin if is_copy else of_another)
    assert topic_id
    await queue.create()
    lacks = left_out_headers(b"value", name, 0, 0, "")
    await queue.put(None, key=b"k", headers=[*origin, *lacks])
    assert (await counted(queue, "op"))["merged"] == 1
    assert [one.value for one in await queue.merged()] == [b"copy!" if is_copy else b"value"]


async def test_many_letters_that_compress_well_are_read_within_bounds(queue: DeadLetterQueue) -> None:
    """40 letters of 20 MB are some kB in the log."""
    await queue.create(1)
    producer = Producer(queue.client.spec)
    await producer.start()
    sent = (producer.send(queue.workload.dlq_topic(), b"k", LARGE, headers(n), 0, ZSTD) for n in range(40))
    await asyncio.gather(*sent)
    await producer.stop()
    script = f"""
import asyncio, resource
from app.dispatch.api.dlq_view import newest
from app.dispatch.dlq.reader import scan
from app.kafka.client import aiokafka_patches
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from tests.dispatch.dlq.queues import of_topic

async def main():
    client = ClusterClient(ClusterSpec("east", ("{queue.bootstrap}",)))
    await client.start()
    workload = of_topic("{queue.topic}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    page = await newest(client, workload, 40, "")
    seen = [len(found) async for found, _ in scan(client, workload.dlq_topic(), {{0: (0, 40)}})]
    await client.stop()
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(len(page["items"]), sum(seen), grown_kb)

aiokafka_patches.install()
asyncio.run(main())
"""
    ran = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    shown, seen, grown_kb = map(int, (await ran.communicate())[0].split())
    assert (shown, seen) == (40, 40)
    assert grown_kb < 256 * 1024


async def test_a_tombstone_whose_headers_no_topic_took_is_merged_whole(queue: DeadLetterQueue) -> None:
    topic_id = await put_original(queue, None)
    await put(queue, left_out_headers(None, queue.topic, 0, 0, topic_id), b"k")
    assert (await counted(queue, "op"))["merged"] == 3
    _, tombstone, _ = await queue.merged()
    assert (tombstone.key, tombstone.value, list(tombstone.headers)[:2]) == (b"k", None, OWN)


Place = Callable[[str, str], tuple[bytes | None, str, int, int, str]]


@pytest.mark.parametrize(
    ("why", "place"),
    [
        ("another length", lambda topic, its: (b"vv", topic, 0, 0, its)),
        ("another topic's id", lambda topic, its: (b"v", topic, 0, 0, "x" * 22)),
        ("behind the end", lambda topic, its: (b"v", topic, 0, 1, its)),
        ("no such partition", lambda topic, its: (b"v", topic, 7, 0, its)),
        ("a topic of others", lambda topic, its: (b"v", f"{topic}-secrets", 0, 0, "")),
        ("no such topic", lambda topic, its: (b"v", "no-such-topic", 0, 0, "")),
        ("no topic at all", lambda topic, its: (b"v", "../etc", 0, 0, its)),
    ],
)
async def test_a_missing_value_is_counted_and_never_sent(
    queue: DeadLetterQueue, why: str, place: Place
) -> None:
    topic_id = await put_original(queue, b"v")
    await create(queue.bootstrap, f"{queue.topic}-secrets", 1)
    await queue.put(b"v", topic=f"{queue.topic}-secrets", key=b"k")
    await put(queue, left_out_headers(*place(queue.topic, topic_id)), b"k")
    counts = await counted(queue, "op")
    assert (counts["merged"], counts["left-out"]) == (2, 1), why
    assert await queue.numbers() == [1, 2]
    assert (await counted(queue, "later"))["left-out"] == 1


async def test_an_expired_value_differs_from_null_wherever_letters_are_shown(
    queue: DeadLetterQueue,
) -> None:
    topic_id = await put_original(queue, b"v")
    await delete_all(queue)
    await put(queue, left_out_headers(b"v", queue.topic, 0, 0, topic_id), b"k")
    await queue.put(None, key=b"gone", headers=headers(6))
    assert (await counted(queue, "op"))["left-out"] == 1

    page = await newest(queue.client, queue.workload, 10, "")
    shown = [(one["value"], one["left_out_bytes"]) for one in page["items"]]
    assert shown == [
        (None, None),
        ({"text": "2", "bytes": 1}, None),
        (None, 1),
        ({"text": "1", "bytes": 1}, None),
    ]


def test_a_value_counts_although_headers_say_that_it_is_missing() -> None:
    class Record:
        partition, offset, timestamp, key, value = 1, 2, 3, b"k", b"v"
        headers = left_out_headers(b"v" * 9, "orders", 0, 0, "")

    letter = read_letter(Record())
    assert (letter.value, letter.left_out_bytes, exported(letter)["left_out_bytes"]) == (b"v", None, None)
