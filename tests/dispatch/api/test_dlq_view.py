"""Looking into a dead letter queue of real Kafka: everything is shown once, bounded, and never trusted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.api import dlq_view
from app.dispatch.model import retry_headers as names
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.web.http.responses import ApiError
from tests.dispatch.dlq.queues import DeadLetterQueue


@pytest.fixture
async def queue(bootstrap: str, topic_name: str) -> AsyncIterator[DeadLetterQueue]:
    client = ClusterClient(ClusterSpec("east", (bootstrap,)))
    await client.start()
    yield DeadLetterQueue(bootstrap, topic_name, client)
    await client.stop()


async def every_page(queue: DeadLetterQueue, limit: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = ""
    for _ in range(100):
        page = await dlq_view.newest(queue.client, queue.workload, limit, cursor)
        assert len(page["items"]) <= limit
        items += page["items"]
        if page["next"] is None:
            return items
        cursor = page["next"]
    raise AssertionError("the pages do not end")


async def test_a_queue_that_does_not_exist_yet_is_empty(queue: DeadLetterQueue) -> None:
    sizes = await dlq_view.sizes(queue.client, queue.workload)
    assert (sizes["exists"], sizes["messages"], sizes["partitions"]) == (False, 0, [])
    assert (await dlq_view.newest(queue.client, queue.workload, 10, ""))["items"] == []


async def test_pages_show_every_dead_letter_once_though_timestamps_go_backwards(
    queue: DeadLetterQueue,
) -> None:
    await queue.create(3)
    async with AIOKafkaProducer(bootstrap_servers=queue.bootstrap) as producer:
        for number in range(60):
            at_ms = 1_700_000_000_000 + (number * 7919) % 60
            await producer.send(
                queue.workload.dlq_topic(), f"{number}".encode(), partition=number % 3, timestamp_ms=at_ms
            )
    assert (await dlq_view.sizes(queue.client, queue.workload))["messages"] == 60
    shown = [item["value"]["text"] for item in await every_page(queue, 7)]
    assert sorted(shown, key=int) == [str(number) for number in range(60)]


async def test_a_dead_letter_is_shown_with_its_origin_and_cut_to_the_size_of_a_page(
    queue: DeadLetterQueue,
) -> None:
    await queue.create(1, **{"max.message.bytes": str(16 << 20)})
    headers = [
        (names.ORIGIN_TOPIC, b"orders"), (names.ORIGIN_PARTITION, b"4"), (names.ORIGIN_OFFSET, b"77"),
        (names.REASON, b"not \xff today"), (names.CODE, b"INTERNAL"), (names.ATTEMPT, b"3"),
        *((f"own-{number}", b"x") for number in range(200)),
    ]  # fmt: skip
    value = "€".encode() * 1_500_000  # larger than a response, and 4096 falls into a character
    await queue.put(value, key=b"\x00\xff", headers=headers)
    await queue.put(None, key=b"")
    newest, oldest = (await dlq_view.newest(queue.client, queue.workload, 10, ""))["items"]
    assert newest["value"] is None
    assert newest["origin"]["topic"] is None
    assert oldest["origin"] == {"topic": "orders", "partition": "4", "offset": "77", "timestamp_ms": None}
    assert (oldest["reason"], oldest["code"], oldest["attempt"]) == ("not � today", "INTERNAL", "3")
    assert oldest["value"] == {"text": "€" * (dlq_view.MAX_SHOWN_BYTES // 3), "bytes": 4_500_000}
    assert oldest["key"] == {"base64": "AP8=", "bytes": 2}
    assert len(oldest["headers"]) <= dlq_view.MAX_SHOWN_HEADERS


async def test_a_queue_that_ends_with_a_transactions_marker_is_read_to_its_end(
    queue: DeadLetterQueue,
) -> None:
    await queue.create()
    async with AIOKafkaProducer(bootstrap_servers=queue.bootstrap, transactional_id=queue.topic) as producer:
        for number in range(3):
            async with producer.transaction():
                await producer.send(queue.workload.dlq_topic(), f"{number}".encode())
    shown = [item["value"]["text"] for item in await every_page(queue, 2)]
    assert shown == ["2", "1", "0"]


async def test_a_cursor_beyond_the_end_reads_what_is_there(queue: DeadLetterQueue) -> None:
    """As after the queue was deleted and made again; a read would wait for records that never come."""
    await queue.create()
    async with AIOKafkaProducer(bootstrap_servers=queue.bootstrap) as producer:
        await producer.send_and_wait(queue.workload.dlq_topic(), b"0")
    found = await dlq_view.newest(queue.client, queue.workload, 10, "0:999999999")
    assert [item["value"]["text"] for item in found["items"]] == ["0"]


@pytest.mark.parametrize("cursor", ["x", "0", "0:x", "9:1", "0:1,", "-1:2", "0:" + "9" * 30])
async def test_a_cursor_that_is_none_of_ours_is_refused(queue: DeadLetterQueue, cursor: str) -> None:
    await queue.create()
    with pytest.raises(ApiError, match="take the cursor from"):
        await dlq_view.newest(queue.client, queue.workload, 10, cursor)


timestamps = st.lists(st.integers(0, 20), max_size=12)


@given(st.lists(timestamps, max_size=4), st.integers(1, 5))
def test_pages_cover_everything_and_go_back_in_every_partition(queues: list[list[int]], limit: int) -> None:
    log = {
        partition: [{"partition": partition, "offset": o, "at_ms": at} for o, at in enumerate(times)]
        for partition, times in enumerate(queues)
    }
    ends = {partition: len(messages) for partition, messages in log.items()}
    total, seen = sum(ends.values()), []
    while any(ends.values()):
        starts = {p: max(0, end - limit) for p, end in ends.items() if end}
        page, ends = dlq_view.newest_first(
            {p: log[p][s : ends[p]] for p, s in starts.items()}, starts, ends, limit
        )
        assert 0 < len(page) <= limit
        seen += [(message["partition"], message["offset"]) for message in page]
    assert len(seen) == len(set(seen)) == total
    for partition in log:
        offsets = [offset for p, offset in seen if p == partition]
        assert offsets == sorted(offsets, reverse=True)


def test_the_newest_of_all_partitions_comes_first() -> None:
    log = {p: [{"partition": p, "offset": o, "at_ms": 10 * o + p} for o in range(3)] for p in range(2)}
    page, ends = dlq_view.newest_first(log, {0: 0, 1: 0}, {0: 3, 1: 3}, 3)
    assert [message["at_ms"] for message in page] == [21, 20, 11]
    assert ends == {0: 2, 1: 1}


@given(st.binary(max_size=30))
def test_bytes_are_text_only_when_they_are_utf_8(data: bytes) -> None:
    shown = dlq_view.readable(data)
    assert shown is not None
    assert shown["bytes"] == len(data)
    try:
        assert shown["text"] == data.decode("utf-8")
    except UnicodeDecodeError:
        assert "text" not in shown
    except KeyError:
        with pytest.raises(UnicodeDecodeError):
            data.decode("utf-8")


async def test_a_cluster_that_does_not_answer_is_no_empty_queue(
    queue: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.create()
    await queue.put(b"there")
    monkeypatch.setattr(dlq_view, "LETTER_READ_TIMEOUT_S", 0.001)
    with pytest.raises(asyncio.TimeoutError):
        await dlq_view.newest(queue.client, queue.workload, 10, "")
