"""The write-ahead log's frames: what is whole in a file, where it is torn, where it is damaged. Pure.

    file   "SWAL" version (1 byte)  frame*
    frame  length (4)  number (8)  checksum (4)  payload (length)          little endian

Rules
1. The checksum (CRC-32) is over length, number and payload, so no bit of a frame can change unseen.
2. Numbers go up by one from a file's first frame: a frame that an older file left behind is none of this one.
3. What follows the last whole frame is torn, as a write is that a crash has cut short. If whole frames of
   this file lie behind it, it is no tail: the file is damaged, and nothing behind the damage counts.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

MAGIC = b"SWAL\x01"
MOST_PAYLOAD_BYTES = 1 << 30
LATER = 64  # frames behind a damaged one, of which one is whole
_HEAD = struct.Struct("<IQ")
_CHECKSUM = struct.Struct("<I")
OVERHEAD_BYTES = _HEAD.size + _CHECKSUM.size


class WalContents(NamedTuple):
    """What a file holds.

    Attributes:
        payloads: of the whole frames, from the first one on.
        end: bytes up to the end of the last of them.
        torn_bytes: behind that.
        is_damaged: whole frames lie behind what is torn, or the file does not begin as one.
    """

    payloads: tuple[bytes, ...]
    end: int
    torn_bytes: int
    is_damaged: bool


def framed(number: int, payload: bytes) -> bytes:
    """The frame of a payload.

    Raises:
        ValueError: it is larger than `MOST_PAYLOAD_BYTES`.
    """
    if len(payload) > MOST_PAYLOAD_BYTES:
        raise ValueError(f"a frame of {len(payload)} bytes; at most {MOST_PAYLOAD_BYTES} are read back")
    head = _HEAD.pack(len(payload), number)
    return b"".join((head, _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head))), payload))


def written(payloads: Iterable[bytes]) -> bytes:
    """A whole file."""
    return b"".join((MAGIC, *(framed(number, payload) for number, payload in enumerate(payloads))))


def found(data: bytes) -> WalContents:
    """What a file's bytes hold, whatever was done to them."""
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
    """Of the frame of this number at a place, None if there is none that is whole."""
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
    """Whether a later frame of the file lies anywhere behind its whole ones; found by its number's bytes."""
    for later in range(number + 1, number + LATER):
        wanted = later.to_bytes(8, "little")
        at = data.find(wanted, end + 5)
        while at >= 0:
            if _payload(data, at - 4, later) is not None:
                return True
            at = data.find(wanted, at + 1)
    return False
