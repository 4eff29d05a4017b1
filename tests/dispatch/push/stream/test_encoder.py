"""Encoded messages are read back unchanged, within their budget; unencodable data fails alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.push.stream.encoder import MessageNotEncodable, OutBatch, add_run, encode_alone
from switchyard.receiver.admission import read_batch
from switchyard.v1.receiver_pb2 import DeliverRequest, Open
from tests.dispatch.push.stream_servers import StreamRecord

INT64 = st.integers(-(2**63), 2**63 - 1)
OPENED = Open(group="billing", topic="orders")

binary = st.none() | st.binary(max_size=300)
rows = st.builds(
    StreamRecord,
    st.integers(0, 1 << 40),
    binary,
    binary,
    st.integers(-1, 1 << 50),
    st.lists(st.tuples(st.text(max_size=20), binary), max_size=3),
)


def batch(records: list[StreamRecord], **more: str) -> OutBatch:
    return OutBatch("orders", 3, records, 2, 5, lambda *_: None, **more)


@given(st.lists(rows, min_size=1, max_size=20), st.integers(0, 5_000), st.integers(0, 1 << 60))
def test_a_receiver_reads_back_what_was_sent_and_no_request_is_larger_than_its_budget(
    records: list[StreamRecord], budget: int, number: int
) -> None:
    request = DeliverRequest()

    count, size = add_run(request, batch(records), 0, len(records), number, budget)

    data = request.SerializeToString()
    assert len(data) <= size <= budget or count == 0
    read = [message for sent in request.batches for message in read_batch(sent, OPENED)]
    assert len(read) == count
    for message, record in zip(read, records, strict=False):
        assert (message.topic, message.group, message.partition) == ("orders", "billing", 3)
        assert (message.offset, message.timestamp_ms) == (record.offset, record.timestamp)
        assert (message.key, message.value) == (record.key, record.value or b"")
        assert message.tombstone == (record.value is None)
        assert message.headers == [(name.lower(), value or b"") for name, value in record.headers]
        assert (message.retry_count, message.attempt) == (2, 5)
    if count:
        assert request.batches[0].first_delivery == number


@given(st.lists(st.builds(StreamRecord, INT64, timestamp=INT64), min_size=1, max_size=8))
def test_offsets_and_times_far_apart_arrive_in_as_many_batches_as_it_takes(
    records: list[StreamRecord],
) -> None:
    request, done = DeliverRequest(), 0
    while done < len(records):
        count, _ = add_run(request, batch(records), done, len(records), done, 1 << 20)
        assert count
        done += count

    read = [message for sent in request.batches for message in read_batch(sent, OPENED)]
    assert [(message.offset, message.timestamp_ms) for message in read] == [
        (record.offset, record.timestamp) for record in records
    ]


@pytest.mark.parametrize(
    "bad",
    [
        StreamRecord(headers=[("\ud800", b"")]),
        StreamRecord(timestamp=1 << 64),
        StreamRecord(offset=-(1 << 63) - 1),
    ],
)
def test_data_that_protobuf_refuses_fails_alone(bad: StreamRecord) -> None:
    records = [StreamRecord(offset=1), StreamRecord(offset=2), bad, StreamRecord(offset=4)]
    request = DeliverRequest()

    assert add_run(request, batch(records), 0, 4, 0, 1 << 20)[0] == 2
    with pytest.raises(MessageNotEncodable, match="cannot be encoded"):
        add_run(request, batch(records), 2, 4, 2, 1 << 20)
    with pytest.raises(MessageNotEncodable):
        encode_alone(batch(records), 2, 2)
    assert add_run(request, batch(records), 3, 4, 2, 1 << 20)[0] == 1
    assert [len(sent.messages) for sent in request.batches] == [2, 1]


@pytest.mark.parametrize("own", [b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", None])
def test_a_trace_among_the_headers_comes_before_that_of_the_batch(own: bytes | None) -> None:
    request = DeliverRequest()
    record = StreamRecord(headers=[("traceparent", own)] if own else [("other", b"")])
    add_run(request, batch([record], traceparent="00-bb"), 0, 1, 0, 1 << 20)

    (message,) = read_batch(request.batches[0], OPENED)

    assert message.traceparent == (own.decode() if own else "00-bb")
