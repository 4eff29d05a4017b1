"""Decompresses the records of a batch up to a limit.

A batch of 1 MiB may be 32 GiB of zeros (zstd). Without a limit, such a message would kill every worker
that gets it, one after the other. Snappy's ratio is at most 22, but its library allocates the declared
length at once, so the declared length is checked first.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

import cramjam

MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024  # decoding this much blocks the event loop for half a second
USUAL_RATIO = 16  # beyond this ratio, decompression begins again into new pages
USUAL_SPARE_BYTES = 4096
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4  # Kafka's codec numbers
_BOUNDED: dict[int, Any] = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}

SNAPPY_RATIO, SNAPPY_SPARE_BYTES = 22, 64  # three bytes make at most 64, so a larger declaration is false
_XERIAL, _XERIAL_BYTES = b"\x82SNAPPY\x00", 16  # the Java library's format: blocks, each after its length
_BLOCK = struct.Struct(">i")


_FULL = "failed to write whole buffer"  # cramjam's message when the output does not fit


class TooLarge(ValueError):
    """The bytes decompress to more than the limit."""


def unpacked(codec: int, packed: bytes | memoryview, most_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """The decompressed bytes. `codec` is Kafka's number. Raises TooLarge: they are more than `most_bytes`.
    Raises ValueError: they cannot be decompressed."""
    try:
        if codec == SNAPPY:
            return _snappy(memoryview(packed), most_bytes)
        if codec not in _BOUNDED:
            raise ValueError(f"compression codec {codec} is not known")
        return _bounded(_BOUNDED[codec], packed, most_bytes)
    except cramjam.DecompressionError as error:
        kind = TooLarge if _FULL in str(error) else ValueError
        raise kind(f"{error}: damaged, or above {most_bytes} bytes when decompressed") from error


def _bounded(codec: Any, packed: bytes | memoryview, most_bytes: int) -> bytes:
    usual = bytearray(min(most_bytes, USUAL_RATIO * len(packed) + USUAL_SPARE_BYTES))
    try:
        end = int(codec.decompress_into(packed, usual))
    except cramjam.DecompressionError:  # damaged, or beyond the usual ratio
        del usual
        with mmap.mmap(-1, most_bytes) as room, memoryview(room) as view:
            return bytes(view[: int(codec.decompress_into(packed, view))])
    with memoryview(usual) as view:
        return bytes(view[:end])


def _snappy(packed: memoryview, most_bytes: int) -> bytes:
    blocks = _snappy_blocks(packed)
    sizes = [_declared(block) for block in blocks]
    if sum(sizes) > most_bytes:
        raise TooLarge(f"{sum(sizes)} bytes when decompressed; at most {most_bytes} bytes are read")
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
            raise ValueError(f"the snappy block at byte {at} is cut off")
        (size,) = _BLOCK.unpack_from(packed, at)
        at += _BLOCK.size
        if not 0 < size <= len(packed) - at:
            raise ValueError(
                f"a snappy block of {size} bytes at byte {at}; {len(packed) - at} bytes are left"
            )
        blocks.append(packed[at : at + size])
        at += size
    return blocks


def _declared(block: memoryview) -> int:
    size = int(cramjam.snappy.decompress_raw_len(block))
    if size > SNAPPY_RATIO * len(block) + SNAPPY_SPARE_BYTES:
        raise ValueError(f"{len(block)} bytes of snappy cannot decompress to {size} bytes")
    return size
