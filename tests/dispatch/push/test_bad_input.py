"""Invalid data of records and answers harms its own message at most."""

from __future__ import annotations

from typing import Any

import pytest

from app.dispatch.push.call_result import CallResult
from app.dispatch.push.metadata import MetadataTemplate
from switchyard.receiver import Message, Receiver, Stash, Verdict
from switchyard.receiver.unary_service import read_message
from switchyard.v1.receiver_pb2 import DeliverResponse
from tests.dispatch.push.conftest import CallTo, Serve
from tests.dispatch.push.grpc_servers import METHOD, CountingCaller, metadata_of, serving, unary_target
from tests.dispatch.push.http2_server import ending_with
from tests.dispatch.push.stream_servers import (
    ReceiverStream,
    RecordingSender,
    StreamRecord,
    hold,
    rows,
    streaming,
)

pytestmark = pytest.mark.each_transport

OK, UNKNOWN, DEADLINE_EXCEEDED, FAILED_PRECONDITION, INTERNAL, UNAVAILABLE = 0, 2, 4, 9, 13, 14
CONTRACTS = ["unary", "stream"]
TEMPLATE = MetadataTemplate("orders", "billing", 0)
FAR = 2**63 - 1
MOST = 2**64 - 1  # a negative number, read as uint64


async def deliver(
    contract: str, receiver: Receiver, records: list[StreamRecord], serve: Serve, call_to: CallTo
) -> list[CallResult]:
    """The results of records that were sent by one contract or the other."""
    if contract == "stream":
        sender = await serve(receiver)
        sender.send(records)
        await sender.all_reported()
        return [sender.results[0, index] for index in range(len(records))]
    call = await call_to(receiver)
    return [
        await call(row.value, metadata_of(TEMPLATE, row.offset, row.key, row.headers, row.timestamp, 0, 1))
        for row in records
    ]


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_odd_records_arrive_as_they_are(serve: Serve, call_to: CallTo, contract: str) -> None:
    receiver, seen = Receiver(), list[Message]()
    receiver.on(topic="orders", group="billing")(seen.append)
    every = bytes(range(256))
    records = [
        # a tombstone, and an empty value
        StreamRecord(0, None, b"gone"),
        StreamRecord(1, b"", b""),
        StreamRecord(2, b"", None),
        StreamRecord(3, every, every * 4096),  # a key of a mebibyte
        StreamRecord(4, b"v", b"k", FAR),
        StreamRecord(FAR, b"v", b"k", 0),
        StreamRecord(5, b"v", b"k", -1),
        StreamRecord(
            6, b"v", b"k", 0, [("x", every), ("kafka-value-null", b"true"), ("y-bin", b"\r\n"), ("z", None)]
        ),
    ]

    results = await deliver(contract, receiver, records, serve, call_to)

    assert [result.code for result in results] == [OK] * len(records)
    for message, row in zip(seen, records, strict=True):
        assert (message.offset, message.timestamp_ms) == (row.offset, row.timestamp)
        assert (message.value, message.tombstone) == (row.value or b"", row.value is None)
        assert message.key == row.key
        assert sorted(message.headers) == sorted((name, value or b"") for name, value in row.headers)


def test_a_body_is_no_tombstone_whatever_the_metadata_says() -> None:
    assert not read_message(b"v", [("kafka-value-null", "true")]).tombstone
    assert not read_message(b"", [("kafka-value-null", "false")]).tombstone


async def test_the_test_client_delivers_tombstones() -> None:
    receiver, seen = Receiver(), list[tuple[bytes, bool]]()
    receiver.on(topic="orders", group="billing")(lambda m: seen.append((m.value, m.tombstone)))
    client = receiver.test_client()

    await client.deliver(topic="orders", group="billing", value=None)
    await client.deliver_batch(topic="orders", group="billing", values=[None, b""])

    assert seen == [(b"", True), (b"", True), (b"", False)]


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize(
    ("text", "details"), [("\ud800", "?"), ("a\n\0\x7f", "a\n\0\x7f"), ("🚂" * 999, "🚂" * 500)], ids=repr
)
async def test_any_text_of_a_handler_is_a_valid_reason(
    serve: Serve, call_to: CallTo, contract: str, text: str, details: str
) -> None:
    receiver = Receiver()

    @receiver.on(topic="orders", group="billing")
    def refuse(message: Message) -> Verdict:
        if message.offset:
            raise ValueError(text)
        return Stash(text)

    stashed, failed = await deliver(contract, receiver, rows(2), serve, call_to)

    assert (stashed.code, stashed.action, stashed.details) == (FAILED_PRECONDITION, "Stash", details)
    assert (failed.code, failed.action, failed.details) == (UNKNOWN, None, f"ValueError: {details}"[:500])


STATUSES = [(b"99", UNKNOWN), (b"17", UNKNOWN), (b"-1", INTERNAL), (b"", INTERNAL), (b"9" * 40, INTERNAL)]


