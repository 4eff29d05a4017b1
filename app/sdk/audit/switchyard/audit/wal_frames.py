"""The frames of a write-ahead log: which are whole, and whether the file is torn or damaged. Pure.

    file   "SWAL" version (1 byte)  frame*
    frame  length (4)  number (8)  checksum (4)  payload (length)          little endian

Rules
1. The checksum (CRC-32) covers length, number and payload, so a changed bit is found.
2. A file's frames have consecutive numbers from 0, so a frame of an older file does not count.
3. Bytes after the last whole frame are torn: a crash cut a write short. If whole frames of this file follow
   them, the file is damaged, and nothing after the damage counts.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

MAGIC = b"SWAL\x01"
MOST_PAYLOAD_BYTES = 1 << 30
LATER = 64  # the next frame numbers to look for after a damaged frame
_HEAD = struct.Struct("<IQ")
_CHECKSUM = struct.Struct("<I")
OVERHEAD_BYTES = _HEAD.size + _CHECKSUM.size


class WalContents(NamedTuple):
    """The contents of a file.

    Attributes:
        payloads: The payloads of the whole frames.
        end: The end of the last whole frame, in bytes.
        torn_bytes: The bytes after `end`.
        is_damaged: Whole frames follow the torn bytes, or the file has another beginning.
    """

    payloads: tuple[bytes, ...]
    end: int
    torn_bytes: int
    is_damaged: bool


def framed(number: int, payload: bytes) -> bytes:
    """The frame of a payload.

    Raises:
        ValueError: The payload is larger than `MOST_PAYLOAD_BYTES`.
    """
    if len(payload) > MOST_PAYLOAD_BYTES:
        raise ValueError(f"a frame of {len(payload)} bytes; the limit is {MOST_PAYLOAD_BYTES}")
    head = _HEAD.pack(len(payload), number)
    return b"".join((head, _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head))), payload))


def written(payloads: Iterable[bytes]) -> bytes:
    """A whole file."""
    return b"".join((MAGIC, *(framed(number, payload) for number, payload in enumerate(payloads))))


def found(data: bytes) -> WalContents:
    """The contents of a file with any bytes."""
    if not data.startswith(MAGIC):
        return WalContents((), 0, len(data), is_damaged=not MAGIC.startswith(data))
    payloads: list[bytes] = []
    end = len(MAGIC)
    while (payload := _payload(data, end, len(payloads))) is not None:
        payloads.append(payload)
        end += OVERHEAD_BYTES + len(payload)
    torn_bytes = len(data) - end
    return WalContents(tuple(payloads), end, torn_bytes, _has_frames_behind(data, end, len(payloads)))


def _payload(data: bytes, at: int, number: int) -> bytes | None:
    """The payload of frame `number` at `at`; None: there is no whole one."""
    start = at + OVERHEAD_BYTES
    if start > len(data):
        return None
    length, its_number = _HEAD.unpack_from(data, at)
    if its_number != number or length > len(data) - start:
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, at + _HEAD.size)
    payload = data[start : start + length]
    is_whole = zlib.crc32(payload, zlib.crc32(data[at : at + _HEAD.size])) == checksum
    return payload if is_whole else None


def _has_frames_behind(data: bytes, end: int, number: int) -> bool:
    """Whether a later frame of the file follows the torn bytes; it is found by its number's bytes."""
    for later in range(number + 1, number + LATER):
        wanted = later.to_bytes(8, "little")
        at = data.find(wanted, end + 5)
        while at >= 0:
            if _payload(data, at - 4, later) is not None:
                return True
            at = data.find(wanted, at + 1)
    return False
