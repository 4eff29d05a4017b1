"""Record batches as brokers store them, built by aiokafka's own builder."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ATTRIBUTES_AT, LAST_DELTA_AT, LENGTH_AT, MAGIC_AT = 21, 23, 8, 16
ENCODERS: dict[int, Callable[[bytes], bytes]] = {
    1: gzip_encode, 2: snappy_encode, 3: lz4_encode, 4: zstd_encode,
}  # fmt: skip
CONTROL = 0x20

Record = tuple[bytes | None, bytes | None]


def make_batch(
    base_offset: int,
    records: Sequence[Record] = ((b"k", b"v"),),
    *,
    codec: int = 0,
    producer_id: int = -1,
    transactional: bool = False,
    timestamp_ms: int = 1_000,
    headers: Sequence[tuple[str, bytes]] = (),
) -> bytes:
    """A batch with its base offset in place; the checksum does not cover it."""
    builder = DefaultRecordBatchBuilder(
        2, codec, int(transactional), producer_id, 0 if producer_id >= 0 else -1, 0, 1 << 24
    )
    for index, (key, value) in enumerate(records):
        added = builder.append(
            index, timestamp=timestamp_ms + index, key=key, value=value, headers=list(headers)
        )
        assert added
    return struct.pack(">q", base_offset) + bytes(builder.build())[8:]


def old_messages(base_offset: int, values: Sequence[bytes], *, magic: int = 1, codec: int = 0) -> bytes:
    """Messages of format 0 or 1; with a codec one message that holds them all."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 24)
    for index, value in enumerate(values):
        offset = index if magic and codec else base_offset + index
        builder.append(offset, timestamp=1_000, key=b"k", value=value)
    data = bytes(builder.build())
    return struct.pack(">q", base_offset + len(values) - 1) + data[8:] if codec else data


def make_marker(base_offset: int, producer_id: int) -> bytes:
    """A batch that looks like a transaction's end marker (its checksum is not mended)."""
    batch = bytearray(make_batch(base_offset, producer_id=producer_id, transactional=True))
    batch[ATTRIBUTES_AT + 1] |= CONTROL
    return bytes(batch)


def patched(batch: bytes, at: int, form: str, value: int) -> bytes:
    """The batch with one field of its header overwritten."""
    damaged = bytearray(batch)
    struct.pack_into(form, damaged, at, value)
    return bytes(damaged)


def packed_record(offset_delta: int, value: bytes = b"v", headers: int = 0) -> bytes:
    """A record of format v2 with this many empty headers."""
    body = b"\x00\x00" + zigzag(offset_delta) + zigzag(-1) + zigzag(len(value)) + value + zigzag(headers)
    return zigzag(len(body) + 2 * headers) + body + bytes(2 * headers)


def zigzag(value: int) -> bytes:
    """An integer as Kafka's varint."""
    value, found = (value << 1) ^ (value >> 63), bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def batch_of_packed(base_offset: int, records: Sequence[bytes], codec: int = 0) -> bytes:
    """A batch of records that are encoded already, with its checksum."""
    head = bytearray(make_batch(base_offset)[:61])
    content = b"".join(records)
    packed = content if not codec else bytes(ENCODERS[codec](content))
    head[ATTRIBUTES_AT + 1] = codec
    struct.pack_into(">i", head, LENGTH_AT, 49 + len(packed))
    struct.pack_into(">i", head, LAST_DELTA_AT, len(records) - 1)
    struct.pack_into(">i", head, 57, len(records))
    struct.pack_into(">I", head, 17, calc_crc32c(bytes(head[21:]) + packed))
    return bytes(head) + packed
