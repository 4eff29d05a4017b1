"""More time for deliveries of a stream: what receivers may say, and what the sender makes of it."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.dispatch.push.answer_limits import MAX_RANGES
from app.dispatch.push.stream.results import RENEW
from app.kernel.grpc_status import DEADLINE_EXCEEDED, OK, UNAVAILABLE
from tests.dispatch.push.grpc_servers import ENOUGH_S
from tests.dispatch.push.stream_servers import ReceiverStream, hold, rows, streaming

pytestmark = pytest.mark.each_transport

COUNT, TIMEOUT_S = 10, 2.0


def renewal(start: int, end: int, for_ms: int) -> dict[str, object]:
    return {"deliveries": {"start": start, "end": end}, "for_ms": for_ms}


async def test_the_sender_names_the_feature_and_reads_the_wishes_of_a_renewed_delivery() -> None:
    async def judge(stream: ReceiverStream) -> None:
        await stream.accept(100)
        assert stream.requests[0].open.features == RENEW
        await stream.messages(2)
        spans = [{"start": at, "end": at + 1} for at in range(2)]
        await stream.say(
            results={
                "renewed": [
                    {"deliveries": spans[0], "timeout_ms": 90_000, "after_ms": 500}, {"deliveries": spans[1]},
                ]
            }
        )  # fmt: skip
        await hold(stream)

    async with streaming(judge) as sender:
        sender.send(rows(2))
        await sender.all_reported()
    results = [sender.results[0, index] for index in range(2)]
    assert all(result.is_renewal for result in results)
    assert [(result.timeout_s, result.retry_after_s) for result in results] == [(90.0, 0.5), (None, None)]


async def test_renewed_deliveries_of_a_batch_outlast_the_others_and_may_be_renewed_again() -> None:
    async def take_long(stream: ReceiverStream) -> None:
        await stream.accept(100, features=RENEW)
        await stream.messages(COUNT)
        await stream.say(renewals=[renewal(2, 4, 20_000), renewal(7, 8, 2_000)])
        await stream.say(renewals=[renewal(7, 8, 20_000)])
        await asyncio.sleep(2 * TIMEOUT_S)
        await stream.say(results={"acknowledged": [{"start": 0, "end": COUNT}]})
        await hold(stream)

    async with streaming(take_long, timeout_s=TIMEOUT_S) as sender:
        await sender.connected()
        batch = sender.send(rows(COUNT), longest_s=ENOUGH_S)
        await sender.all_reported()
        late = [DEADLINE_EXCEEDED] * COUNT
        late[2] = late[3] = late[7] = OK
        assert sender.codes() == late
        assert batch.renewed == {2, 3, 7}


async def test_no_renewal_shortens_what_is_left_or_exceeds_what_the_workload_allows() -> None:
    async def ask(stream: ReceiverStream) -> None:
        await stream.accept(100, features=RENEW)
        await stream.messages(2)
        await stream.say(renewals=[renewal(0, 1, 1), renewal(1, 2, 3_600_000)])
        await asyncio.sleep(TIMEOUT_S / 5)
        await stream.say(results={"acknowledged": [{"start": 0, "end": 1}]})
        await hold(stream)

    async with streaming(ask, timeout_s=TIMEOUT_S) as sender:
        await sender.connected()
        began_s = time.monotonic()
        batch = sender.send(rows(2), longest_s=2 * TIMEOUT_S)
        await sender.all_reported()
        assert sender.codes() == [OK, DEADLINE_EXCEEDED]
        assert time.monotonic() - began_s >= 2 * TIMEOUT_S
        assert batch.renewed == {1}, "the other has no more time by it"


async def test_a_receiver_that_does_not_name_the_feature_gets_no_more_time() -> None:
    async def ask(stream: ReceiverStream) -> None:
        await stream.accept(100)
        await stream.messages(1)
        await stream.say(renewals=[renewal(0, 1, 3_600_000)])
        await hold(stream)

    async with streaming(ask, timeout_s=TIMEOUT_S) as sender:
        await sender.connected()
        sender.send(rows(1), longest_s=3_600.0)
        await sender.all_reported()
        assert sender.codes() == [DEADLINE_EXCEEDED]


async def test_senseless_renewals_change_nothing() -> None:
    async def babble(stream: ReceiverStream) -> None:
        await stream.accept(100, features=RENEW)
        await stream.messages(COUNT)
        await stream.say(results={"acknowledged": [{"start": 0, "end": 5}]})
        await stream.say(renewals=[renewal(0, 5, 5_000), renewal(7, 2, 9), renewal(50, 1 << 63, 9), {}])
        await stream.say(results={"acknowledged": [{"start": 5, "end": COUNT}]})
        await hold(stream)

    async with streaming(babble) as sender:
        sender.send(rows(COUNT))
        await sender.all_reported()
        assert set(sender.codes()) == {OK}
        assert not sender.lost


@pytest.mark.parametrize("kind", ["wide", "empty", "many spans"])
async def test_a_flood_of_renewals_ends_the_stream_and_is_told(kind: str) -> None:
    """Each costs a look at what is in flight, so all of a response together are limited."""
    count = MAX_RANGES + 1 if kind == "empty" else MAX_RANGES // COUNT + 1
    flood = [renewal(0, 0 if kind == "empty" else 1 << 62, 1)] * count

    async def drown(stream: ReceiverStream) -> None:
        await stream.accept(1 if kind == "many spans" else 100, features=RENEW)
        for number in range(COUNT if kind == "many spans" else 1):
            await stream.messages(1 if kind == "many spans" else COUNT)
            await stream.say(credit={"deliveries": number + 2, "bytes": 1 << 40})
        await stream.say(renewals=flood)
        await hold(stream)

    async with streaming(drown) as sender:
        sender.send(rows(COUNT), longest_s=ENOUGH_S)
        await sender.all_reported()
        assert set(sender.codes()) == {UNAVAILABLE}
        assert "asks for more time for more than" in sender.results[0, 0].details
        assert sender.lost[0].answer_too_large


async def test_the_receiver_hears_how_much_time_is_left_after_a_wait_for_credit() -> None:
    waited_ms = 1_000
    left_ms: list[int] = []

    async def take_one_by_one(stream: ReceiverStream) -> None:
        await stream.accept(1)
        for number in range(2):
            await stream.messages(1)
            left_ms.append(stream.requests[-1].batches[0].timeout_ms)
            await asyncio.sleep(waited_ms / 1000)
            await stream.say(
                results={"acknowledged": [{"start": number, "end": number + 1}]},
                credit={"deliveries": number + 2, "bytes": 1 << 40},
            )
        await hold(stream)

    async with streaming(take_one_by_one, timeout_s=ENOUGH_S) as sender:
        sender.send(rows(2))
        await sender.all_reported()
    assert left_ms[0] <= ENOUGH_S * 1000
    assert left_ms[1] <= ENOUGH_S * 1000 - waited_ms
    assert {result.code for result in sender.results.values()} == {OK}
