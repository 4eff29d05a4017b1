"""A message has one `traceparent`, over all attempts and both contracts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.push.metadata import MetadataTemplate
from app.dispatch.push.stream.encoder import OutBatch, add_run
from switchyard.receiver.admission import read_batch
from switchyard.receiver.trace_context import derived_traceparent, own_traceparent
from switchyard.receiver.unary_service import read_message
from switchyard.v1.receiver_pb2 import DeliverRequest, Open
from tests.dispatch.push.grpc_servers import metadata_of
from tests.dispatch.push.stream_servers import StreamRecord

OWN = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
VALID = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def _unary(headers: list[tuple[str, bytes | None]], attempt: int, retry_count: int = 0) -> str:
    template = MetadataTemplate("orders", "billing", 3)
    return str(
        dict(metadata_of(template, 7, None, headers, 1_790_000_000_000, retry_count, attempt))["traceparent"]
    )


def _stream(headers: list[tuple[str, bytes | None]], attempt: int, retry_count: int = 0) -> str:
    batch = OutBatch(
        "orders",
        3,
        [StreamRecord(6), StreamRecord(7, headers=headers)],
        retry_count,
        attempt,
        lambda *_: None,
    )
    request = DeliverRequest()
    add_run(request, batch, 0, 2, 0, 1 << 20)
    return read_batch(request.batches[0], Open(group="billing", topic="orders"))[1].traceparent


@pytest.mark.parametrize("headers", [[], [("traceparent", OWN)], [("Traceparent", OWN)]])
def test_all_attempts_over_both_contracts_are_of_one_trace(headers: list[Any]) -> None:
    seen = {
        traced(headers, attempt, retry_count)
        for traced in (_unary, _stream)
        for attempt in (1, 2, 3)
        for retry_count in (0, 1)
    }
    assert len(seen) == 1
    assert VALID.fullmatch(seen.pop())


def test_a_receiver_of_either_contract_reads_it() -> None:
    template = MetadataTemplate("orders", "billing", 3)
    metadata = metadata_of(template, 7, None, [], 1_790_000_000_000, 0, 1)
    assert read_message(b"", metadata).traceparent == _stream([], 1)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01",
        b"00-0af7651916cd43dd8448eb211c80319c-" + b"0" * 16 + b"-01",
        b"ff" + OWN[2:],
        OWN.upper(),
        OWN + b"\n",
    ],
)
def test_a_traceparent_that_is_invalid_by_w3c_counts_as_missing(value: bytes | None) -> None:
    assert own_traceparent([("traceparent", value)]) == ""
    assert own_traceparent([("traceparent", OWN), ("traceparent", value)]) == OWN.decode()


@given(st.tuples(st.text(max_size=5), st.integers(), st.integers(), st.integers()))
def test_a_derived_traceparent_is_valid_and_different_for_another_message(
    where: tuple[str, int, int, int],
) -> None:
    topic, partition, offset, timestamp_ms = where
    found = derived_traceparent(topic, partition, offset, timestamp_ms)
    assert VALID.fullmatch(found)
    assert found == derived_traceparent(topic, partition, offset, timestamp_ms)
    assert found != derived_traceparent(topic, partition, offset + 1, timestamp_ms)
    assert found != derived_traceparent(topic, partition, offset, timestamp_ms + 1)
