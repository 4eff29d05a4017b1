"""Batches with a wrong value in any field and a sound checksum, and a way to send them."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Sequence

from app.kafka.append.protocol import AppendAnswer, AppendRequest, answers_of
from app.kafka.client.cluster import ClusterClient
from app.kafka.records.checksum import crc32c
from app.kernel.clock import now_ms
from tests.kafka.records.batches import ATTRIBUTES_AT, ENCODERS, LAST_DELTA_AT, LENGTH_AT, make_batch, zigzag

FIRST_AT, MAX_AT, PRODUCER_AT, COUNT_AT, RECORDS_AT = 27, 35, 43, 57, 61
EXTREMES = (0, 1, -1, 2, 5, 63, 64, 1000, 8191, 8192, 1 << 20, (1 << 31) - 1, -(1 << 31), 1 << 31, (1 << 40))
TIMES = (-1, 0, -2, 1 << 62, (1 << 63) - 1, -(1 << 63), 10**18)


def record(
    offset_delta: int, value: bytes, timestamp_delta: int = 0, attributes: int = 0, key: bytes | None = None
) -> bytes:
    """A record of format v2 without headers."""
    body = bytes([attributes]) + zigzag(timestamp_delta) + zigzag(offset_delta)
    body += zigzag(-1) if key is None else zigzag(len(key)) + key
    body += zigzag(len(value)) + value + zigzag(0)
    return zigzag(len(body)) + body


def batch(records: Sequence[bytes], codec: int = 0, timestamp_ms: int | None = None) -> bytearray:
    """A batch of such records, as a producer without idempotence sends it."""
    time_ms = now_ms() if timestamp_ms is None else timestamp_ms
    found = bytearray(make_batch(0, timestamp_ms=time_ms)[:RECORDS_AT])
    content = b"".join(records)
    found += content if not codec else bytes(ENCODERS[codec](content))
    found[ATTRIBUTES_AT + 1] = codec
    struct.pack_into(">qq", found, FIRST_AT, time_ms, time_ms)
    struct.pack_into(">qhi", found, PRODUCER_AT, -1, -1, -1)
    struct.pack_into(">i", found, LAST_DELTA_AT, len(records) - 1)
    struct.pack_into(">i", found, COUNT_AT, len(records))
    return sealed(found)


def sealed(found: bytearray) -> bytearray:
    """The batch with its length and checksum set."""
    struct.pack_into(">i", found, LENGTH_AT, len(found) - 12)
    struct.pack_into(">i", found, 12, -1)
    struct.pack_into(">I", found, 17, crc32c(bytes(found[21:])))
    return found


def lying(deltas: Sequence[int], value: bytes = b"odd", key: bytes | None = None) -> bytearray:
    """An uncompressed batch whose records have these offset deltas."""
    return batch([record(delta, value, key=key) for delta in deltas])


def odd(chance: random.Random, value: bytes = b"odd", *, in_time: bool = True) -> bytearray:
    """A batch of records with this value, that lies somewhere; `in_time`: maybe in a timestamp.

    Brokers refuse most.
    """
    count = chance.choice((1, 2, 3, 3, 10))
    deltas = list(range(count))
    times = [0] * count
    match chance.randrange(8):
        case 0:
            chance.shuffle(deltas)
        case 1 | 2:
            for at in range(count):
                if chance.random() < 0.6:
                    deltas[at] = chance.choice(EXTREMES)
        case 3:
            deltas = [chance.choice((0, 5, -1))] * count
        case 4 if in_time:
            times[chance.randrange(count)] = chance.choice(EXTREMES)
        case _:
            pass
    attributes = chance.choice((0, 0, 0, 1, 0xFF))
    codec = chance.choice((0, 0, 0, 1, 4))
    found = batch(
        [record(delta, value, time, attributes) for delta, time in zip(deltas, times, strict=True)], codec
    )
    match chance.randrange(10):
        case 0:
            struct.pack_into(">i", found, COUNT_AT, chance.choice((0, 1, count + 1, count - 1, -1)))
        case 1:
            struct.pack_into(">i", found, LAST_DELTA_AT, chance.choice((0, count, 1000, -1, (1 << 31) - 1)))
        case 2:
            both = chance.choice((1, 2, count, count + 5, 100))
            struct.pack_into(">i", found, COUNT_AT, both)
            struct.pack_into(">i", found, LAST_DELTA_AT, both - 1)
        case 3 if in_time:
            struct.pack_into(">q", found, chance.choice((FIRST_AT, MAX_AT)), chance.choice(TIMES))
        case 4:
            found[ATTRIBUTES_AT + chance.randrange(2)] ^= 1 << chance.randrange(8)
        case 5:
            struct.pack_into(">qhi", found, PRODUCER_AT, chance.choice((5, -2)), 0, chance.choice((0, -1, 7)))
        case 6:
            struct.pack_into(">q", found, 0, chance.choice((1, -1, 10**12)))
        case 7:
            found += bytes(chance.randrange(1, 5))
        case _:
            pass
    return sealed(found)


async def append(client: ClusterClient, topic: str, partition: int, data: bytearray) -> AppendAnswer:
    """Sends the bytes unchanged; returns the broker's answer."""
    async with asyncio.timeout(60):  # a topic that was made a moment ago may have none yet
        while (node := await client.leader(topic, partition)) is None:  # noqa: ASYNC110 - the cluster's news
            await asyncio.sleep(0.05)
    request = AppendRequest({topic: [(partition, data)]}, 10_000)
    return answers_of(await client.send(node, request))[topic, partition]
