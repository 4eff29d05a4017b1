"""Where the records of an uncompressed batch (format v2) end, and what they cost, before any is an object.

    length  attributes (1 byte)  timestamp delta  offset delta  key  value  header count  headers
    lengths, deltas and counts are zigzag varints; -1 as the length of a key or value is null

Source: Apache Kafka's protocol guide, "Record". A header takes two bytes in a batch and a hundred times that
in memory: a few kilobytes of compressed headers would be gigabytes of objects. So they are counted first.

`cut` never passes a bound: a record beyond one ends the cut, and stands alone in the next (`ScanCut.excess`).
Almost all records are short (`short`), and so within every bound: only their lengths are looked at.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_HEADERS = 10_000  # of a record: 2 MB of objects; people's own records have some tens
MAX_HEADERS_BYTES = 8 * 1024 * 1024  # of a record, names and values: eight times a broker's usual message
# What a copy in a retry topic or dead letter queue may have beside those: what it says of itself.
OWN_HEADERS, OWN_HEADERS_BYTES = 256, 256 * 1024
SHORT_BYTES = 2 * MAX_HEADERS  # a record of no more has no more headers than it may have
# Short records are taken together up to such a part of what may be objects at once. As nothing but headers
# they would be five times that much, for as long as they are decoded; their cost is told then.
SHORT_PART = 16
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


class RecordExcess(NamedTuple):
    """The record at `offset_delta` is beyond a bound, for that `reason`."""

    offset_delta: int
    reason: str


class ScanCut(NamedTuple):
    """The next `records` of them end at byte `end`; as objects they take about `cost_bytes`.

    With `excess` the only record of the cut is beyond a bound: it must not be decoded.
    """

    end: int
    records: int
    cost_bytes: int
    excess: RecordExcess | None = None


def cut(
    data: memoryview | bytes, at: int, left: int, most_records: int, most_bytes: int, most: Most = OF_COPIES
) -> ScanCut:
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
                return ScanCut(end, 1, 0, RecordExcess(offset_delta, reason))
            cost = length + RECORD_COST_BYTES + headers * HEADER_COST_BYTES
            if count and cost_bytes + cost > most_bytes:
                break
            at, count, cost_bytes = end, count + 1, cost_bytes + cost
    except IndexError:
        raise ValueError(f"the record at byte {at} is cut off") from None
    return ScanCut(at, count, cost_bytes)


def short(data: memoryview | bytes, at: int, left: int, most_records: int, most_bytes: int) -> ScanCut:
    """The short records from byte `at` on: at most `most_records` of the `left` ones. Without their headers
    they cost `most_bytes` or less; what headers cost is not known (`ScanCut.cost_bytes` is 0, see
    `SHORT_PART`).

    It ends before a record that is not short, and before what cannot be one: `cut` says what is there. Makes
    no call a record, and takes 0.1 us instead of 1.2.
    """
    upto, count, last = at + most_bytes // SHORT_PART, 0, len(data) - 3
    most_records = min(left, most_records, max(1, most_bytes // (2 * RECORD_COST_BYTES)))
    while count < most_records and at < last:
        length, body = data[at], at + 1
        if length >= _MORE:
            more = data[body]
            length = length & _BITS | more << 7
            body += 1
            if more >= _MORE:  # up to SHORT_BYTES it has three bytes at most
                length = length & 0x3FFF | data[body] << 14
                body += 1
        end = body + (length >> 1)
        if length & 1 or length > 2 * SHORT_BYTES or end > last + 3:
            break
        if end > upto and count:
            break
        at, count = end, count + 1
    return ScanCut(at, count, 0)


def lowest_delta(data: bytes, count: int) -> int:
    """The lowest timestamp delta of `count` records (one at least), which are all that `data` holds.

    Makes no object of a record, so that headers need no bound. Takes about 0.13 us a record.

    Raises:
        ValueError: the bytes are not so many records.
    """
    at = signs = lowest = 0
    is_above = True  # no delta of zero or less was found
    try:
        for index in range(count):
            length = data[at]
            if length < _MORE:
                at += 1
            elif (more := data[at + 1]) < _MORE:  # the usual case, without a call
                length = length & _BITS | more << 7
                at += 2
            else:
                length, at = varint(data, at)
                length <<= 1
            signs |= length
            if data[at + 1] & 1 or is_above:  # others are not lower
                delta, _ = varint(data, at + 1)
                lowest = min(lowest, delta) if index else delta
                is_above = lowest > 0
            at += length >> 1
    except IndexError:
        raise ValueError(f"{count} records do not end at byte {len(data)}") from None
    if at != len(data) or signs & 1 or signs < 0:
        raise ValueError(f"{count} records end at byte {at} of {len(data)}, or have negative lengths")
    return lowest


def is_numbered(data: bytes | memoryview, count: int) -> bool:
    """Whether these are `count` records with the offset deltas 0, 1, 2 ... Takes about 0.4 us a record."""
    at = signs = 0
    try:
        for index in range(count):
            length = data[at]
            if length < _MORE:
                at += 1
            elif (more := data[at + 1]) < _MORE:  # the usual case, without a call
                length = length & _BITS | more << 7
                at += 2
            else:
                length, at = varint(data, at)
                length <<= 1
            signs |= length
            delta_at = at + 2
            while data[delta_at - 1] >= _MORE:  # the timestamp's delta
                delta_at += 1
            delta = data[delta_at]
            if delta >= _MORE:
                more = data[delta_at + 1]
                delta = delta & _BITS | more << 7 if more < _MORE else varint(data, delta_at)[0] << 1
            if delta != index << 1:
                return False
            at += length >> 1
    except (IndexError, ValueError):
        return False
    return at == len(data) and not signs & 1 and signs >= 0


def numbered(data: bytes | memoryview, count: int) -> bytes:
    """The `count` records with the offset deltas 0, 1, 2 ..., and nothing else changed.

    Raises:
        ValueError: the bytes are not so many records.
    """
    found, at = bytearray(), 0
    try:
        for index in range(count):
            length, body = varint(data, at)
            end = body + length
            _, delta_at = varint(data, body + 1)
            _, rest = varint(data, delta_at)
            if length < 0 or not rest <= end <= len(data):
                raise ValueError(f"a record of {length} bytes at byte {at}")
            delta = _packed(index)
            found += _packed(length + len(delta) - (rest - delta_at))
            found += data[body:delta_at]
            found += delta
            found += data[rest:end]
            at = end
    except IndexError:
        raise ValueError(f"the record at byte {at} is cut off") from None
    if at != len(data):
        raise ValueError(f"{count} records end at byte {at} of {len(data)}")
    return bytes(found)


def _packed(number: int) -> bytes:
    """A zigzag varint of a number that is not negative."""
    left, found = number << 1, bytearray()
    while left >= _MORE:
        found.append(left & _BITS | _MORE)
        left >>= 7
    return bytes([*found, left])


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
