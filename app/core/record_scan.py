"""Where the records of an uncompressed batch (format v2) end, and what they cost, before any is an object.

    length  attributes (1 byte)  timestamp delta  offset delta  key  value  header count  headers
    lengths, deltas and counts are zigzag varints; -1 as the length of a key or value is null

Source: Apache Kafka's protocol guide, "Record". A header takes two bytes in a batch and a hundred times that
in memory: a few kilobytes of compressed headers would be gigabytes of objects. So they are counted first.

`cut` never passes a bound: a record beyond one ends the cut, and stands alone in the next (`Cut.excess`).
"""

from __future__ import annotations

from typing import NamedTuple

MAX_HEADERS = 10_000  # of a record: 2 MB of objects; people's own records have some tens
MAX_HEADERS_BYTES = 8 * 1024 * 1024  # of a record, names and values: eight times a broker's usual message
# What a copy in a retry topic or dead letter queue may have beside those: what it says of itself.
OWN_HEADERS, OWN_HEADERS_BYTES = 256, 256 * 1024
MAX_BATCH_RECORDS = 1_000_000  # of a batch that is read as a whole; what is kept of them may be 100 MB
# What an object takes beside its bytes, by CPython 3.11: three objects and a slot in the list of headers.
HEADER_COST_BYTES = 160
RECORD_COST_BYTES = 200
_MORE, _BITS = 0x80, 0x7F
_MAX_SHIFT = 63  # a varint has ten bytes at most


class Most(NamedTuple):
    """What a record may have: headers, and bytes of them (names and values)."""

    headers: int
    headers_bytes: int


OF_PRODUCERS = Most(MAX_HEADERS, MAX_HEADERS_BYTES)
OF_COPIES = Most(MAX_HEADERS + OWN_HEADERS, MAX_HEADERS_BYTES + OWN_HEADERS_BYTES)


class Excess(NamedTuple):
    """The record at `offset_delta` is beyond a bound, for that `reason`."""

    offset_delta: int
    reason: str


class Cut(NamedTuple):
    """The next `records` of them end at byte `end`; as objects they take about `cost_bytes`.

    With `excess` the only record of the cut is beyond a bound: it must not be decoded.
    """

    end: int
    records: int
    cost_bytes: int
    excess: Excess | None = None


def cut(
    data: memoryview | bytes, at: int, left: int, most_records: int, most_bytes: int, most: Most = OF_COPIES
) -> Cut:
    """The records from byte `at` on: at most `most_records` of the `left` ones, that cost `most_bytes` or
    less together. One record is never refused for its cost.

    Raises:
        ValueError: the bytes cannot be records.
    """
    size, count, cost_bytes = len(data), 0, 0
    try:
        for _ in range(min(left, most_records)):
            length, body = varint(data, at)
            end = body + length
            if length < 0 or end > size:
                raise ValueError(f"a record of {length} bytes at byte {at}; {size - body} are left")
            headers, headers_at, offset_delta = _headers(data, body, end)
            if reason := _beyond(headers, end - headers_at, most):
                if count:
                    break
                return Cut(end, 1, 0, Excess(offset_delta, reason))
            cost = length + RECORD_COST_BYTES + headers * HEADER_COST_BYTES
            if count and cost_bytes + cost > most_bytes:
                break
            at, count, cost_bytes = end, count + 1, cost_bytes + cost
    except IndexError:
        raise ValueError(f"the record at byte {at} is cut off") from None
    return Cut(at, count, cost_bytes)


def _headers(data: memoryview | bytes, body: int, end: int) -> tuple[int, int, int]:
    """How many headers a record has, the byte at which they begin, and its offset delta."""
    at = body + 1
    while data[at] & _MORE:  # the timestamp's delta
        at += 1
    offset_delta, at = varint(data, at + 1)
    for _ in range(2):
        length, at = varint(data, at)
        at += max(0, length)
        if at >= end:
            raise ValueError(f"a key or value of {length} bytes in the record that ends at byte {end}")
    headers, at = varint(data, at)
    if headers < 0 or at + 2 * headers > end:
        raise ValueError(f"{headers} headers in the {end - at} bytes behind byte {at}")
    return headers, at, offset_delta


def _beyond(headers: int, headers_bytes: int, most: Most) -> str:
    if headers > most.headers:
        return f"{headers} headers; at most {most.headers} are read of a record"
    if headers_bytes > most.headers_bytes:
        return f"headers of {headers_bytes} bytes; at most {most.headers_bytes} are read of a record"
    return ""


def varint(data: memoryview | bytes, at: int) -> tuple[int, int]:
    """A zigzag varint, and the byte behind it. Raises IndexError, ValueError."""
    byte = data[at]
    at += 1
    if byte < _MORE:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & _BITS, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & _BITS) << shift
        if byte < _MORE:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > _MAX_SHIFT:
            raise ValueError(f"a number at byte {at} has no end")