@pytest.mark.parametrize(("status", "code"), STATUSES)
async def test_a_status_that_grpc_does_not_know_is_a_failure_and_never_an_acknowledgement(
    status: bytes, code: int, transport: str
) -> None:
    async with ending_with((b"grpc-status", status)) as port:
        call, sender = (
            CountingCaller(unary_target(f"127.0.0.1:{port}", METHOD)),
            RecordingSender(port),
        )
        result = await call(b"v")
        sender.send(rows(2))
        await sender.all_reported()
        await call.target.close()
        await sender.target.close()

    # gRPC says UNKNOWN, its C core another status for what is no number of gRPC's.
    assert result.code == (code if transport == "grpc" else UNKNOWN)
    assert result.local_error is None
    assert sender.codes() == [UNAVAILABLE] * 2  # the stream's status, which says nothing about the messages


async def test_a_receiver_that_refuses_before_the_request_arrives_is_understood_every_time() -> None:
    async with ending_with((b"grpc-status", b"12")) as port:
        for _ in range(20):
            sender = RecordingSender(port)
            sender.send(rows(1))
            await sender.all_reported()
            await sender.target.close()
            assert (sender.target.supported, [result.code for result in sender.lost]) == (False, [12])


async def test_an_accepted_stream_that_ends_with_an_unknown_status_condemns_no_message() -> None:
    taken = DeliverResponse(accept={}, credit={"deliveries": 9, "bytes": 9_999}).SerializeToString()
    async with ending_with((b"grpc-status", b"99"), first=taken) as port:
        sender = RecordingSender(port)
        sender.send(rows(2))
        await sender.all_reported()
        await sender.target.close()

    assert sender.codes() == [UNAVAILABLE] * 2
    assert len(sender.lost) == 1


@pytest.mark.parametrize(
    ("trailers", "action", "after_s"),
    [
        ([("kafka-action", "Stash"), ("kafka-action", "Skip")], "Skip", None),  # the last one counts
        ([("kafka-action", "Retry"), ("kafka-retry-after-ms", "-5")], "Retry", None),
        ([("kafka-action", "Retry"), ("kafka-retry-after-ms", "9" * 30)], "Retry", None),
        ([("kafka-action", "Retry"), ("kafka-retry-after-ms", "soon")], "Retry", None),
        ([("kafka-action-bin", b"\xff")], None, None),
    ],
)
async def test_trailers_that_make_no_sense_are_ignored(
    trailers: Any, action: str | None, after_s: float | None
) -> None:
    async def answer(_: bytes, context: Any) -> bytes:
        context.set_trailing_metadata(trailers)
        return b""

    async with serving(answer) as call:
        result = await call()

    assert (result.code, result.action, result.retry_after_s) == (OK, action, after_s)


async def test_a_kind_of_result_from_the_future_is_no_result_and_a_failure_may_have_any_code() -> None:
    async def foretell(stream: ReceiverStream) -> None:
        await stream.accept(100)
        await stream.messages(4)
        # Field 9 of Results, a Range [0, 1); then undefined codes.
        await stream.context.write(bytes([0x12, 6, 0x4A, 4, 0x08, 0, 0x10, 1]))
        failed = [
            {"deliveries": {"start": number, "end": number + 1}, "code": code}
            for number, code in ((1, 0), (2, -(2**31)), (3, 2**31 - 1))
        ]
        await stream.say(results={"failed": failed})
        await hold(stream)

    async with streaming(foretell, timeout_s=1.5) as sender:
        await sender.connected()
        sender.send(rows(4))
        await sender.all_reported()

    assert sender.codes() == [DEADLINE_EXCEEDED, UNKNOWN, -(2**31), 2**31 - 1]


async def test_negative_or_huge_credit_and_results_for_unsent_messages_do_no_harm() -> None:
    async def boast(stream: ReceiverStream) -> None:
        await stream.accept(0, 0)
        nothing = [
            {"start": 0, "end": MOST}, {"start": MOST, "end": 0}, {"start": MOST, "end": MOST},
            {"start": 500, "end": 7}, {"start": 1 << 40, "end": 1 << 41},
        ]  # fmt: skip
        await stream.say(results={"stashed": [{"deliveries": span} for span in nothing]})
        await stream.say(credit={"deliveries": MOST, "bytes": MOST})
        await stream.say(credit={"deliveries": 0, "bytes": 0}, results={"retried": [{}], "failed": [{}]})
        assert await stream.messages(10) == list(range(10))
        await stream.say(results={"acknowledged": [*nothing[1:], {"start": 0, "end": 10}]})
        await hold(stream)

    async with streaming(boast) as sender:
        await sender.connected()
        sender.send(rows(10))
        await sender.all_reported()

    assert sender.codes() == [OK] * 10
    assert not sender.lost


async def test_a_stream_that_is_never_accepted_is_given_up_and_its_messages_end() -> None:
    async with streaming(hold, timeout_s=0.3) as sender:
        sender.send(rows(3))
        await sender.all_reported()

    assert sender.codes() == [DEADLINE_EXCEEDED] * 3
