"""The stream's client with good and bad receivers: each message gets one result."""

from __future__ import annotations

import asyncio

import pytest

from app.dispatch.push.stream.client import METHOD
from tests.dispatch.push.grpc_servers import ENOUGH_S, ReceiverAddress, stream_channel
from tests.dispatch.push.stream_servers import (
    ReceiverStream,
    StreamRecord,
    hold,
    rows,
    start_stream_server,
    streaming,
    take_everything,
)

pytestmark = pytest.mark.each_transport

OK, CANCELLED, DEADLINE_EXCEEDED, UNIMPLEMENTED, UNAVAILABLE = 0, 1, 4, 12, 14
FLOOD = 40  # messages of 1 MiB: more than windows and buffers hold


async def test_messages_arrive_in_order_with_numbers_without_gaps() -> None:
    seen: list[tuple[int, int, int]] = []

    async def note(stream: ReceiverStream) -> None:
        await stream.accept(1 << 40)
        while len(seen) < 3_000:
            request = await stream.request()
            assert request is not None
            for batch in request.batches:
                assert batch.first_delivery == len(seen)
                seen.extend(
                    (batch.partition, batch.base_offset + message.offset_delta, batch.retry_count)
                    for message in batch.messages
                )
        await stream.say(results={"acknowledged": [{"start": 0, "end": 3_000}]})
        await hold(stream)

    async with streaming(note) as sender:
        await sender.connected()
        for partition in range(3):
            sender.send(rows(1_000), partition=partition, retry_count=partition)
        await sender.all_reported()

    assert seen == [(partition, offset, partition) for partition in range(3) for offset in range(1_000)]
    assert set(sender.codes()) == {OK}
    assert sender.target.supported is True


async def test_a_batch_gets_the_receivers_result_for_each_delivery() -> None:
    async def judge(stream: ReceiverStream) -> None:
        await stream.accept(100)
        await stream.messages(10)
        await stream.say(
            results={
                "failed": [{"deliveries": {"start": 9, "end": 10}, "code": 99, "message": "x" * 999}],
                "skipped": [{"start": 2, "end": 3}],
                "acknowledged": [{"start": 0, "end": 2}],
            }
        )
        await stream.say(
            results={
                "retried": [
                    {"deliveries": {"start": 3, "end": 5}, "after_ms": 2_500, "reason": "busy"},
                    {"deliveries": {"start": 5, "end": 6}},
                ],
                "stashed": [{"deliveries": {"start": 6, "end": 7}, "reason": "kaputt: ü"}],
                "failed": [
                    {"deliveries": {"start": 7, "end": 8}, "code": 14},
                    {"deliveries": {"start": 8, "end": 9}},
                ],
            }
        )
        await hold(stream)

    async with streaming(judge) as sender:
        sender.send(rows(10))
        await sender.all_reported()

    results = [sender.results[0, index] for index in range(10)]
    assert [(result.code, result.action, result.retry_after_s) for result in results] == [
        (0, None, None), (0, None, None), (0, "Skip", None), (8, "Retry", 2.5), (8, "Retry", 2.5),
        (8, "Retry", None), (9, "Stash", None), (14, None, None), (2, None, None), (99, None, None),
    ]  # fmt: skip
    assert results[3].details == "busy"
    assert results[6].details == "kaputt: ü"
    assert results[9].details == "x" * 500


async def test_repeated_unexpected_and_senseless_answers_change_nothing() -> None:
    async def babble(stream: ReceiverStream) -> None:
        await stream.accept(100)
        await stream.messages(4)
        await stream.say(results={"acknowledged": [{"start": 3, "end": 4}, {"start": 1, "end": 2}]})
        await stream.say(results={"stashed": [{"deliveries": {"start": 0, "end": 4}, "reason": "late"}]})
        await stream.say(
            results={
                "acknowledged": [{"start": 0, "end": 1 << 63}, {"start": 7, "end": 2}, {"start": 9, "end": 9}]
            },
            credit={"deliveries": 5, "bytes": 0},  # less than before: credit does not shrink
        )
        await stream.context.write(b"\xa2\x06\x03abc")  # a field from the future, and nothing else
        assert await stream.messages(96) == list(range(4, 100))
        await stream.say(results={"acknowledged": [{"start": 4, "end": 100}]})
        await hold(stream)

    async with streaming(babble) as sender:
        sender.send(rows(4))
        await sender.all_reported()
        sender.send(rows(100)[4:])
        await sender.all_reported()

    assert sender.codes() == [9, OK, 9, OK]
    assert set(sender.codes(1)) == {OK}


