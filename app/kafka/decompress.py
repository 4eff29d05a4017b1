"""Decompresses a record batch, but not without end.

A batch of 1 MiB may be 32 GiB of zeros (zstd): one such message would end every worker it is given to, one
after the other. Snappy cannot grow more than some twenty times and is left to aiokafka.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

import cramjam

from app.core.record_batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, Batch

MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024  # decoding it holds up the loop for half a second
USUAL_RATIO = 16  # what grows more is decompressed a second time, into memory that costs page faults
USUAL_SPARE_BYTES = 4096
BOUNDED: dict[int, Any] = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}
LENGTH_AT, ATTRIBUTES_LOW_AT, CODEC_BITS = 8, 22, 0x07


def decompressed(batch: Batch) -> bytes:
    """The batch, of a codec in `BOUNDED`, with its records uncompressed; its checksum is that of before.

    Raises:
        ValueError: its records cannot be decompressed, or are more than `MAX_DECOMPRESSED_BYTES`.
    """
    codec = BOUNDED[batch.header.compression]
    packed = batch.data[HEADER_BYTES:]
    usual_bytes = min(MAX_DECOMPRESSED_BYTES, USUAL_RATIO * len(packed) + USUAL_SPARE_BYTES)
    try:
        return _unpacked(codec, batch, packed, bytearray(HEADER_BYTES + usual_bytes))
    except cramjam.DecompressionError:
        pass  # damaged, or more than usual
    try:
        with mmap.mmap(-1, HEADER_BYTES + MAX_DECOMPRESSED_BYTES) as room:
            return _unpacked(codec, batch, packed, room)
    except cramjam.DecompressionError as error:
        raise ValueError(
            f"{error}: damaged, or more than {MAX_DECOMPRESSED_BYTES} bytes when decompressed"
        ) from error


def unpacked(codec: int, packed: bytes) -> bytes:
    """What bare bytes of a codec in `BOUNDED` hold.

    Raises:
        ValueError: as `decompressed`.
    """
    usual_bytes = min(MAX_DECOMPRESSED_BYTES, USUAL_RATIO * len(packed) + USUAL_SPARE_BYTES)
    try:
        usual = bytearray(usual_bytes)
        return bytes(usual[: int(BOUNDED[codec].decompress_into(packed, usual))])
    except cramjam.DecompressionError:
        pass  # damaged, or more than usual
    try:
        with mmap.mmap(-1, MAX_DECOMPRESSED_BYTES) as room, memoryview(room) as view:
            return bytes(view[: int(BOUNDED[codec].decompress_into(packed, view))])
    except cramjam.DecompressionError as error:
        raise ValueError(
            f"{error}: damaged, or more than {MAX_DECOMPRESSED_BYTES} bytes when decompressed"
        ) from error


def _unpacked(codec: Any, batch: Batch, packed: memoryview, room: bytearray | mmap.mmap) -> bytes:
    with memoryview(room) as view, view[HEADER_BYTES:] as records:
        end = HEADER_BYTES + int(codec.decompress_into(packed, records))
        view[:HEADER_BYTES] = batch.data[:HEADER_BYTES]
        struct.pack_into(">i", view, LENGTH_AT, end - LOG_OVERHEAD_BYTES)
        view[ATTRIBUTES_LOW_AT] &= ~CODEC_BITS
        return bytes(view[:end])
