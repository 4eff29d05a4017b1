"""Batches with wrong offsets, as any producer can send: all good records around them are read."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.append import own_offsets
from app.kafka.append.encoder import copies
from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.bounded_consumer import was_passed_over
from app.kafka.fetch.decoder import OpenBatch, RecordReader, UndecodableBatch, records_of
from app.kafka.fetch.deliveries import FetchedBatches
from app.kafka.records.batch import iter_batches
from app.kafka.records.scan import is_numbered, numbered
from tests.kafka import bounded
from tests.kafka.conftest import ENOUGH_S, create, fetched_until
from tests.kafka.fetch.test_decoder import fetched, read_all
from tests.kafka.odd_batches import EXTREMES, RECORDS_AT, append, batch, lying, odd, record
from tests.kafka.records.batches import make_batch, patched, zigzag

ODD = ((0, 1000, 2000), (5, 6, 7), (2, 1, 0), (0, 0, 0), (0, 1, (1 << 31) - 1), (-1, 0, 1), (0, 2, 1))
GOOD = [b"before", b"behind"]


def at(data: bytes | bytearray, base_offset: int) -> bytes:
    """The batch as a broker keeps it at this offset."""
    return patched(bytes(data), 0, ">q", base_offset)


def between(odd_one: bytes | bytearray, base_offset: int, count: int) -> FetchedBatches:
    """A response of a good record, the odd batch of `count` offsets, and a good one."""
    before = make_batch(base_offset, [(None, GOOD[0])])
    behind = make_batch(base_offset + 1 + count, [(None, GOOD[1])])
    data = before + at(odd_one, base_offset + 1) + behind
    return fetched(data, base_offset, base_offset + count + 2)


@pytest.mark.parametrize("deltas", ODD, ids=str)
@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_batch_is_read_while_its_offsets_rise_and_leave_room_for_the_rest(
    deltas: tuple[int, ...], limit: int
) -> None:
    records, (bad,) = read_all(RecordReader(between(lying(deltas), 10, len(deltas))), limit)
    believed = 0
    while deltas[believed] == believed:
        believed += 1
    assert [one.offset for one in records] == [10, *range(11, 11 + believed), 11 + len(deltas)]
    assert (bad.start, bad.end) == (11 + believed, 11 + len(deltas))
    assert bad.raw[RECORDS_AT:] == bytes(lying(deltas))[RECORDS_AT:]


@given(
    st.lists(st.integers(-3, 30) | st.sampled_from(EXTREMES), min_size=1, max_size=12),
    st.integers(0, 20),
    st.integers(1, 12),
)
def test_only_rising_offsets_within_the_batch_are_read(deltas: list[int], taken: int, limit: int) -> None:
    """`taken` offsets of the batch have no record, as after compaction."""
    data = patched(bytes(lying(deltas)), 23, ">i", len(deltas) - 1 + taken)
    records, bad = read_all(RecordReader(between(data, 0, len(deltas) + taken)), limit)
    end = 1 + len(deltas) + taken
    offsets = [one.offset for one in records]
    assert offsets == sorted(set(offsets))
    assert (offsets[0], offsets[-1]) == (0, end)
    middle = offsets[1:-1]
    assert middle == [1 + delta for delta in deltas[: len(middle)]]
    assert all(one < end for one in middle)
    if len(middle) < len(deltas):
        (unread,) = bad
        assert (unread.start, unread.end) == (max([1, *(one + 1 for one in middle)]), end)
        following = 1 + deltas[len(middle)]
        assert not unread.start <= following <= end - (len(deltas) - len(middle))
    else:
        assert bad == []


@given(st.lists(st.integers(-3, 30) | st.sampled_from(EXTREMES), min_size=1, max_size=300), st.binary())
async def test_copy_has_the_brokers_offsets_and_is_otherwise_unchanged(
    deltas: list[int], value: bytes
) -> None:
    rows = [record(delta, value + b"%d" % number, number * 7) for number, delta in enumerate(deltas)]
    content, mended = b"".join(rows), numbered(b"".join(rows), len(rows))
    assert is_numbered(content, len(rows)) == (deltas == list(range(len(rows)))) == (mended == content)
    assert is_numbered(mended, len(rows))
    assert mended == b"".join(
        record(number, value + b"%d" % number, number * 7) for number in range(len(rows))
    )
    assert not is_numbered(content + b"\0", len(rows))
    response = between(batch(rows), 0, len(rows))
    odd = await own_offsets.renumbered_batches(response)
    found = [
        (one.value, copy.source_start)
        for copy in copies(response, 1 << 20, None, odd)
        for one in records_of(next(iter_batches(at(copy.data, copy.source_start))))
    ]
    assert [one for one, _ in found] == [GOOD[0], *(value + b"%d" % n for n in range(len(rows))), GOOD[1]]
    assert list(odd) == ([1] if mended != content else [])


@pytest.mark.parametrize(("count", "size"), [(100, 19_000), (6_000, 100), (20_000, 3)])
async def test_batch_with_a_wrong_last_offset_is_read_once_at_the_brokers_offsets(
    count: int, size: int
) -> None:
    values = [b"%d" % number * size for number in range(count)]
    rows = [record(number, value) for number, value in enumerate(values[:-1])]
    assert is_numbered(b"".join([*rows, record(count - 1, values[-1])]), count)
    response = between(batch([*rows, record(count + 5_000, values[-1])]), 0, count)
    _, odd_one, _ = iter_batches(response.data)
    assert [(one.offset, one.value) for one in records_of(odd_one)] == list(enumerate(values, 1))
    copied = [
        one.value
        for copy in copies(response, 1 << 24, None, await own_offsets.renumbered_batches(response))
        for one in records_of(next(iter_batches(at(copy.data, copy.source_start))))
    ]
    assert copied == [GOOD[0], *values, GOOD[1]]


async def written(
    client: ClusterClient, topic: str, chance: random.Random
) -> tuple[dict[int, bytes], int, int]:
    """Good records by their offsets, the log's end, and how many odd batches the broker took."""
    good, taken, number = dict[int, bytes](), 0, 0

    async def sound() -> None:
        nonlocal number
        rows = [record(index, b"good %d" % (number + index)) for index in range(chance.choice((1, 3)))]
        answer = await append(client, topic, 0, batch(rows, chance.choice((0, 1))))
        assert answer.code == 0, answer
        for index in range(len(rows)):
            good[answer.base_offset + index] = b"good %d" % (number + index)
        number += len(rows)

    for deltas in ODD:
        await sound()
        taken += (await append(client, topic, 0, lying(deltas))).code == 0
    for _ in range(250):
        await sound()
        taken += (await append(client, topic, 0, odd(chance))).code == 0
    await sound()
    return good, max(good) + 1, taken