async def test_nothing_is_sent_beyond_the_credit_in_deliveries() -> None:
    counts: list[int] = []
    go_on = asyncio.Event()

    async def stingy(stream: ReceiverStream) -> None:
        await stream.accept(7)
        counts.append(len(await stream.messages(7)))
        more = asyncio.create_task(stream.messages(1))
        await go_on.wait()
        assert not more.done()
        await stream.say(
            results={"acknowledged": [{"start": 0, "end": 7}]}, credit={"deliveries": 10, "bytes": 1 << 40}
        )
        counts.append(len(await more))
        await stream.say(
            results={"acknowledged": [{"start": 7, "end": 10}]}, credit={"deliveries": 99, "bytes": 1 << 40}
        )
        counts.append(len(await stream.messages(10)))
        await stream.say(results={"acknowledged": [{"start": 10, "end": 20}]})
        await hold(stream)

    async with streaming(stingy) as sender:
        await sender.connected()
        assert sender.target.room == 7
        sender.send(rows(20))
        await sender.until(lambda: counts)
        await asyncio.sleep(0.1)  # time for a message too many
        assert sender.target.room == 0
        go_on.set()
        await sender.all_reported()

    assert counts == [7, 3, 10]


async def test_nothing_is_sent_beyond_the_credit_in_bytes_but_one_message_when_nothing_is_in_flight() -> None:
    size, sent = 5_000, 0
    offsets: list[int] = []
    credit = size

    async def stingy(stream: ReceiverStream) -> None:
        nonlocal sent, credit
        await stream.accept(1 << 40, size)
        done = 0
        while done < 40:
            request = await stream.request()
            assert request is not None
            sent += request.ByteSize()
            count = sum(len(batch.messages) for batch in request.batches)
            offsets.extend(
                batch.base_offset + message.offset_delta
                for batch in request.batches
                for message in batch.messages
            )
            assert sent <= credit or count == 1
            done += count
            credit = sent + size
            await stream.say(
                results={"acknowledged": [{"start": 0, "end": done}]},
                credit={"deliveries": 1 << 40, "bytes": credit},
            )
        await hold(stream)

    async with streaming(stingy) as sender:
        records = [StreamRecord(offset, bytes(8_000 if offset % 10 == 3 else 700)) for offset in range(40)]
        sender.send(records)
        await sender.all_reported()

    assert offsets == list(range(40))
    assert set(sender.codes()) == {OK}


async def test_a_hundred_thousand_messages_get_exactly_one_result_each() -> None:
    async with streaming(take_everything) as sender:
        await sender.connected()
        left = 400
        while left:
            while left and sender.target.room >= 250:
                sender.send(rows(250, bytes(200)), partition=left % 8)
                left -= 1
            await asyncio.sleep(0)
        await sender.all_reported()

    assert len(sender.reported) == 100_000
    assert {result.code for result in sender.results.values()} == {OK}


async def test_a_message_of_ten_megabytes_is_sent_and_one_beyond_the_receivers_limit_is_too_large() -> None:
    limit = 10 * 1024 * 1024 + 1_000

    async def limited(stream: ReceiverStream) -> None:
        await stream.accept(1 << 40, 1 << 40, limit)
        offsets = await stream.messages(4)
        assert offsets == [0, 1, 3, 4]
        await stream.say(results={"acknowledged": [{"start": 0, "end": 4}]})
        await hold(stream)

    async with streaming(limited) as sender:
        sizes = [5, 10 * 1024 * 1024, limit, 5, 5]
        sender.send([StreamRecord(offset, bytes(size)) for offset, size in enumerate(sizes)])
        await sender.all_reported()

    assert sender.codes() == [OK, OK, 8, OK, OK]
    assert [sender.results[0, index].too_large for index in range(5)] == [False, False, True, False, False]


async def test_a_receiver_with_a_lower_limit_than_it_names_loses_one_stream_and_no_message() -> None:
    async with streaming(take_everything, max_bytes=100_000) as sender:
        sender.send([StreamRecord(offset, bytes(300_000 if offset == 3 else 20)) for offset in range(8)])
        await sender.all_reported()
        assert sender.results[0, 3].too_large
        for index in range(8):
            if sender.results[0, index].code == UNAVAILABLE:
                sender.send([StreamRecord(index, b"again")])
        sender.send(rows(2_000, bytes(200)))
        sender.send([StreamRecord(0, bytes(300_000))])
        await sender.all_reported()

    assert len(sender.lost) == 1
    assert set(sender.codes(len(sender.batches) - 2)) == {OK}
    assert sender.results[len(sender.batches) - 1, 0].too_large


