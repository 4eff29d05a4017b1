"""Messages of the formats 0 and 1, as logs from before Kafka 0.11 hold them.

    offset @0 (8)  length @8 (4)  crc32 @12 (4)  magic @16 (1)  attributes @17 (1)
    timestamp @18 (8): in format 1 only      key: its length (4; -1: null), its bytes      value: the same

Source: Apache Kafka's protocol guide, "Old Message Format". `length` counts from the checksum on, which
covers all that is behind it. Attributes: the codec in the lowest three bits; 0x08: the timestamp is the
log's. A compressed message wraps others in its value, and has the offset of the last of them; in format 1
their own offsets are relative (KIP-31), and its timestamp is theirs where it is the log's (KIP-32).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

HEAD = struct.Struct(">qiIbb")  # offset, length, checksum, magic, attributes
LOG_OVERHEAD_BYTES = 12
MAGIC_AT = 16
MIN_LENGTH = 14  # of a message of format 0 without key and value
LEAST_BYTES = LOG_OVERHEAD_BYTES + MIN_LENGTH
CODEC, LOG_APPEND_TIME = 0x07, 0x08
ATTRIBUTES = CODEC | LOG_APPEND_TIME
NO_TIMESTAMP = -1
_TIMESTAMP, _SIZE = struct.Struct(">q"), struct.Struct(">i")


class LegacyMessage(NamedTuple):
    """A message as it stands there; `timestamp` in ms, -1: it has none."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4: of the messages that it wraps."""
        return self.attributes & CODEC


def is_sound(data: memoryview) -> bool:
    """Whether the checksum of one whole message matches."""
    return bool(crc32(data[MAGIC_AT:]) == HEAD.unpack_from(data)[2])


def messages(data: bytes | memoryview) -> Iterator[LegacyMessage]:
    """All messages of a buffer, in order.

    Raises:
        ValueError: it holds something else, or ends in the middle of one.
    """
    at, size = 0, len(data)
    while at < size:
        try:
            offset, length, _, magic, attributes = HEAD.unpack_from(data, at)
            if magic not in {0, 1} or length < MIN_LENGTH or at + LOG_OVERHEAD_BYTES + length > size:
                raise ValueError(f"no message at byte {at}: format {magic}, length {length}")
            body, timestamp = at + HEAD.size, NO_TIMESTAMP
            if magic:
                (timestamp,) = _TIMESTAMP.unpack_from(data, body)
                body += _TIMESTAMP.size
            end = at + LOG_OVERHEAD_BYTES + length
            key, body = _field(data, body, end)
            value, body = _field(data, body, end)
        except struct.error as error:
            raise ValueError(f"the message at byte {at} is cut off") from error
        yield LegacyMessage(offset, magic, attributes, timestamp, key, value)
        at = end


def _field(data: bytes | memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    if size == -1:
        return None, at
    if size < 0 or at + size > end:
        raise ValueError(f"a field of {size} bytes at byte {at} of a message that ends at {end}")
    return bytes(data[at : at + size]), at + size


def unwrapped(wrapper: LegacyMessage, inner: list[LegacyMessage]) -> list[LegacyMessage]:
    """What a message wraps, with offsets and timestamps as a reader is to see them.

    Raises:
        ValueError: it wraps none, or what it wraps is compressed, too.
    """
    if not inner or any(one.codec for one in inner):
        raise ValueError("a compressed message wraps nothing, or other compressed ones")
    if wrapper.magic:
        shift = wrapper.offset - inner[-1].offset
        inner = [one._replace(offset=one.offset + shift) for one in inner]
    if wrapper.attributes & LOG_APPEND_TIME:
        inner = [one._replace(timestamp=wrapper.timestamp) for one in inner]
    return inner
