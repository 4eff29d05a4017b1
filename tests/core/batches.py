"""Record batches as brokers store them, built by aiokafka's own builder."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aiokafka.record.default_records import DefaultRecordBatchBuilder

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ATTRIBUTES_AT, LAST_DELTA_AT, LENGTH_AT, MAGIC_AT = 21, 23, 8, 16
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