@pytest.mark.parametrize("seed", range(2))
async def test_every_good_record_around_any_accepted_batch_is_read(
    client: ClusterClient, topic_name: str, seed: int
) -> None:
    await create(client, topic_name, message_timestamp_type=("CreateTime", "LogAppendTime")[seed])
    good, end, taken = await written(client, topic_name, random.Random(seed))
    assert taken > len(ODD), "brokers check no offsets within an uncompressed batch"
    found, bad = dict[int, bytes | None](), list[UndecodableBatch]()
    ended = asyncio.Event()

    async def deliver(item: Any) -> None:
        reader = RecordReader(item)
        while not reader.exhausted:
            try:
                for one in reader.read(100):
                    assert one.offset not in found
                    found[one.offset] = one.value
            except UndecodableBatch as error:
                bad.append(error)
        item.release()
        if reader.next_offset >= end:
            ended.set()

    await fetched_until(ended, client, deliver, topic_name)
    assert good.items() <= found.items()
    lost = Counter(offset for one in bad for offset in range(one.start, one.end))
    assert set(lost.values()) == {1}
    assert not lost.keys() & found.keys()
    assert sorted([*lost, *found]) == list(range(end)), "each offset is read, or reported"


async def test_bounded_consumer_skips_records_with_wrong_offsets(
    client: ClusterClient, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither ends, nor takes a position beyond the log's end, nor reads an offset twice."""
    bounded.install(monkeypatch)
    await create(client, topic_name)
    good, end, _ = await written(client, topic_name, random.Random(7))
    consumer = AIOKafkaConsumer(
        enable_auto_commit=False, auto_offset_reset="none", **client.spec.aiokafka_options()
    )
    await consumer.start()
    part, found = TopicPartition(topic_name, 0), list[tuple[int, bytes | None]]()
    consumer.assign([part])
    consumer.seek(part, 0)
    async with asyncio.timeout(ENOUGH_S):
        while await consumer.position(part) < end:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += [(one.offset, one.value) for one in records]
            assert await consumer.position(part) <= end
    await consumer.stop()
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    assert good.items() <= dict(found).items()
    last = max(set(range(end)) - set(offsets))
    assert was_passed_over(topic_name, 0, last, last + 1)
    assert not was_passed_over(topic_name, 0, last, end)


def test_record_beyond_a_limit_is_reported_at_a_possible_offset() -> None:
    headers = b"".join(b"\x02a\x00" for _ in range(20_000))
    body = b"\0" + b"\0" + b"\x00" + b"\x01" + b"\x00" + b"\xc0\xb8\x02" + headers
    heavy = zigzag(len(body)) + body  # it says offset delta 0, where 1 can be
    data = at(batch([record(0, b"first"), heavy, record(2, b"last")]), 0)
    opened = OpenBatch(next(iter_batches(data)))
    assert [one.offset for one in opened.take(1)] == [0]
    with pytest.raises(ValueError, match="offset 0; possible are 1 to 1"):
        opened.take(10)
