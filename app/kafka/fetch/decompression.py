"""Decompresses the records of batches, but not without end.

A batch of 1 MiB may be 32 GiB of zeros (zstd): one such message would end every worker it is given to, one
after the other. Snappy grows some twenty times at most, but it declares how much it will be, and its library
takes that memory at once: the declared length is checked first.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

import cramjam

MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024  # decoding it holds up the loop for half a second
USUAL_RATIO = 16  # what grows more is decompressed a second time, into memory that costs page faults
USUAL_SPARE_BYTES = 4096
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4  # Kafka's numbers
_BOUNDED: dict[int, Any] = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}

SNAPPY_RATIO, SNAPPY_SPARE_BYTES = 22, 64  # three bytes make 64 at most: a block that declares more lies
_XERIAL, _XERIAL_BYTES = b"\x82SNAPPY\x00", 16  # Java's library: blocks, each behind its length
_BLOCK = struct.Struct(">i")


_FULL = "failed to write whole buffer"  # cramjam's words for an output that ends too soon


class TooLarge(ValueError):
    """It is whole, as far as it was read, and holds more than it may."""


def unpacked(codec: int, packed: bytes | memoryview, most_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """What bare bytes of a codec, by Kafka's number, hold.

    Raises:
        TooLarge: they hold more than `most_bytes`. ValueError: they cannot be decompressed.
    """
    try:
        if codec == SNAPPY:
            return _snappy(memoryview(packed), most_bytes)
        if codec not in _BOUNDED:
            raise ValueError(f"compression {codec} is not known")
        return _bounded(_BOUNDED[codec], packed, most_bytes)
    except cramjam.DecompressionError as error:
        kind = TooLarge if _FULL in str(error) else ValueError
        raise kind(f"{error}: damaged, or more than {most_bytes} bytes when decompressed") from error


def _bounded(codec: Any, packed: bytes | memoryview, most_bytes: int) -> bytes:
    usual = bytearray(min(most_bytes, USUAL_RATIO * len(packed) + USUAL_SPARE_BYTES))
    try:
        end = int(codec.decompress_into(packed, usual))
    except cramjam.DecompressionError:  # damaged, or more than usual
        del usual
        with mmap.mmap(-1, most_bytes) as room, memoryview(room) as view:
            return bytes(view[: int(codec.decompress_into(packed, view))])
    with memoryview(usual) as view:
        return bytes(view[:end])


def _snappy(packed: memoryview, most_bytes: int) -> bytes:
    blocks = _snappy_blocks(packed)
    sizes = [_declared(block) for block in blocks]
    if sum(sizes) > most_bytes:
        raise TooLarge(f"{sum(sizes)} bytes when decompressed; at most {most_bytes} are read")
    found = bytearray(sum(sizes))
    at = 0
    with memoryview(found) as view:
        for block, size in zip(blocks, sizes, strict=True):
            with view[at : at + size] as room:
                at += int(cramjam.snappy.decompress_raw_into(block, room))
    return bytes(found)


def _snappy_blocks(packed: memoryview) -> list[memoryview]:
    if bytes(packed[: len(_XERIAL)]) != _XERIAL:
        return [packed]
    blocks, at = [], _XERIAL_BYTES
    while at < len(packed):
        if at + _BLOCK.size > len(packed):
            raise ValueError(f"a block of snappy at byte {at} is cut off")
        (size,) = _BLOCK.unpack_from(packed, at)
        at += _BLOCK.size
        if not 0 < size <= len(packed) - at:
            raise ValueError(f"a block of snappy of {size} bytes at byte {at}; {len(packed) - at} are left")
        blocks.append(packed[at : at + size])
        at += size
    return blocks


def _declared(block: memoryview) -> int:
    """How many bytes a block says it is when it is decompressed."""
    size = int(cramjam.snappy.decompress_raw_len(block))
    if size > SNAPPY_RATIO * len(block) + SNAPPY_SPARE_BYTES:
        raise ValueError(f"snappy of {len(block)} bytes cannot be {size} when decompressed")
    return size