async def test_data_that_cannot_be_encoded_is_a_local_error_and_harms_no_other() -> None:
    async with streaming(take_everything) as sender:
        records = rows(5)
        records[2].headers = [("\ud800", b"")]
        sender.send(records)
        await sender.all_reported()

    assert sender.codes() == [OK] * 5
    assert [sender.results[0, index].local_error is None for index in range(5)] == [
        True,
        True,
        False,
        True,
        True,
    ]


async def test_a_message_without_a_result_in_time_is_given_up_and_canceled_at_the_receiver() -> None:
    canceled: list[tuple[int, int]] = []

    async def forget_some(stream: ReceiverStream) -> None:
        await stream.accept(100)
        await stream.messages(5)
        await stream.say(results={"acknowledged": [{"start": 0, "end": 1}, {"start": 3, "end": 4}]})
        request = await stream.request()
        assert request is not None
        canceled.extend((span.start, span.end) for span in request.canceled)
        await stream.say(results={"acknowledged": [{"start": 0, "end": 5}]})  # too late
        await stream.messages(1)
        await stream.say(results={"acknowledged": [{"start": 5, "end": 6}]})
        await hold(stream)

    async with streaming(forget_some, timeout_s=1.5) as sender:
        await sender.connected()
        sender.send(rows(5))
        await sender.all_reported()
        await sender.until(lambda: canceled)  # or it travels with the next message
        sender.target.timeout_s = ENOUGH_S
        sender.send(rows(1))
        await sender.all_reported()

    late = DEADLINE_EXCEEDED
    assert sender.codes() == [OK, late, late, OK, late]
    assert canceled == [(1, 3), (4, 5)]
    assert sender.codes(1) == [OK]
    assert not sender.lost


async def test_a_message_that_waits_for_credit_in_vain_is_given_up_in_time() -> None:
    async def give_nothing(stream: ReceiverStream) -> None:
        await stream.accept(0)
        await hold(stream)

    async with streaming(give_nothing, timeout_s=0.3) as sender:
        sender.send(rows(3))
        await sender.all_reported()

    assert sender.codes() == [DEADLINE_EXCEEDED] * 3


async def test_canceled_messages_end_at_once_sent_or_not() -> None:
    canceled: list[tuple[int, int]] = []

    async def slow(stream: ReceiverStream) -> None:
        await stream.accept(4)
        await stream.messages(4)
        request = await stream.request()
        assert request is not None
        canceled.extend((span.start, span.end) for span in request.canceled)
        await stream.say(
            results={"acknowledged": [{"start": 0, "end": 4}]}, credit={"deliveries": 50, "bytes": 1 << 40}
        )
        assert await stream.messages(2) == [4, 7]
        await stream.say(results={"acknowledged": [{"start": 4, "end": 6}]})
        await hold(stream)

    async with streaming(slow) as sender:
        batch = sender.send(rows(8))
        await sender.until(lambda: sender.target.in_flight == 4)
        sender.target.cancel(batch, 2, 4)
        sender.target.cancel(batch, 5, 7)
        sender.target.cancel(batch, 2, 7)
        sender.target.cancel(batch, 4, 4)
        assert not sender.reported
        await sender.until(lambda: sender.reported)
        assert [code for code in sender.codes() if code == CANCELLED] == [CANCELLED] * 5


async def test_a_receiver_waits_while_its_messages_are_not_read() -> None:
    written = 0

    async def flood(stream: ReceiverStream) -> None:
        nonlocal written
        await stream.request()
        for number in range(FLOOD):
            await stream.context.write(b"%02d" % number + bytes(1 << 20))
            written += 1

    place = ReceiverAddress(start_stream_server)
    await place.begin(flood)
    channel = stream_channel(f"127.0.0.1:{place.port}", METHOD)
    try:
        call = channel.open()
        async with asyncio.timeout(ENOUGH_S):
            assert await call.write(b"")
            assert (await call.read() or b"")[:2] == b"00"
            before = -1
            while before != written:  # until it stands still
                before = written
                await asyncio.sleep(0.3)
            assert written < FLOOD
            numbers = [message[:2] for message in [await call.read() for _ in range(1, FLOOD)] if message]
            assert numbers == [b"%02d" % number for number in range(1, FLOOD)]
            assert await call.read() is None
        assert call.result.code == OK
    finally:
        await channel.close()
        await place.end()
